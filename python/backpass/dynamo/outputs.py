"""Outputs of an fx graph that are no results of computation on tensors: inputs handed through, sizes, None, numbers."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

Arguments = Sequence[Any]
Fetch = Callable[[Arguments, Sequence[torch.Tensor]], Any]


class OutputPlan:
    """Splits the outputs of a graph: `results` are the distinct nodes the engine computes, `assemble` puts everything
    into the order torch wants."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        self._position = {n: i for i, n in enumerate(placeholders)}
        self._sources = _size_sources(placeholders)
        self.results: list[torch.fx.Node] = []
        (self._end,) = (n for n in graph.nodes if n.op == "output")
        outputs = self._end.args[0]
        self._single = isinstance(outputs, torch.fx.Node)
        self._fetch: list[Fetch] = [self._plan(o) for o in ((outputs,) if self._single else outputs)]

    def _plan(self, output: Any) -> Fetch:
        if not isinstance(output, torch.fx.Node):
            return lambda arguments, results: output
        if output in self._position:
            place = self._position[output]
            return lambda arguments, results: arguments[place]
        value = output.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            size = self._size(value)
            return lambda arguments, results: size(arguments)
        if output not in self.results:
            self.results.append(output)
        index = self.results.index(output)
        return lambda arguments, results: results[index]

    def _size(self, value: Any) -> Callable[[Arguments], Any]:
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return lambda arguments: value
        expr = value.node.expr
        used = sorted(expr.free_symbols, key=str)
        missing = [s for s in used if s not in self._sources]
        if missing:
            raise LookupError(f"size {expr}: no input has {missing[0]} as an extent")
        names = {s: sympy.Symbol(f"s{i}") for i, s in enumerate(used)}
        text = PythonPrinter().doprint(expr.xreplace(names))
        function = eval(f"lambda {', '.join(str(n) for n in names.values())}: {text}", {"math": math})
        sources = [self._sources[s] for s in used]
        return lambda arguments: function(*(source(arguments) for source in sources))

    def assemble(self, arguments: Arguments, results: Sequence[torch.Tensor]) -> Any:
        outputs = [fetch(arguments, results) for fetch in self._fetch]
        return outputs[0] if self._single else outputs


def _size_sources(placeholders: Sequence[torch.fx.Node]) -> dict[sympy.Symbol, Callable[[Arguments], Any]]:
    """Where the number behind each symbol is found at run time."""
    sources: dict[sympy.Symbol, Callable[[Arguments], Any]] = {}
    for place, node in enumerate(placeholders):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            sources.setdefault(value.node.expr, operator.itemgetter(place))
        elif isinstance(value, torch.Tensor):
            for axis, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                    sources.setdefault(extent.node.expr, functools.partial(_extent, place, axis))
    return sources


def _extent(place: int, axis: int, arguments: Arguments) -> Any:
    return arguments[place].shape[axis]
