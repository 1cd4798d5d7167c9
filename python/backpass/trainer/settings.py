"""Settings: how an Engine trains, and what that is to the native trainer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backpass import _core
from backpass._core import InvalidInput
from backpass.api import _engine_options


@dataclass
class Settings:
    """How to train: plain data."""

    algorithm: str = "adam"
    """"sgd", "adam" or "lamb"."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``_core.WeightSettings`` for all weights."""
    by_weight: Callable[[str], Mapping[str, Any]] | None = None
    """Called once with the name of each trained weight: fields that differ from the defaults."""
    named: Collection[str] = ()
    """Names that `by_weight` has something to say of: the model has weights of these."""
    accumulation_steps: int = 1
    clips_gradients: bool = False
    mixed_precision: bool = False
    """Matrix products, convolutions and attention in bfloat16; weights, their updates and the loss in float32."""
    scales_loss: bool = False
    """Gradients are of ``loss * loss_scale``, and divided by it; updates with gradients that are not finite are left
    out."""
    frozen: Sequence[str] = ()
    """Weights that are not trained, besides buffers and parameters that do not require gradients."""
    communicator: Any = None
    zero_stage: int = 0
    adasum: bool = False
    """Processes update by gradients of their own, and what they change is combined (``ParallelOptions.adasum``)."""
    session_options: Any = None
    seed: int | None = None
    """Of dropout; by default that of ``backpass.set_seed``, or one drawn from torch's generator."""
    postprocess: Callable[[Any], Any] | None = None
    """Called with each model (an ``onnx.ModelProto``) before it is trained; changes it, or returns another."""


def trainer_options(settings: Settings, trained: Sequence[str]) -> _core.TrainerOptions:
    """For weights of these names."""
    options = _core.TrainerOptions()
    options.algorithm = settings.algorithm
    options.defaults = _weight_settings(settings.defaults)
    if settings.by_weight is not None:
        special = {name: dict(settings.by_weight(name) or {}) for name in trained}
        both = {name: {**settings.defaults, **chosen} for name, chosen in special.items() if chosen}
        options.by_weight = {name: _weight_settings(fields) for name, fields in both.items()}
    options.accumulation_steps = settings.accumulation_steps
    options.clips_gradients = settings.clips_gradients
    options.skips_non_finite = options.scales_loss = settings.scales_loss
    options.communicator, options.zero_stage = settings.communicator, settings.zero_stage
    options.parallel.adasum = settings.adasum
    options.session = _engine_options(settings.session_options)
    return options


def _weight_settings(fields: Mapping[str, Any]) -> _core.WeightSettings:
    made = _core.WeightSettings()
    for name, value in fields.items():
        if not hasattr(made, name):
            raise InvalidInput(f"settings of weights: got '{name}', expected a field of WeightSettings")
        setattr(made, name, value)
    return made
