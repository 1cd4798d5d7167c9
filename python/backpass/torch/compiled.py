"""CompiledModule: an exported model that is called as the module is from which it came.

All front ends end here. It finds the tensors that the graph reads, keeps a graph in the engine for each set of
gradients that is asked for, writes back what the module changes in place, and picks the results out of outputs, inputs
and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any

import onnx
import torch

from backpass import _core
from backpass.torch.model import ExportedModel, OutputSpec, Slot
from backpass.torch.runtime import EngineGraph

Place = tuple[MutableMapping[str, Any], str]
"""A table that holds a tensor, and its name there: one that is put in place of another is seen."""

_WRITTEN_BACK = ("buffer_mutation", "input_mutation")


class OtherDecisionError(Exception):
    """The module decides by the contents of tensors what to compute, and would have decided otherwise than a graph."""


class CompiledModule:
    """An export and what is needed to run it."""

    def __init__(
        self,
        exported: ExportedModel,
        build: Callable[[list[str]], EngineGraph] | None = None,
        constant: Collection[int] = (),
    ) -> None:
        """`build` makes a graph with gradients of these inputs, by :meth:`load`; `constant` are outputs that are not to
        be differentiated, besides those that are written back."""
        self.inputs, self.template = exported.inputs, exported.output_template
        self.graphs: dict[tuple[bool, ...], EngineGraph] = {}
        self._build = build
        outputs = list(enumerate(exported.outputs))
        self._mutated = [(i, spec) for i, spec in outputs if spec.kind in _WRITTEN_BACK]
        self._constant = sorted({*constant, *(i for i, _ in self._mutated)})
        self._condition = next((i for i, spec in outputs if spec.kind == "condition"), None)
        targets = {spec.target for _, spec in self._mutated}  # names of buffers, positions of arguments
        self.overwritten = [i for i, spec in enumerate(self.inputs) if spec.target in targets]
        returned = {slot.index for slot in self.template if slot.source == "input"}
        self._returns_overwritten = not returned.isdisjoint(self.overwritten)
        self._numbers = [(i, spec.dtype) for i, spec in enumerate(self.inputs) if spec.kind == "symint"]
        self._sources: list[tuple[Place | None, int]] = []
        self._written: list[tuple[Place | int, int]] = []

    @property
    def decides(self) -> bool:
        """Whether the graph is right for some contents of tensors only; `run` tells."""
        return self._condition is not None

    def connect(self, places: Mapping[str, Place]) -> None:
        """Says where the module keeps its parameters and buffers; once before the first call, and when that changes."""
        self._sources = [
            (None, int(spec.target)) if spec.kind in ("user", "symint") else (places[str(spec.target)], -1)  # type: ignore[arg-type]
            for spec in self.inputs
        ]
        self._written = [
            (int(s.target) if s.kind == "input_mutation" else places[str(s.target)], i)  # type: ignore[arg-type]
            for i, s in self._mutated
        ]

    def load(
        self,
        model: onnx.ModelProto,
        requires_grad: Sequence[str],
        options: _core.SessionOptions | None,
        parameters: Collection[str] = (),
    ) -> EngineGraph:
        """The exported model, or what was made of it, in the engine. `parameters` are inputs that are some, besides
        those the export knows."""
        constant = [model.graph.output[i].name for i in self._constant]
        names = [spec.name for spec in self.inputs]
        weights = [
            spec.name
            for i, spec in enumerate(self.inputs)
            if (spec.kind == "parameter" or spec.name in parameters) and i not in self.overwritten
        ]
        return EngineGraph(model.SerializeToString(), names, requires_grad, options, constant, weights)

    def lost_gradients(self, graph: EngineGraph) -> list[OutputSpec]:
        """Arguments that get values with gradients: these would be lost, for they get no part in autograd's graph."""
        names = [info.name for info in graph.session.outputs()]
        changed = [(names[i], spec) for i, spec in self._mutated if spec.kind == "input_mutation"]
        return [spec for name, spec in changed if graph.session.depends_on(name)]

    def feeds(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """What the graph is called with: the module's present tensors, and these; numbers as tensors."""
        found = [arguments[i] if place is None else place[0][place[1]] for place, i in self._sources]
        for i, dtype in self._numbers:
            found[i] = torch.tensor(found[i], dtype=dtype)
        return found

    def graph(self, feeds: Sequence[torch.Tensor]) -> EngineGraph:
        """The graph for the gradients that these want, built if it is the first time."""
        wanted = tuple([t.requires_grad for t in feeds]) if torch.is_grad_enabled() else ()
        found = self.graphs.get(wanted)
        if found is None:
            if not any(wanted):  # whatever there is can run forward
                found = next(iter(self.graphs.values()), None)
            if found is None:
                assert self._build is not None
                found = self._build([spec.name for spec, yes in zip(self.inputs, wanted, strict=False) if yes])
            self.graphs[wanted] = found
        return found

    def run(self, graph: EngineGraph, feeds: list[torch.Tensor], arguments: Sequence[Any]) -> list[Any]:
        """The leaves of what the module would return. OtherDecisionError, and nothing done, if that is not known."""
        keeps = bool(graph.requires_grad) and torch.is_grad_enabled()
        if self.overwritten and (keeps or self._returns_overwritten):
            feeds = list(feeds)
            for i in self.overwritten:  # the engine may have to repeat a pass, from what was there before it
                feeds[i] = feeds[i].clone()
        outputs = graph(feeds)
        if self._condition is not None and not outputs[self._condition]:
            raise OtherDecisionError
        if self._written:
            targets = [arguments[p] if isinstance(p, int) else p[0][p[1]] for p, _ in self._written]
            with torch.no_grad():
                torch._foreach_copy_(targets, [outputs[i] for _, i in self._written])
        return [_leaf(slot, outputs, feeds) for slot in self.template]


def _leaf(slot: Slot, outputs: Sequence[torch.Tensor], feeds: Sequence[torch.Tensor]) -> Any:
    if slot.source == "constant":
        return slot.value
    value = (outputs if slot.source == "output" else feeds)[slot.index]
    return value.item() if slot.symint else value
