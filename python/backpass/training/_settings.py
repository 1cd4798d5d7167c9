"""What configuration and options of generation 2 mean to the engine."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from backpass.optim.config import _OptimizerConfig
from backpass.parallel import communicator_of
from backpass.trainer.attributes import ALGORITHMS, settings_of
from backpass.trainer.engine import Settings
from backpass.training.amp import DynamicLossScaler
from backpass.training.orttrainer_options import ORTTrainerOptions

_said: set[str] = set()
_OPSET = 14  #: what the schema gives where nobody chose one


def engine_settings(config: _OptimizerConfig, options: ORTTrainerOptions) -> Settings:
    """ValueError for options that ask for what there is not."""
    _check(options)
    algorithm = ALGORITHMS[config.name]
    enabled = options.mixed_precision.enabled
    adasum = options.distributed.enable_adasum and options.distributed.world_size > 1
    return Settings(
        algorithm,
        _weight_settings("defaults", config.defaults),
        lambda weight: _weight_settings(weight, config.values_of(weight)),
        config.named(),
        accumulation_steps=options.batch.gradient_accumulation_steps,
        clips_gradients=(options.utils.grad_norm_clip and algorithm != "sgd") or adasum,  # as the original does
        mixed_precision=enabled,
        scales_loss=enabled,
        frozen=tuple(options.utils.frozen_weights),
        communicator=communicator_of(options.distributed.world_rank, options.distributed.world_size),
        zero_stage=options.distributed.deepspeed_zero_optimization.stage,
        adasum=adasum,
        session_options=options.session_options,
        postprocess=options._internal_use.extra_postprocess,
    )


def own_options(options: ORTTrainerOptions | None) -> ORTTrainerOptions:
    """A trainer's own copy, complete: callers keep theirs as it is, and may give it to other trainers."""
    own = ORTTrainerOptions() if options is None else options._copy()
    if own.mixed_precision.enabled and own.mixed_precision.loss_scaler is None:
        own.mixed_precision.loss_scaler = DynamicLossScaler()
    distributed = own.distributed
    distributed.data_parallel_size = distributed.world_size // distributed.horizontal_parallel_size
    return own


def say_once(options: ORTTrainerOptions) -> None:
    """Warns of what means something else on a CPU, once per process."""
    notes = []
    if not options.device.id.startswith("cpu"):
        notes.append(f"device {options.device.id!r}: training runs on the CPU")
    if options.mixed_precision.enabled:
        notes.append(
            "mixed_precision: products are computed in bfloat16 here, not in float16; weights stay float32, and the "
            "loss scale stays as it is"
        )
    if options._internal_use.onnx_opset_version != _OPSET:
        notes.append("_internal_use.onnx_opset_version has no effect: models are captured in the opset the engine runs")
    new = [note for note in notes if note not in _said]
    _said.update(new)
    if new:
        warnings.warn("ORTTrainer: " + "; ".join(new), stacklevel=3)


def _weight_settings(weight: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return settings_of(weight, {name: value for name, value in values.items() if name != "lr"})


def _check(options: ORTTrainerOptions) -> None:
    if options.mixed_precision.loss_scaler is not None and not options.mixed_precision.enabled:
        raise ValueError("mixed_precision.loss_scaler: got one, expected None unless mixed_precision.enabled is True")
    distributed = options.distributed
    if distributed.horizontal_parallel_size > 1 or distributed.pipeline_parallel.pipeline_parallel_size > 1:
        raise ValueError(
            "distributed: horizontal and pipeline parallelism are not supported; use data parallelism, world_size and "
            "world_rank"
        )
    if distributed.enable_adasum and distributed.deepspeed_zero_optimization.stage > 0:
        raise ValueError("distributed.enable_adasum: got it together with deepspeed_zero_optimization, expected one")
