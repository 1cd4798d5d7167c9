"""Weights and optimizer in one flat dictionary, by the names of the first generation.

`<w>` is a weight or buffer, `Moment_1_<w>` and `Moment_2_<w>` are its moments (Adam, Lamb), `Update_Count_<w>` (Adam)
and `Step` (Lamb) the number of the next update. Counters of the trainer and its loss scale are no tensors, and keys are
what scripts compare: they are in the dictionary's attribute `counters`, as torch keeps `_metadata`. It is an
OrderedDict because torch.save, torch.load(weights_only=True) and copies keep attributes of that one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MOMENTS = {"momentum0": "Moment_1_", "momentum1": "Moment_2_"}
COUNT = "Update_Count_"
STEP = "Step"
HALF = "_fp16"


def optimizer_entries(algorithm: str, moments: Mapping[str, Mapping[str, Any]], updates: int) -> dict[str, np.ndarray]:
    """What an optimizer adds to the weights. `moments` are by weight, then by the engine's name."""
    following = np.array([updates + 1], np.int64)
    entries: dict[str, np.ndarray] = {}
    for weight, by_name in moments.items():
        entries |= {MOMENTS[name] + weight: np.array(values) for name, values in by_name.items()}
        if algorithm == "adam":
            entries[COUNT + weight] = following.copy()
    if algorithm == "lamb":
        entries[STEP] = following
    return entries


@dataclass
class Parts:
    """A flat dictionary taken apart."""

    weights: dict[str, Any] = field(default_factory=dict)
    moments: dict[str, dict[str, Any]] = field(default_factory=dict)
    updates: int | None = None
    unknown: list[str] = field(default_factory=list)


def take_apart(state: Mapping[str, Any], weights: Collection[str], trained: Collection[str]) -> Parts:
    """What of a dictionary belongs to a model with these weights (and buffers), some of which are trained."""
    parts = Parts()
    for name, value in state.items():
        if name in weights:
            parts.weights[name] = value
        elif not _take_optimizer_entry(parts, name, value, trained) and name.removesuffix(HALF) not in weights:
            parts.unknown.append(name)
    return parts


def _take_optimizer_entry(parts: Parts, name: str, value: Any, trained: Collection[str]) -> bool:
    for moment, prefix in MOMENTS.items():
        if name.startswith(prefix) and (weight := name.removeprefix(prefix)) in trained:
            parts.moments.setdefault(weight, {})[moment] = value
            return True
    if name != STEP and not (name.startswith(COUNT) and name.removeprefix(COUNT) in trained):
        return False
    if not is_numeric(value) or np.asarray(value).size != 1:
        raise ValueError(f"[{name}]: got a {type(value).__name__}, expected one number")
    updates = int(np.asarray(value).reshape(-1)[0]) - 1
    if parts.updates not in (None, updates):
        text = f"{name}: got update {updates + 1}, expected {(parts.updates or 0) + 1} as elsewhere in this state"
        raise ValueError(f"{text}; all weights are updated together")
    parts.updates = updates
    return True


def is_numeric(value: Any) -> bool:
    """Whether it is a tensor, or what numpy makes an array, of real numbers."""
    if hasattr(value, "detach"):  # of torch
        return not value.is_complex()
    dtype = np.asarray(value).dtype
    return dtype.kind in "biuf" or dtype.name == "bfloat16"


def with_counters(state: Mapping[str, Any], counters: Mapping[str, float]) -> OrderedDict[str, Any]:
    result: OrderedDict[str, Any] = OrderedDict(state)
    result.counters = dict(counters)  # type: ignore[attr-defined]
    return result


def counters_of(state: Mapping[str, Any]) -> dict[str, float]:
    """Empty for what was not written by us, or lost its attribute in a `dict(...)`."""
    return dict(getattr(state, "counters", {}))
