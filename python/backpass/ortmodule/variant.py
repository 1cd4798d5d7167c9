"""Variant: one exported graph of a module, with an engine graph for each set of gradients that was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch

from backpass import _core
from backpass.ortmodule import io
from backpass.ortmodule.fallback import ORTModuleIOError, ORTModuleONNXModelException, wrap_exception
from backpass.ortmodule.guards import Guards
from backpass.ortmodule.tree import ModuleTree, Slot
from backpass.torch.model import ExportedModel
from backpass.torch.runtime import EngineGraph

Shapes = tuple[tuple[int, ...], ...]


class OtherDecisionError(Exception):
    """The module decides by the contents of tensors what to compute, and would have decided otherwise than a graph."""


@dataclass
class Variant:
    """An export and what is needed to run it."""

    exported: ExportedModel
    result: io.Structure
    training: bool
    dynamic: bool
    names: list[str]  # of the tensors among the arguments
    build: Callable[[Variant, list[str]], EngineGraph]
    export_seconds: float = 0.0
    from_cache: bool = False
    build_seconds: float = 0.0
    graphs: dict[tuple[bool, ...], EngineGraph] = field(default_factory=dict)
    alternatives: Any = None  # where it decides: backpass.ortmodule.alternatives
    _tree: ModuleTree | None = None
    _sources: list[tuple[Slot | None, int]] = field(default_factory=list)
    _written: list[tuple[Slot, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        outputs = enumerate(self.exported.outputs)
        self._mutated = [(s.kind, s.target, i) for i, s in outputs if s.kind not in ("user", "condition")]
        self._condition = next((i for i, s in enumerate(self.exported.outputs) if s.kind == "condition"), None)
        mutated = {target for _, target, _ in self._mutated}  # names of buffers, positions of arguments
        self._cloned = [i for i, spec in enumerate(self.exported.inputs) if spec.target in mutated]
        self._guards = Guards(self.exported.guards)
        self._plain = self.result == io.TENSOR and self.exported.output_template[0].source == "output"

    @property
    def decides(self) -> bool:
        """Whether the graph is right for some contents of tensors only; `run` tells."""
        return self._condition is not None

    def fits(self, shapes: Shapes) -> bool:
        """Whether the graph computes what the module does for tensors of these shapes."""
        symbols: dict[str, int] = {}
        for spec in self.exported.inputs:
            if spec.kind != "user":
                continue
            assert isinstance(spec.target, int)
            for known, given in zip(spec.shape, shapes[spec.target], strict=True):
                if (symbols.setdefault(known, given) if isinstance(known, str) else known) != given:
                    return False
        return self._guards.hold(dict(zip(self.names, shapes, strict=True)))

    def feeds(self, tree: ModuleTree, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the graph is called with: the module's present tensors, and these."""
        if tree is not self._tree:
            self._connect(tree)
        return [tensors[place] if slot is None else slot[0][slot[1]] for slot, place in self._sources]

    def run(self, feeds: list[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Any:
        """Calls the engine; returns what the module would return. OtherDecisionError, and nothing done, if that is not
        known."""
        graph = self._graph(feeds)
        if self._cloned:  # the engine may have to repeat a pass, from what was there before it
            for i in self._cloned:
                feeds[i] = feeds[i].clone()
        outputs = graph(feeds)
        if self._condition is not None and not outputs[self._condition]:
            raise OtherDecisionError
        if self._mutated:
            self._write_back(outputs, tensors)
        if self._plain:
            return outputs[self.exported.output_template[0].index]
        return io.rebuild(
            self.result, iter([self._leaf(slot, outputs, feeds) for slot in self.exported.output_template])
        )

    def _connect(self, tree: ModuleTree) -> None:
        """Finds the module's tensors: their tables, so that a tensor put in place of another is seen."""
        self._sources = [
            (None, spec.target) if spec.kind == "user" else (tree.slots[spec.target], -1)  # type: ignore[misc,index]
            for spec in self.exported.inputs
        ]
        self._written = [(tree.slots[t], i) for kind, t, i in self._mutated if kind == "buffer_mutation"]  # type: ignore[index]
        self._tree = tree

    def _graph(self, feeds: Sequence[torch.Tensor]) -> EngineGraph:
        wanted = tuple([t.requires_grad for t in feeds]) if torch.is_grad_enabled() else ()
        found = self.graphs.get(wanted)
        if found is None:
            if not any(wanted):  # whatever there is can run forward
                found = next(iter(self.graphs.values()), None)
            if found is None:
                names = [spec.name for spec, yes in zip(self.exported.inputs, wanted, strict=False) if yes]
                found = self._built(names)
            self.graphs[wanted] = found
        return found

    def _built(self, names: list[str]) -> EngineGraph:
        _refuse_gradients_of_changed_inputs(self.exported, names)
        begin = time.perf_counter()
        try:
            graph = self.build(self, names)
        except _core.InternalBug:
            raise
        except _core.Error as error:
            raise wrap_exception(ORTModuleONNXModelException, error) from error
        self.build_seconds += time.perf_counter() - begin
        return graph

    def _write_back(self, outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        targets = [slot[0][slot[1]] for slot, _ in self._written]
        values = [outputs[i] for _, i in self._written]
        for kind, place, i in self._mutated:
            if kind == "input_mutation":
                targets.append(tensors[place])  # type: ignore[index]
                values.append(outputs[i])
        with torch.no_grad():
            torch._foreach_copy_(targets, values)

    def _leaf(self, slot: Any, outputs: Sequence[torch.Tensor], feeds: Sequence[torch.Tensor]) -> Any:
        if slot.source == "output":
            return outputs[slot.index]
        return feeds[slot.index] if slot.source == "input" else slot.value


def _refuse_gradients_of_changed_inputs(exported: ExportedModel, wanted: Sequence[str]) -> None:
    """An argument that forward changes gets its new value, but no part in autograd's graph: gradients would be lost."""
    changed = [s for s in exported.outputs if s.kind == "input_mutation" and s.dtype and s.dtype.is_floating_point]
    if not changed:
        return
    reached = set(wanted)
    for node in exported.proto.graph.node:
        if node.op_type != "StopGradient" and not reached.isdisjoint(_names_read(node)):
            reached.update(node.output)
    for spec in changed:
        if spec.name in reached:
            text = (
                f"argument {spec.target}: forward changes it in place, to a value that has gradients; return the new "
                "value instead, or detach() it"
            )
            raise wrap_exception(ORTModuleIOError, NotImplementedError(text))


def _names_read(node: onnx.NodeProto) -> list[str]:
    """What a node reads, its subgraphs included."""
    inner = [a.g for a in node.attribute if a.HasField("g")] + [g for a in node.attribute for g in a.graphs]
    return [*node.input, *(name for graph in inner for n in graph.node for name in _names_read(n))]


def without_gradients_of_buffers(exported: ExportedModel) -> onnx.ModelProto:
    """The graph in which new values of buffers and inputs are no way for gradients."""
    names = [spec.name for spec in exported.outputs if spec.kind not in ("user", "condition")]
    if not names:
        return exported.proto
    model = onnx.ModelProto()
    model.CopyFrom(exported.proto)
    if all(opset.domain != "backpass" for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid("backpass", 1))
    for output in model.graph.output:
        if output.name in names:
            stopped = onnx.helper.make_node("StopGradient", [output.name], [f"{output.name}_kept"], domain="backpass")
            model.graph.node.append(stopped)
            output.name = stopped.output[0]
    return model
