"""Optimizers for PyTorch, and the configurations and schedules of `backpass.training.ORTTrainer`."""

import importlib
from typing import Any

_PLACES = {
    "AdamConfig": "config",
    "LambConfig": "config",
    "SGDConfig": "config",
    "_OptimizerConfig": "config",
    "ConstantWarmupLRScheduler": "lr_scheduler",
    "CosineWarmupLRScheduler": "lr_scheduler",
    "LinearWarmupLRScheduler": "lr_scheduler",
    "PolyWarmupLRScheduler": "lr_scheduler",
    "_LRScheduler": "lr_scheduler",
    "AdamWMode": "fused_adam",
    "FusedAdam": "fused_adam",
    "FP16_Optimizer": "fp16_optimizer",
}
__all__ = [name for name in _PLACES if not name.startswith("_")]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used."""
    if name in _PLACES:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    if name in _PLACES.values():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
