"""TrainStepInfo: where a training run stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from backpass.optim._require import require
from backpass.optim.config import _OptimizerConfig

__all__ = ["TrainStepInfo"]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass
class TrainStepInfo:
    """What schedules of the learning rate and loss scalers are told.

    `step` counts calls of train_step, `optimization_step` updates of the weights. `all_finite` says whether the last
    step's gradients were. While `fetches` holds names of outputs, steps return those only.
    """

    optimizer_config: _OptimizerConfig
    all_finite: bool = True
    fetches: list[str] = field(default_factory=list)
    optimization_step: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        require(
            isinstance(self.optimizer_config, _OptimizerConfig),
            "'optimizer_config' must be optim.SGDConfig, AdamConfig or LambConfig",
        )
        require(isinstance(self.all_finite, bool), f"'all_finite' must be a bool, not {self.all_finite!r}")
        require(
            isinstance(self.fetches, list) and all(isinstance(name, str) for name in self.fetches),
            f"'fetches' must be a list of strings, not {self.fetches!r}",
        )
        for name in ("optimization_step", "step"):
            value = getattr(self, name)
            require(_is_count(value), f"'{name}' must be an int that is not negative, not {value!r}")
