"""Loss scales of mixed precision, under the original's names.

Mixed precision means bfloat16 here, whose range is that of float32: no gradient vanishes or overflows for want of a
scale. A scale that a script sets is kept and stored with the state, and the gradients are the same with and without.
"""

from backpass.training.amp import loss_scaler
from backpass.training.amp.loss_scaler import DynamicLossScaler, LossScaler

__all__ = ["DynamicLossScaler", "LossScaler", "loss_scaler"]
