"""Arguments of ORTTrainer's constructor behind `device`, in the order and by the names of every release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

RENAMED = {
    "postprocess_model": "_extra_postprocess",
    "partition_optimizer": "deepspeed_zero_stage",
    "deepspeed_zero": "deepspeed_zero_stage",
    "use_invertible_layernorm_grad": "use_memory_efficient_gradient",
}


@dataclass(frozen=True)
class Options:
    """In the order of the last releases; those since 1.4 differ in what stands at the end alone."""

    gradient_accumulation_steps: int = 1
    world_rank: int = 0
    world_size: int = 1
    use_mixed_precision: bool = False
    allreduce_post_accumulation: bool = False
    global_step: int = 0
    get_lr_this_step: Callable[[int], Any] | None = None
    loss_scaler: Any = None
    deepspeed_zero_stage: int = 0
    enable_grad_norm_clip: bool = True
    frozen_weights: Sequence[str] = ()
    _opset_version: int = 14
    _enable_internal_postprocess: bool = True
    _extra_postprocess: Callable[[Any], Any] | None = None
    _use_deterministic_compute: bool = False
    use_memory_efficient_gradient: bool = False
    run_symbolic_shape_infer: bool = False
    enable_adasum: bool = False
    optimized_model_filepath: str = ""

    def __post_init__(self) -> None:
        if self.gradient_accumulation_steps < 1:
            raise ValueError(f"gradient_accumulation_steps: got {self.gradient_accumulation_steps}, expected 1 or more")
        if not 0 <= self.world_rank < self.world_size:
            raise ValueError(f"world_rank: got {self.world_rank} of {self.world_size}, expected one of 0 to size - 1")
        if self.deepspeed_zero_stage not in (0, 1):
            raise ValueError(f"deepspeed_zero_stage: got {self.deepspeed_zero_stage}, expected 0 or 1")


NEWEST = tuple(field.name for field in fields(Options))
FIRST = (NEWEST[0], "_extra_postprocess", *(name for name in NEWEST[1:12]))  # 1.3.0 had postprocess_model there


def bind_options(positional: Sequence[Any], named: Mapping[str, Any]) -> Options:
    """From what was written for any release: the ninth argument was a function in 1.3.0, and is a rank in others."""
    is_first = len(positional) > 1 and (positional[1] is None or callable(positional[1]))
    order = FIRST if is_first else NEWEST
    if len(positional) > len(order):
        raise TypeError(
            f"ORTTrainer: got {len(positional) + 7} arguments by position, expected at most {len(order) + 7}"
        )
    values = dict(zip(order, positional, strict=False))
    for given, value in named.items():
        name = RENAMED.get(given, given)
        if name not in NEWEST:
            raise TypeError(f"ORTTrainer: got an unknown argument {given!r}; it takes {', '.join(NEWEST)}")
        if name in values:
            raise TypeError(f"ORTTrainer: got {given!r} twice")
        values[name] = value
    if values.get("frozen_weights") is None:
        values.pop("frozen_weights", None)
    values["deepspeed_zero_stage"] = int(values.get("deepspeed_zero_stage", 0))  # a bool in 1.3.0
    return Options(**values)
