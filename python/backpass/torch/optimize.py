"""Rewrites of an exported model for runtimes that do none: OptimizationOptions and what it switches on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

Pattern = Callable[[onnx.GraphProto], int]

_RANDOM = {"Dropout", "RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Bernoulli"}
_FOLDABLE_DOMAINS = {""}


@dataclass
class OptimizationOptions:
    """What to_onnx does to a model before it returns it. Backpass itself needs none of it: its engine does more.

    ``patterns``: ``"default"``, a list of names from :data:`PATTERNS`, or None. ``constant_folding`` computes what
    depends on weights and constants only, so a weight may be replaced by its transpose: not for models to be trained.
    ``verbose`` prints what each rewrite did.
    """

    remove_unused: bool = True
    constant_folding: bool = False
    patterns: str | Sequence[str] | None = "default"
    verbose: int = 0

    def selected(self) -> dict[str, Pattern]:
        if self.patterns is None:
            return {}
        if self.patterns == "default":
            return dict(PATTERNS)
        names = [self.patterns] if isinstance(self.patterns, str) else list(self.patterns)
        unknown = sorted(set(names) - set(PATTERNS))
        if unknown:
            raise ValueError(f"patterns: got {unknown}, expected names among {sorted(PATTERNS)}")
        return {name: PATTERNS[name] for name in names}


def optimize(model: onnx.ModelProto, options: OptimizationOptions) -> list[str]:
    """Rewrites the model in place; one line for each rewrite that changed something."""
    steps: list[tuple[str, Callable[[], int]]] = []
    if options.constant_folding:
        steps.append(("constant folding", lambda: fold_constants(model)))
    for name, pattern in options.selected().items():
        steps.append((name, lambda pattern=pattern: pattern(model.graph)))  # type: ignore[misc]
    if options.remove_unused:
        steps.append(("unused nodes", lambda: remove_unused(model.graph)))
    report = []
    for name, step in steps:
        count = step()
        if count:
            report.append(f"{name}: {count}")
        if options.verbose:
            print(f"[to_onnx] {name}: {count}")
    return report


def remove_unused(graph: onnx.GraphProto) -> int:
    """Drops nodes nothing reads and initializers nothing reads; returns how many nodes went."""
    wanted = {output.name for output in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if any(name in wanted for name in node.output):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(_outer_names(node))
    removed = len(graph.node) - len(kept)
    _replace(graph.node, kept[::-1])
    _replace(graph.initializer, [i for i in graph.initializer if i.name in wanted])
    return removed


def _outer_names(node: onnx.NodeProto) -> set[str]:
    """What the bodies inside a node read from outside."""
    names: set[str] = set()
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            for inner in attribute.g.node:
                names.update(inner.input)
                names |= _outer_names(inner)
    return names


def fold_constants(model: onnx.ModelProto) -> int:
    """Runs, once, every node whose inputs are all constant, and stores what the others read of it."""
    import backpass

    graph = model.graph
    known = {i.name for i in graph.initializer}
    folded = []
    for node in graph.node:
        constant = all(not name or name in known for name in node.input) and not _outer_names(node)
        if constant and node.domain in _FOLDABLE_DOMAINS and node.op_type not in _RANDOM:
            folded.append(node)
            known.update(node.output)
    if not folded:
        return 0
    inside = {name for node in folded for name in node.output}
    rest = [node for node in graph.node if not any(name in inside for name in node.output)]
    read = {name for node in rest for name in node.input} | {output.name for output in graph.output}
    results = sorted(inside & read)
    part = onnx.ModelProto()
    part.CopyFrom(model)
    _replace(part.graph.node, folded)
    del part.graph.input[:], part.graph.output[:]
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
    remove_unused(part.graph)
    values = backpass.InferenceSession(part.SerializeToString()).run(results, {})
    _replace(graph.node, rest)
    graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in zip(results, values, strict=True))
    return len(folded)


def _replace(field: object, items: Sequence[object]) -> None:
    copies = list(items)
    del field[:]  # type: ignore[attr-defined]
    field.extend(copies)  # type: ignore[attr-defined]


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in names:
                node.input[i] = _last(names, name)


def _last(names: dict[str, str], name: str) -> str:
    while name in names:
        name = names[name]
    return name


def remove_identities(graph: onnx.GraphProto) -> int:
    """Readers of an Identity read its input."""
    results = {output.name for output in graph.output}
    found = [n for n in graph.node if n.op_type == "Identity" and not n.domain and n.output[0] not in results]
    _rename(graph, {n.output[0]: n.input[0] for n in found})
    gone = {n.output[0] for n in found}
    _replace(graph.node, [n for n in graph.node if n.output[0] not in gone])
    return len(found)


def merge_duplicates(graph: onnx.GraphProto) -> int:
    """Nodes that compute the same from the same become one."""
    seen: dict[bytes, onnx.NodeProto] = {}
    names: dict[str, str] = {}
    kept = []
    results = {output.name for output in graph.output}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = _last(names, name)
        key = onnx.NodeProto()
        key.CopyFrom(node)
        key.name = ""
        del key.output[:]
        text = key.SerializeToString(deterministic=True) + bytes([len(node.output)])
        first = seen.setdefault(text, node)
        if first is node or node.op_type in _RANDOM or results & set(node.output):
            kept.append(node)
        else:
            names.update(zip(node.output, first.output, strict=True))
    removed = len(graph.node) - len(kept)
    _replace(graph.node, kept)
    return removed


def _merge_pairs(graph: onnx.GraphProto, op: str, merged: Callable[[onnx.NodeProto, onnx.NodeProto], bool]) -> int:
    """`merged(first, second)` makes `second` read what `first` read."""
    producers = {name: node for node in graph.node for name in node.output}
    count = 0
    for node in graph.node:
        if node.op_type != op or node.domain:
            continue
        first = producers.get(node.input[0])
        if first is not None and first.op_type == op and not first.domain and merged(first, node):
            node.input[0] = first.input[0]
            count += 1
    return count


def merge_transposes(graph: onnx.GraphProto) -> int:
    """A Transpose of a Transpose is one Transpose."""

    def merged(first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
        inner, outer = _perm(first), _perm(second)
        if inner is None or outer is None:
            return False
        del second.attribute[:]
        second.attribute.append(onnx.helper.make_attribute("perm", [inner[i] for i in outer]))
        return True

    return _merge_pairs(graph, "Transpose", merged)


def _perm(node: onnx.NodeProto) -> list[int] | None:
    return next((list(a.ints) for a in node.attribute if a.name == "perm"), None)


def merge_reshapes(graph: onnx.GraphProto) -> int:
    """A Reshape of a Reshape to known positive extents is one Reshape."""
    constants = {i.name: i for i in graph.initializer}

    def merged(first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
        wanted = constants.get(second.input[1])
        return wanted is not None and bool((numpy_helper.to_array(wanted) > 0).all())

    return _merge_pairs(graph, "Reshape", merged)


PATTERNS: dict[str, Pattern] = {
    "identities": remove_identities,
    "duplicates": merge_duplicates,
    "transposes": merge_transposes,
    "reshapes": merge_reshapes,
}
