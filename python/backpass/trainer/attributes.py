"""Names and attributes of the three optimizers, as users write them, and as the engine takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ALGORITHMS = {"SGDOptimizer": "sgd", "AdamOptimizer": "adam", "LambOptimizer": "lamb"}
SETTINGS = {
    "alpha": "alpha",
    "beta": "beta",
    "lambda": "weight_decay",
    "epsilon": "epsilon",
    "max_norm_clip": "max_norm",
    "ratio_min": "ratio_min",
    "ratio_max": "ratio_max",
    "do_bias_correction": "correct_bias",
    "weight_decay_mode": "decays_after",
}
FLAGS = ("do_bias_correction", "weight_decay_mode")
SHARED = ("ratio_min", "ratio_max", "do_bias_correction")  # by all weights of a LambOptimizer
DEFAULTS: dict[str, dict[str, Any]] = {"sgd": {}, "adam": {}, "lamb": {"epsilon": 1e-6, "correct_bias": False}}


def algorithm_of(optimizer_name: str) -> str:
    if optimizer_name not in ALGORITHMS:
        raise ValueError(f"training_optimizer_name: got {optimizer_name!r}, expected one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[optimizer_name]


def settings_of(weight: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine is told about a weight, from the attributes a user gave it."""
    settings: dict[str, Any] = {}
    for name, value in attributes.items():
        if name not in SETTINGS:
            raise ValueError(f"attribute of {weight!r}: got {name!r}, expected one of {', '.join(SETTINGS)}")
        if not isinstance(value, float | int):
            text = "Optimizer attributes must be either float or int."
            raise ValueError(f"{text} {name!r} of {weight!r}: got {value!r}")
        settings[SETTINGS[name]] = bool(value) if name in FLAGS else float(value)
    return settings


class WeightAttributes:
    """`map_optimizer_attributes` of a user, asked once per trained weight."""

    def __init__(self, algorithm: str, ask: Callable[[str], Mapping[str, Any]] | None) -> None:
        self.algorithm, self.ask = algorithm, ask
        self.shared: dict[str, tuple[str, Any]] = {}

    def __call__(self, weight: str) -> dict[str, Any]:
        attributes = (self.ask(weight) if self.ask else None) or {}
        settings = settings_of(weight, attributes)
        if self.algorithm == "lamb":
            self._check_shared(weight, attributes)
        return settings

    def _check_shared(self, weight: str, attributes: Mapping[str, Any]) -> None:
        for name in SHARED:
            value = attributes.get(name)
            first, expected = self.shared.setdefault(name, (weight, value))
            if value != expected:
                text = f"LambOptimizer has one {name!r} for all weights: got {value} for {weight!r}"
                raise ValueError(f"{text}, expected {expected} as for {first!r}")
