"""The state of a trainer, as nested dicts of arrays:

    model.full_precision.<w>                                  weights, also those that are not trained, and buffers
    optimizer.<w>.{Moment_1, Moment_2, Update_Count}          of Adam; without the count of LAMB
    optimizer.shared_optimizer_state.Step                     of LAMB
    trainer_options.{optimizer_name, world_rank, ...}
    train_step_info.{optimization_step, step}                 and more of ours: loss_scale, and of dropout seed
                                                              and random_counter

Update_Count and Step are the number of the next update: 1 before the first.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from backpass.optim._require import require

MOMENTS = {"momentum0": "Moment_1", "momentum1": "Moment_2"}  #: the engine's names, and those of the state
SHARED = "shared_optimizer_state"
COUNT = "Update_Count"
STEP = "Step"
PARTS = ("model", "optimizer", "train_step_info")


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A view where that can be had."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def optimizer_state(algorithm: str, moments: Mapping[str, Mapping[str, Any]], updates: int) -> dict[str, Any]:
    """What the engine keeps of an optimizer, in the form of the state: copies."""
    following = np.array([updates + 1], np.int64)
    found: dict[str, Any] = {}
    for weight, kept in moments.items():
        found[weight] = {MOMENTS[name]: np.array(values) for name, values in kept.items()}
        if algorithm == "adam":
            found[weight][COUNT] = following.copy()
    if algorithm == "lamb":
        found[SHARED] = {STEP: following}
    return found


def engine_moments(state: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], int | None]:
    """The way back: moments by the engine's names, and the number of updates where the state tells it."""
    moments: dict[str, dict[str, Any]] = {}
    counts = []
    for weight, kept in state.items():
        counts += [int(as_array(kept[name]).reshape(-1)[0]) for name in (COUNT, STEP) if name in kept]
        if weight != SHARED:
            moments[weight] = {mine: as_array(kept[name]) for mine, name in MOMENTS.items() if name in kept}
    if len(set(counts)) > 1:
        found = sorted(set(counts))
        raise ValueError(f"state_dict[optimizer]: got counters {found}, expected one: all weights are updated together")
    return moments, counts[0] - 1 if counts else None


def warn_of_missing(state: Mapping[str, Any]) -> None:
    """Parts that a state lacks keep the values they have."""
    for part in PARTS:
        if part not in state:
            warnings.warn(f"Missing key: {part} in state_dict", UserWarning, stacklevel=4)


def check_keys(own: Mapping[str, Any], given: Mapping[str, Any], free: Collection[str] = ()) -> list[str]:
    """RuntimeError where weights or entries of the optimizer are missing, or are not the model's.

    ``free`` are weights that no gradient has been seen to reach: the optimizer may have an entry for them, or none.
    Returns those of them that have none.
    """
    for part in ("model", "optimizer"):
        if part in given and part in own:
            passed_over = free if part == "optimizer" else ()
            kept = [{n: v for n, v in side[part].items() if n not in passed_over} for side in (own, given)]
            _compare(f"state_dict[{part}]", *kept)
    mine, theirs = own.get("optimizer", {}), given.get("optimizer")
    return [] if theirs is None else [name for name in free if name in mine and name not in theirs]


def _compare(path: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    problems = []
    if missing := [name for name in own if name not in given]:
        problems.append(f"Missing keys: {', '.join(missing)} in {path}")
    if unexpected := [name for name in given if name not in own]:
        problems.append(f"Unexpected keys: {', '.join(unexpected)} in {path}")
    if problems:
        raise RuntimeError("; ".join(problems))
    for name, inner in own.items():
        if isinstance(inner, Mapping):
            _compare(f"{path}[{name}]", inner, given[name])


def check_optimizer(expected: str, state: Mapping[str, Any]) -> None:
    """AssertionError for a state of another optimizer."""
    name = state.get("trainer_options", {}).get("optimizer_name", expected)
    name = name.decode() if isinstance(name, bytes) else str(name)
    require(name == expected, f"Optimizer mismatch: expected {expected}, got {name}")


def options_state(options: Any, optimizer_name: str) -> dict[str, Any]:
    """What a state tells of the run it is from."""
    distributed = options.distributed
    return {
        "mixed_precision": options.mixed_precision.enabled,
        "zero_stage": distributed.deepspeed_zero_optimization.stage,
        "world_rank": distributed.world_rank,
        "world_size": distributed.world_size,
        "optimizer_name": optimizer_name,
        "data_parallel_size": distributed.data_parallel_size,
        "horizontal_parallel_size": distributed.horizontal_parallel_size,
    }


def to_pytorch_format(state: Mapping[str, Any]) -> dict[str, Any]:
    """Weights alone, flat, as torch tensors of their own memory."""
    import torch

    weights = state.get("model", {}).get("full_precision", {})
    return {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
