"""The factor that keeps 16-bit gradients from vanishing or overflowing, and its rule."""

from __future__ import annotations

DOUBLE_AFTER = 2000
LARGEST = float(1 << 24)


class LossScaler:
    """Doubles the scale after `up_scale_window` finite updates in a row, and halves it after one that was not."""

    def __init__(
        self,
        loss_scale_input_name: str,
        is_dynamic_scale: bool,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = DOUBLE_AFTER,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = LARGEST,
    ) -> None:
        self.loss_scale_input_name_ = loss_scale_input_name
        self.is_dynamic_scale_ = is_dynamic_scale
        self.initial_loss_scale_ = loss_scale
        self.up_scale_window_ = up_scale_window
        self.min_loss_scale_ = min_loss_scale
        self.max_loss_scale_ = max_loss_scale
        self.reset()

    def reset(self) -> None:
        self.loss_scale_ = self.initial_loss_scale_
        self.stable_steps_ = 0

    def update_loss_scale(self, is_all_finite: bool) -> None:
        """Told after each update whether all gradients were finite."""
        if not self.is_dynamic_scale_:
            return
        self.stable_steps_ = self.stable_steps_ + 1 if is_all_finite else 0
        if not is_all_finite:
            self.loss_scale_ = max(self.min_loss_scale_, self.loss_scale_ / 2)
        elif self.stable_steps_ >= self.up_scale_window_:
            self.loss_scale_ = min(self.max_loss_scale_, self.loss_scale_ * 2)
            self.stable_steps_ = 0
