"""Checkpoints of several processes joined, and the flat states of the first generation for a trainer of the second."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass.optim._require import require
from backpass.trainer.checkpoint import (
    checkpoint_files,
    join_shards,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from backpass.trainer.flat_state import counters_of, with_counters
from backpass.training import _checkpoint_storage
from backpass.training._state import to_pytorch_format as _to_pytorch_format
from backpass.training._state_check import check_arrays, check_counters
from backpass.training._utils import state_dict_sharded_optimizer_keys

if TYPE_CHECKING:
    from backpass.training.orttrainer import ORTTrainer

__all__ = [
    "aggregate_checkpoints",
    "experimental_load_checkpoint",
    "experimental_load_state_dict",
    "experimental_save_checkpoint",
    "experimental_state_dict",
]


_NEEDED = ("world_rank", "world_size", "horizontal_parallel_size", "zero_stage", "mixed_precision")


# ---- files of all ranks
def aggregate_checkpoints(paths: Sequence[str], pytorch_format: bool = True) -> dict[str, Any]:
    """One state from the files of all ranks, given in any order: what ZeRO or Megatron had cut is put together.

    ``pytorch_format``: weights alone, flat, as torch tensors.
    """
    ranks = {path: int(options_of(path)["world_rank"]) for path in paths}
    ordered = sorted(ranks, key=lambda path: ranks[path])
    options = options_of(ordered[0])
    size, across = int(options["world_size"]), int(options["horizontal_parallel_size"])
    if [ranks[path] for path in ordered] != list(range(size)):
        found = [ranks[path] for path in ordered]
        raise ValueError(f"aggregate_checkpoints: got files of ranks {found}, expected those of 0 to {size - 1}")
    is_cut, mixed = bool(options["zero_stage"]), bool(options["mixed_precision"])
    groups = [ordered[place::across] if is_cut else ordered[place : place + 1] for place in range(across)]
    joined = [_joined_zero([_checkpoint_storage.load(path) for path in group], is_cut, mixed) for group in groups]
    whole = joined[0] if across == 1 else _joined_megatron(joined)
    return _to_pytorch_format(whole) if pytorch_format else whole


def options_of(path: str) -> dict[str, Any]:
    """What a file tells of the run it is from. ValueError for a file that is of something else."""
    options = _checkpoint_storage.load(path, key="trainer_options")
    missing = [name for name in _NEEDED if not isinstance(options, Mapping) or name not in options]
    if missing:
        raise ValueError(f"'{path}': got trainer_options without {missing}, expected a file of save_checkpoint")
    return dict(options)


def shard_of(state: Mapping[str, Any], rank: int, size: int) -> dict[str, Any]:
    """What one of `size` ranks writes of a state that all of them have: of each moment a flat piece."""
    info: dict[str, Any] = {}
    optimizer: dict[str, Any] = {}
    for weight, kept in state.get("optimizer", {}).items():
        cut = [name for name in kept if name in state_dict_sharded_optimizer_keys()]
        optimizer[weight] = {**kept, **{name: np.array_split(kept[name].reshape(-1), size)[rank] for name in cut}}
        if cut:
            shape = np.array(kept[cut[0]].shape, np.int64)
            info[weight] = {"original_dim": shape, "megatron_row_partition": np.array([-1])}
    return {**state, "optimizer": optimizer, "partition_info": info} if optimizer else dict(state)


def _joined_zero(states: Sequence[Mapping[str, Any]], is_cut: bool, mixed: bool) -> dict[str, Any]:
    """States of processes that trained the same part of a model, by rank; the only one where ZeRO has not cut them."""
    whole = {} if is_cut else {part: states[0][part] for part in ("model", "optimizer") if part in states[0]}
    dims: dict[str, Any] = {}
    for state in states if is_cut else ():
        _aggregate_model_states(state, dims, whole, mixed)
        _aggregate_optimizer_states(state, dims, whole)
    for weight, shape in dims.items():
        for kept in (whole["model"]["full_precision"] if mixed else {}, *_moments_of(whole, weight)):
            for name in [weight, *state_dict_sharded_optimizer_keys()]:
                if name in kept:
                    kept[name] = kept[name].reshape(shape)
    _take_rest(states[0], whole)
    return whole


def _joined_megatron(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """States of processes that trained parts of the same model, of which each has been joined already."""
    whole: dict[str, Any] = {"model": {"full_precision": {}}, "optimizer": {}}
    for state in states:
        info = state.get("partition_info", {})
        axes = {weight: _axis(info[weight]) for weight in info}
        for weight, value in state["model"]["full_precision"].items():
            _add(whole["model"]["full_precision"], weight, value, axes.get(weight), f"model state {weight}")
        for weight, kept in state.get("optimizer", {}).items():
            own = whole["optimizer"].setdefault(weight, {})
            for name, value in kept.items():
                axis = axes.get(weight) if name in state_dict_sharded_optimizer_keys() else None
                _add(own, name, value, axis, f"model state {weight} and optimizer state {name}")
    _take_rest(states[0], whole)
    whole.pop("partition_info", None)
    return whole


def _take_rest(first: Mapping[str, Any], whole: dict[str, Any]) -> None:
    """What all ranks have alike, and the options of a run that is not distributed."""
    single = {"zero_stage": 0, "world_rank": 0, "world_size": 1, "data_parallel_size": 1, "horizontal_parallel_size": 1}
    whole["trainer_options"] = {**first["trainer_options"], **single}
    for part in ("train_step_info", "user_dict"):
        if part in first:
            whole[part] = first[part]
    megatron = {w: info for w, info in first.get("partition_info", {}).items() if _axis(info) is not None}
    if megatron:
        whole["partition_info"] = megatron


def _aggregate_model_states(
    rank_state_dict: Mapping[str, Any], original_dims: dict[str, Any], state_dict: dict[str, Any], mixed_precision: bool
) -> None:
    """Adds the weights of one rank. The original's ZeRO cuts them under mixed precision; ours does not."""
    if "model" not in rank_state_dict:
        return
    own = state_dict.setdefault("model", {}).setdefault("full_precision", {})
    info = rank_state_dict.get("partition_info", {}) if mixed_precision else {}
    for weight, value in rank_state_dict["model"]["full_precision"].items():
        is_cut = weight in info and np.size(value) < np.prod(info[weight]["original_dim"])
        if is_cut:
            original_dims[weight] = info[weight]["original_dim"]
        _add(own, weight, value, 0 if is_cut else None, f"model state {weight}")


def _aggregate_optimizer_states(
    rank_state_dict: Mapping[str, Any], original_dims: dict[str, Any], state_dict: dict[str, Any]
) -> None:
    """Adds the optimizer of one rank."""
    if "optimizer" not in rank_state_dict:
        return
    info = rank_state_dict.get("partition_info", {})
    own = state_dict.setdefault("optimizer", {})
    for weight, kept in rank_state_dict["optimizer"].items():
        mine = own.setdefault(weight, {})
        for name, value in kept.items():
            is_cut = weight in info and name in state_dict_sharded_optimizer_keys()
            if is_cut:
                original_dims[weight] = info[weight]["original_dim"]
            _add(mine, name, value, 0 if is_cut else None, f"model state {weight} and optimizer state {name}")


def _add(own: dict[str, Any], name: str, value: Any, axis: int | None, what: str) -> None:
    """Puts a piece behind those that are there, or checks that what is not cut is the same in all files."""
    if name not in own:
        own[name] = value
    elif axis is not None:
        own[name] = np.concatenate([own[name], value], axis)
    else:
        require(np.array_equal(own[name], value), f"Value mismatch for {what}")


def _axis(info: Mapping[str, Any]) -> int | None:
    """Along which Megatron has cut a weight: rows, columns, or not at all."""
    row = int(np.asarray(info.get("megatron_row_partition", -1)).reshape(-1)[0])
    return {0: -1, 1: 0}.get(row)


def _moments_of(state: Mapping[str, Any], weight: str) -> list[dict[str, Any]]:
    return [state["optimizer"][weight]] if weight in state.get("optimizer", {}) else []


# ---- flat states
def experimental_state_dict(ort_trainer: ORTTrainer, include_optimizer_state: bool = True) -> dict[str, Any]:
    """Weights, buffers and optimizer in one dict of tensors, as in the first generation."""
    _say_deprecated("experimental_state_dict", "state_dict")
    return _Flat(ort_trainer).state_dict(include_optimizer_state)


def experimental_load_state_dict(ort_trainer: ORTTrainer, state_dict: Mapping[str, Any], strict: bool = False) -> None:
    """Takes over what `experimental_state_dict` gave; before the first step, when that comes."""
    _say_deprecated("experimental_load_state_dict", "load_state_dict")
    _Flat(ort_trainer).load_state_dict(state_dict, strict)


def experimental_save_checkpoint(
    ort_trainer: ORTTrainer,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Writes a flat state by torch.save, with what else the caller wants to have back."""
    _say_deprecated("experimental_save_checkpoint", "save_checkpoint")
    flat = _Flat(ort_trainer)
    save_checkpoint(flat, checkpoint_dir, checkpoint_prefix, checkpoint_state_dict, include_optimizer_state)


def experimental_load_checkpoint(
    ort_trainer: ORTTrainer,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    strict: bool = False,
) -> dict[str, Any]:
    """Loads what `experimental_save_checkpoint` wrote, and gives back what was stored beside it."""
    _say_deprecated("experimental_load_checkpoint", "load_checkpoint")
    return load_checkpoint(_Flat(ort_trainer), checkpoint_dir, checkpoint_prefix, strict)


def _say_deprecated(name: str, instead: str) -> None:
    text = f"{name}() will be deprecated soon. Please use ORTTrainer.{instead}() instead."
    warnings.warn(text, DeprecationWarning, stacklevel=3)


class _Flat:
    """A trainer with the state of the first generation."""

    def __init__(self, trainer: ORTTrainer) -> None:
        self._trainer = trainer

    def state_dict(self, include_optimizer_state: bool = True) -> dict[str, Any]:
        trainer, session = self._trainer, self._trainer._training_session
        if not session:
            return trainer.state_dict()
        import torch

        kept = {**session.get_state(), **trainer._frozen_state()}
        if not include_optimizer_state:
            kept = trainer.state_dict()["model"]["full_precision"]
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in kept.items()}
        return with_counters(tensors, trainer._info_state()) if include_optimizer_state else tensors

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = False) -> None:
        check_arrays("state_dict", state)
        check_counters(counters_of(state))
        if not self._trainer._training_session:
            self._trainer._load_state_dict = partial(self._load, state, strict=strict)
            return
        self._load(state, strict=strict)

    def _load(self, state: Mapping[str, Any], strict: bool) -> None:
        self._trainer._training_session.load_state(state, strict)
        self._trainer._onnx_model = None
        self._trainer._load_info(counters_of(state))

    def shard(self) -> tuple[int, ...]:
        """Rank and number of ranks, where each holds a part of the optimizer."""
        distributed = self._trainer.options.distributed
        is_cut = distributed.deepspeed_zero_optimization.stage and distributed.world_size > 1
        return (distributed.world_rank, distributed.world_size) if is_cut else ()


# ---- what scripts of the original take from here
def _list_checkpoint_files(checkpoint_dir: str | os.PathLike[str], checkpoint_prefix: str) -> list[Path]:
    return checkpoint_files(checkpoint_dir, checkpoint_prefix)


class _CombineZeroCheckpoint:
    """Flat checkpoints of all ranks as one."""

    def __init__(self, checkpoint_files: Sequence[str | os.PathLike[str]]) -> None:
        self._files = list(checkpoint_files)

    def aggregate_checkpoints(self) -> dict[str, Any]:
        return join_shards([read_checkpoint(path)["model"] for path in self._files])
