"""register_graph_optimizer: functions of the user's that may change every exported graph before it is built."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx

GraphFunction = Callable[[onnx.GraphProto], None]


@dataclass(frozen=True)
class _Registered:
    function: GraphFunction
    modules: frozenset[str] | None
    devices: frozenset[str] | None
    priority: int

    def is_for(self, module: str, device: str) -> bool:
        """Devices are told by a part of their name: cpu is meant by ``cpu:0``."""
        is_there = self.devices is None or any(device in place.lower() for place in self.devices)
        return is_there and (self.modules is None or module in self.modules)


_registered: list[_Registered] = []


class GraphOptimizerRegistry:
    """All functions that were registered."""

    @classmethod
    def register(
        cls, target_modules: str | Sequence[str], devices: str | Sequence[str], priority: int, fn: GraphFunction
    ) -> None:
        _registered.append(_Registered(fn, _names(target_modules), _names(devices), priority))
        _registered.sort(key=lambda entry: -entry.priority)

    @classmethod
    def optimize_all(cls, module_name: str, device: str, graph: onnx.GraphProto) -> None:
        """Lets those for this module and device change the graph, the most urgent first."""
        for entry in _registered:
            if entry.is_for(module_name, device):
                entry.function(graph)


def register_graph_optimizer(
    target_modules: str | Sequence[str] = "all", devices: str | Sequence[str] = "all", priority: int = 0
) -> Callable[[GraphFunction], GraphFunction]:
    """Decorates ``function(graph: onnx.GraphProto)``, which changes the graph it gets, in place.

    It gets the forward graph, in training and in inference alike: gradients are derived from what it leaves. Inputs and
    outputs must stay. `target_modules`: class names of the modules wrapped; `devices`: must include the CPU; both as
    ``"a|b"`` or as a list; functions of higher `priority` run first.
    """

    def register(function: GraphFunction) -> GraphFunction:
        GraphOptimizerRegistry.register(target_modules, devices, priority, function)
        return function

    return register


def _names(given: str | Sequence[str]) -> frozenset[str] | None:
    """Names joined by ``|``, or a list of them; None for all."""
    names = frozenset(name.strip() for name in (given.split("|") if isinstance(given, str) else given))
    return None if "all" in names else names


def apply_graph_optimizers(model: onnx.ModelProto, module: str) -> onnx.ModelProto:
    """A copy of `model` changed by the functions registered for `module`; `model` itself when there are none."""
    if not any(entry.is_for(module, "cpu") for entry in _registered):
        return model
    changed = copy.deepcopy(model)
    GraphOptimizerRegistry.optimize_all(module, "cpu", changed.graph)
    for group in ("input", "output"):
        if [v.name for v in getattr(changed.graph, group)] != [v.name for v in getattr(model.graph, group)]:
            raise ValueError(f"a graph optimizer changed the graph's {group}s; they must stay as they are")
    return changed
