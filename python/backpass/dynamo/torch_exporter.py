"""Graphs exported by torch.onnx instead of Backpass's exporter."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import replace
from typing import Any

import torch

from backpass._core import Unsupported
from backpass.dynamo.options import CompileOptions
from backpass.torch import ExportedModel, InputSpec, OutputSpec, Slot
from backpass.torch.flat import FlatModule, varying_axes

# torch.onnx writes these down in their inference form, which gives other results without a word.
_WRONG_IN_TRAINING = ("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional", "rrelu_with_noise")
OPSET = 20


def export_by_torch(module: torch.fx.GraphModule, options: CompileOptions) -> ExportedModel:
    """Raises Unsupported for graphs that torch.onnx exports wrongly, and whatever torch.onnx raises."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node in module.graph.nodes:
        if any(name in str(node.target) for name in _WRONG_IN_TRAINING):
            raise Unsupported(
                f"[{node.target} '{node.name}'] exporter='torch': torch.onnx exports it as in inference; "
                "use Backpass's exporter"
            )
    template, computed = _template(module.graph, placeholders)

    def chosen(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = _listed(module(*tensors))
        return tuple(results[i] for i in computed)

    results = FlatModule(module, chosen, [n.name for n in placeholders])
    examples, shapes = _examples(placeholders)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.export.export(results, examples, dynamic_shapes=shapes, strict=False)
        made = torch.onnx.export(program, opset_version=OPSET, optimize=options.optimize, verbose=False)
    assert made is not None
    proto = made.model_proto
    names = list(program.graph_signature.user_inputs)
    inputs = [InputSpec(value.name, "user", names.index(value.name)) for value in proto.graph.input]
    order = [spec.target for spec in inputs]
    template = [replace(s, index=order.index(s.index)) if s.source == "input" else s for s in template]
    outputs = [OutputSpec(value.name, "user", i) for i, value in enumerate(proto.graph.output)]
    for node in proto.graph.node:  # torch.onnx writes stack traces beside each
        del node.metadata_props[:]
    return ExportedModel(proto, inputs, outputs, template)


def _template(graph: torch.fx.Graph, placeholders: list[torch.fx.Node]) -> tuple[list[Slot], list[int]]:
    """Where the results come from (of inputs, the position among all), and which ones are computed, each once."""
    results = _listed(graph.output_node().args[0])
    template: list[Slot] = []
    computed: list[int] = []
    for i, result in enumerate(results):
        value = result.meta["val"] if isinstance(result, torch.fx.Node) else result
        if not isinstance(value, torch.Tensor):
            template.append(Slot("constant", value=value))
        elif result in placeholders:
            template.append(Slot("input", placeholders.index(result)))
        elif result in results[:i]:
            template.append(template[results.index(result)])
        else:
            template.append(Slot("output", len(computed)))
            computed.append(i)
    return template, computed


def _listed(results: Any) -> Any:
    return results if isinstance(results, tuple | list) else (results,)


def _examples(placeholders: list[torch.fx.Node]) -> tuple[tuple[Any, ...], Any]:
    """Tensors of the extents torch.compile saw, and which of those vary."""
    examples: list[Any] = []
    varies: list[list[int]] = []
    for node in placeholders:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"[placeholder '{node.name}'] exporter='torch': sizes as inputs; use Backpass's exporter")
        extents = [d if isinstance(d, int) else d.node.hint for d in value.shape]
        examples.append(torch.zeros(extents, dtype=value.dtype))
        varies.append([i for i, d in enumerate(value.shape) if not isinstance(d, int)])
    names = [node.name for node in placeholders]
    return tuple(examples), varying_axes(names, varies) if any(varies) else None
