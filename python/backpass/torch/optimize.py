"""Rewrites of an exported model for runtimes that do none: OptimizationOptions, and the engine's passes behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from backpass import _core

PATTERNS = {
    "identities": "remove_identities",
    "duplicates": "merge_duplicates",
    "transposes": "merge_transposes",
    "reshapes": "merge_reshapes",
}
_LARGE = 128  # elements; no pass but folding looks into tensors of more


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

    def passes(self) -> dict[str, str]:
        """Names of the engine's passes, and how they are called here."""
        chosen = {"fold_constants": "constant folding"} if self.constant_folding else {}
        chosen |= {PATTERNS[name]: name for name in self._patterns()}
        return chosen | ({"remove_dead_nodes": "unused nodes"} if self.remove_unused else {})

    def _patterns(self) -> list[str]:
        if self.patterns is None:
            return []
        if self.patterns == "default":
            return list(PATTERNS)
        names = [self.patterns] if isinstance(self.patterns, str) else list(self.patterns)
        unknown = sorted(set(names) - set(PATTERNS))
        if unknown:
            raise ValueError(f"patterns: got {unknown}, expected names among {sorted(PATTERNS)}")
        return names


def optimize(model: onnx.ModelProto, options: OptimizationOptions) -> list[str]:
    """Rewrites the model in place; one line for each rewrite that changed something."""
    passes = options.passes()
    if not passes:
        return []
    part = _without_weights(model) if not options.constant_folding else model
    written, reports = _core.simplify(part.SerializeToString(), list(passes))
    _take_over(model, onnx.ModelProto.FromString(written).graph, options.remove_unused)
    done = {title: [r.what for r in reports if r.pass_name == name] for name, title in passes.items()}
    if options.verbose:
        for title, changes in done.items():
            print(f"[to_onnx] {title}: {_summary(changes)}")
    return [f"{title}: {_summary(changes)}" for title, changes in done.items() if changes]


def _summary(changes: list[str]) -> str:
    return changes[0] if len(changes) == 1 else f"{len(changes)} changes"


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its weights as inputs, so that they need not travel."""
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.name = model.graph.name
    part.graph.node.extend(model.graph.node)
    part.graph.input.extend(model.graph.input)
    part.graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _LARGE:
            part.graph.initializer.append(tensor)
        else:
            part.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return part


def _take_over(model: onnx.ModelProto, found: onnx.GraphProto, remove_unused: bool) -> None:
    """Nodes, and constants that are new or gone; all else in the model stays as it is."""
    del model.graph.node[:]
    model.graph.node.extend(found.node)
    own = {tensor.name for tensor in model.graph.initializer}
    read = {tensor.name for tensor in found.initializer} | {value.name for value in found.input}
    for index in reversed(range(len(model.graph.initializer))):
        if remove_unused and model.graph.initializer[index].name not in read:
            del model.graph.initializer[index]
    model.graph.initializer.extend(tensor for tensor in found.initializer if tensor.name not in own)
