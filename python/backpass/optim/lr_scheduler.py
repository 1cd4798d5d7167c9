"""Schedules of the learning rate: each warms up, then goes its own way.

The rate is evaluated before each update from `TrainStepInfo`: `optimization_step`, which counts updates, and
`optimizer_config.lr`, the rate the schedule starts from.
"""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING

from backpass.optim._require import require

if TYPE_CHECKING:
    from backpass.training.train_step_info import TrainStepInfo

__all__ = [
    "ConstantWarmupLRScheduler",
    "CosineWarmupLRScheduler",
    "LinearWarmupLRScheduler",
    "PolyWarmupLRScheduler",
]


class _LRScheduler(abc.ABC):
    """A schedule of one's own is a subclass with `get_lr`."""

    def __init__(self) -> None:
        self._last_lr: list[float] = []

    @abc.abstractmethod
    def get_lr(self, train_step_info: TrainStepInfo) -> list[float]:
        """The rate of the coming update, as a list of one."""

    def get_last_lr(self) -> list[float]:
        """What the last step used; empty before the first one."""
        return self._last_lr

    def _step(self, train_step_info: TrainStepInfo) -> list[float]:
        self._last_lr = self.get_lr(train_step_info)
        return self._last_lr


class _WarmupLRScheduler(_LRScheduler):
    """Rises from 0 over the first `warmup` (a part of 1) of `total_steps`."""

    def __init__(self, total_steps: int, warmup: float) -> None:
        super().__init__()
        require(
            isinstance(total_steps, int) and not isinstance(total_steps, bool) and total_steps > 0,
            f"total_steps must be an int above 0, not {total_steps!r}",
        )
        require(isinstance(warmup, float) and 0 <= warmup < 1, f"warmup must be a float in [0, 1), not {warmup!r}")
        self.total_steps = total_steps
        self.warmup = warmup

    @property
    def _warmup_steps(self) -> float:
        return self.warmup * self.total_steps

    def get_lr(self, train_step_info: TrainStepInfo) -> list[float]:
        step, base = train_step_info.optimization_step, train_step_info.optimizer_config.lr
        self._check(base)
        if step < self._warmup_steps:
            return [base * step / max(1.0, self._warmup_steps)]
        return [self._after_warmup(step, base)]

    def _check(self, base: float) -> None:
        """Refuses a rate that the schedule cannot start from."""

    @abc.abstractmethod
    def _after_warmup(self, step: int, base: float) -> float: ...

    def __repr__(self) -> str:
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


class ConstantWarmupLRScheduler(_WarmupLRScheduler):
    """Stays at the rate after warm-up."""

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)

    def _after_warmup(self, step: int, base: float) -> float:
        return base


class CosineWarmupLRScheduler(_WarmupLRScheduler):
    """Follows `cycles` periods of a cosine after warm-up; half a period ends at 0."""

    def __init__(self, total_steps: int, cycles: float = 0.5, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        require(isinstance(cycles, float) and cycles > 0, f"cycles must be a float above 0, not {cycles!r}")
        self.cycles = cycles

    def _after_warmup(self, step: int, base: float) -> float:
        progress = (step - self._warmup_steps) / max(1.0, self.total_steps - self._warmup_steps)
        return base * max(0.0, 0.5 * (1.0 + math.cos(2.0 * math.pi * self.cycles * progress)))


class LinearWarmupLRScheduler(_WarmupLRScheduler):
    """Falls along a line after warm-up, to 0 at the last step."""

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)

    def _after_warmup(self, step: int, base: float) -> float:
        return base * max(0.0, (self.total_steps - step) / max(1.0, self.total_steps - self._warmup_steps))


class PolyWarmupLRScheduler(_WarmupLRScheduler):
    """Falls along a power after warm-up, to `lr_end` at the last step, and stays there."""

    def __init__(self, total_steps: int, lr_end: float = 1e-7, power: float = 1.0, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        require(
            isinstance(lr_end, float) and lr_end >= 0, f"lr_end must be a float that is not negative, not {lr_end!r}"
        )
        require(isinstance(power, float) and power >= 0, f"power must be a float that is not negative, not {power!r}")
        self.lr_end = lr_end
        self.power = power

    def _check(self, base: float) -> None:
        require(base > self.lr_end, f"lr_end ({self.lr_end}) must be below the learning rate ({base})")

    def _after_warmup(self, step: int, base: float) -> float:
        if step > self.total_steps:
            return self.lr_end
        left = 1 - (step - self._warmup_steps) / (self.total_steps - self._warmup_steps)
        return float((base - self.lr_end) * left**self.power + self.lr_end)
