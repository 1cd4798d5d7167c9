"""Whether a state has the form that `ORTTrainer.state_dict` gives it, looked at before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backpass.training._state import COUNT, MOMENTS, STEP, as_array, engine_moments

_PARTS = ("model", "optimizer", "trainer_options", "train_step_info")
_COUNTERS = ("step", "optimization_step", "loss_scale", "seed", "random_counter")
_AS_SAVED = "expected one as state_dict() gives it"


def check_form(state: Any) -> None:
    """ValueError that names the entry which is no part of a state, or has none of its values."""
    _require_dict("state_dict", state)
    for part in _PARTS:
        _require_dict(f"state_dict[{part}]", state.get(part, {}))
    weights = state.get("model", {}).get("full_precision", {})
    check_arrays("state_dict[model][full_precision]", weights)
    for weight, kept in state.get("optimizer", {}).items():
        path = f"state_dict[optimizer][{weight}]"
        _require_dict(path, kept)
        check_arrays(path, {name: kept[name] for name in MOMENTS.values() if name in kept})
        for name in (COUNT, STEP):
            if name in kept:
                _check_number(f"{path}[{name}]", kept[name], least=1)
    engine_moments(state.get("optimizer", {}))  # counters that disagree
    check_counters(state.get("train_step_info", {}))


def check_arrays(path: str, values: Any) -> None:
    _require_dict(path, values)
    for name, value in values.items():
        if not _is_numeric(value):
            raise ValueError(f"{path}[{name}]: got a {type(value).__name__}, expected an array of numbers")


def check_counters(counters: Mapping[str, Any]) -> None:
    for name in _COUNTERS:
        if name in counters:
            least = None if name == "seed" else 0
            _check_number(f"state_dict[train_step_info][{name}]", counters[name], least)
    if ("seed" in counters) != ("random_counter" in counters):
        raise ValueError("state_dict[train_step_info]: got one of seed and random_counter, expected both or none")


def _require_dict(path: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: got a {type(value).__name__}, expected a dict; {_AS_SAVED}")


def _check_number(path: str, value: Any, least: int | None) -> None:
    if not _is_numeric(value) or as_array(value).size != 1:
        raise ValueError(f"{path}: got a {type(value).__name__}, expected one number")
    number = as_array(value).reshape(-1)[0]
    if least is not None and not number >= least:
        raise ValueError(f"{path}: got {number}, expected {least} or more")


def _is_numeric(value: Any) -> bool:
    if hasattr(value, "detach"):  # a torch tensor
        return not value.is_complex()
    dtype = as_array(value).dtype
    return dtype.kind in "biuf" or dtype.name == "bfloat16"
