"""Names of an exported model: what was captured gets the names that users described."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx
from onnx import helper

from backpass.torch.builder import INDICES_FROM_FRONT


def _graphs(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _graphs(inner)


def value_names(graph: onnx.GraphProto) -> set[str]:
    """All names of values, in subgraphs too."""
    found: set[str] = set()
    for part in _graphs(graph):
        found.update(v.name for v in (*part.input, *part.output, *part.initializer))
        for node in part.node:
            found.update(node.output)
            found.update(node.input)
    return found


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Gives values other names, and those that have these names already, others again."""
    taken = value_names(graph) | set(names.values())
    mapping = dict(names)
    for name in set(names.values()) & value_names(graph):
        if name not in names:
            mapping[name] = fresh_name(name, taken)
    for part in _graphs(graph):
        for value in (*part.input, *part.output, *part.initializer, *part.value_info):
            value.name = mapping.get(value.name, value.name)
        for node in part.node:
            node.input[:] = [mapping.get(name, name) for name in node.input]
            node.output[:] = [mapping.get(name, name) for name in node.output]


def fresh_name(name: str, taken: set[str]) -> str:
    """Adds it to what is taken."""
    made = name
    for i in itertools.count(1):
        if made not in taken:
            break
        made = f"{name}_{i}"
    taken.add(made)
    return made


def rename_symbols(graph: onnx.GraphProto, symbols: Mapping[str, str]) -> None:
    """Gives extents other names, in expressions too."""
    for part in _graphs(graph):
        for value in (*part.input, *part.output, *part.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = re.sub(r"\w+", lambda found: symbols.get(found[0], found[0]), dim.dim_param)


def embed(model: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto], inputs: Sequence[str]) -> onnx.ModelProto:
    """A model of its own: these inputs have values, which are its only initializers. Other inputs in this order."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    nodes = [*(helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer), *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    order = {name: i for i, name in enumerate(inputs)}
    present = {v.name for v in graph.input}
    kept = sorted((v for v in graph.input if v.name not in weights), key=lambda v: order.get(v.name, len(order)))
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(tensor for name, tensor in weights.items() if name in present)
    return made


def remove_dead_nodes(graph: onnx.GraphProto) -> None:
    """Those that no output depends on."""
    needed, kept = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
            inner = [g for a in node.attribute for g in (*a.graphs, *([a.g] if a.HasField("g") else []))]
            needed.update(name for part in inner for name in value_names(part))
    nodes = list(reversed(kept))
    del graph.node[:]
    graph.node.extend(nodes)


def without_weights(model: onnx.ModelProto, weights: Collection[str]) -> onnx.ModelProto:
    """The model with these initializers as inputs, in place."""
    graph, names = model.graph, set(weights)
    taken = [t for t in graph.initializer if t.name in names]
    kept = [t for t in graph.initializer if t.name not in names]
    declared = {v.name for v in graph.input}
    infos = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in taken if t.name not in declared]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.input.extend(infos)
    return model


def without_marks(model: onnx.ModelProto) -> onnx.ModelProto:
    """What only gradients need becomes what others can run, in place."""
    for part in _graphs(model.graph):
        for node in part.node:
            if node.op_type == "StopGradient":
                node.op_type, node.domain = "Identity", ""
            kept = [a for a in node.attribute if a.name != INDICES_FROM_FRONT]
            if len(kept) < len(node.attribute):
                del node.attribute[:]
                node.attribute.extend(kept)
    _drop_unused_domains(model)
    return model


def _drop_unused_domains(model: onnx.ModelProto) -> None:
    used = {node.domain for part in _graphs(model.graph) for node in part.node} | {""}
    kept = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
