"""FP16_Optimizer: what makes optimizers of other libraries faster on CUDA, and leaves them alone on CPUs."""

import warnings
from typing import TypeVar

Optimizer = TypeVar("Optimizer")

# What the original has replacements for, all of them CUDA kernels.
_REGISTRY = {
    "megatron.fp16.fp16.FP16_Optimizer",
    "deepspeed.runtime.zero.stage2.FP16_DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
    "apex.amp.optimizer.unique_name_as_id",
    "accelerate.utils.deepspeed.DeepSpeedOptimizerWrapper",
}


def FP16_Optimizer(optimizer: Optimizer, **kwargs: object) -> Optimizer:  # noqa: N802  # the original's name
    """The optimizer itself, with a warning: there is nothing to replace on a CPU. Options are ignored."""
    name = _full_name(optimizer)
    if name not in _REGISTRY:
        warnings.warn(
            f"Skip modifying optimizer because of optimizer name not found in the registry: {name}",
            UserWarning,
            stacklevel=2,
        )
    else:
        warnings.warn(
            f"Skip modifying optimizer {name}: its replacements are CUDA kernels, and this is a CPU",
            UserWarning,
            stacklevel=2,
        )
    return optimizer


def _full_name(optimizer: object) -> str:
    if hasattr(optimizer, "_amp_stash"):
        return "apex.amp.optimizer.unique_name_as_id"
    kind = type(optimizer)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
