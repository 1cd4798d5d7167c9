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
    priority: int


_registered: list[_Registered] = []


def register_graph_optimizer(
    target_modules: str | Sequence[str] = "all", devices: str | Sequence[str] = "all", priority: int = 0
) -> Callable[[GraphFunction], GraphFunction]:
    """Decorates ``function(graph: onnx.GraphProto)``, which changes the graph it gets, in place.

    It gets the forward graph, in training and in inference alike: gradients are derived from what it leaves. Inputs and
    outputs must stay. `target_modules`: class names of the modules wrapped; `devices`: must include the CPU; both as
    ``"a|b"`` or as a list; functions of higher `priority` run first.
    """
    places = _names(devices)

    def register(function: GraphFunction) -> GraphFunction:
        if places is None or any(place.lower().startswith("cpu") for place in places):
            _registered.append(_Registered(function, _names(target_modules), priority))
            _registered.sort(key=lambda entry: -entry.priority)
        return function

    return register


def _names(given: str | Sequence[str]) -> frozenset[str] | None:
    """Names joined by ``|``, or a list of them; None for all."""
    names = frozenset(name.strip() for name in (given.split("|") if isinstance(given, str) else given))
    return None if "all" in names else names


def apply_graph_optimizers(model: onnx.ModelProto, module: str) -> onnx.ModelProto:
    """A copy of `model` changed by the functions registered for `module`; `model` itself when there are none."""
    chosen = [entry.function for entry in _registered if entry.modules is None or module in entry.modules]
    if not chosen:
        return model
    changed = copy.deepcopy(model)
    for function in chosen:
        function(changed.graph)
    for group in ("input", "output"):
        if [v.name for v in getattr(changed.graph, group)] != [v.name for v in getattr(model.graph, group)]:
            raise ValueError(f"a graph optimizer changed the graph's {group}s; they must stay as they are")
    return changed
