"""LossScaler, and DynamicLossScaler, which finds a scale by trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backpass.optim._require import require

if TYPE_CHECKING:
    from backpass.training.train_step_info import TrainStepInfo

__all__ = ["DynamicLossScaler", "LossScaler"]


class LossScaler:
    """What a loss is multiplied by before its gradients are computed. One's own is a subclass with `update`."""

    def __init__(self, loss_scale: float) -> None:
        self._input_name: str | None = None
        self.loss_scale = loss_scale
        self._initial_loss_scale = float(loss_scale)

    @property
    def input_name(self) -> str | None:
        return self._input_name

    @input_name.setter
    def input_name(self, name: str | None) -> None:
        require(
            name is None or (isinstance(name, str) and name != ""), "'input_name' must be a string that is not empty"
        )
        self._input_name = name

    @property
    def loss_scale(self) -> float:
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        require(
            isinstance(scale, (int, float)) and not isinstance(scale, bool) and scale > 0,
            f"'loss_scale' must be a number above 0, not {scale!r}",
        )
        self._loss_scale = float(scale)

    def reset(self) -> None:
        """Goes back to the scale it was made with."""
        self._loss_scale = self._initial_loss_scale

    def update(self, train_step_info: TrainStepInfo) -> float:
        """The scale after a step whose gradients were, or were not, `all_finite`."""
        raise NotImplementedError(f"{type(self).__name__} must define update(train_step_info) -> loss scale")


class DynamicLossScaler(LossScaler):
    """Doubles the scale after `up_scale_window` finite steps in a row, halves it after one that is not."""

    def __init__(
        self,
        automatic_update: bool = True,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = float(1 << 24),
    ) -> None:
        super().__init__(loss_scale)
        self.automatic_update = automatic_update
        self.up_scale_window = up_scale_window
        self.min_loss_scale = min_loss_scale
        self.max_loss_scale = max_loss_scale
        self._stable_steps_count = 0

    def reset(self) -> None:
        super().reset()
        self._stable_steps_count = 0

    def update(self, train_step_info: TrainStepInfo) -> float:
        if not self.automatic_update:
            return self.loss_scale
        if not train_step_info.all_finite:
            self.loss_scale = max(self.min_loss_scale, self.loss_scale / 2)
            self._stable_steps_count = 0
            return self.loss_scale
        self._stable_steps_count += 1
        if self._stable_steps_count >= self.up_scale_window:
            self.loss_scale = min(self.max_loss_scale, self.loss_scale * 2)
            self._stable_steps_count = 0
        return self.loss_scale
