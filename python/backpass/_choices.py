"""What `generate_artifacts` has names for. Needs nothing, so that the command line can tell without onnx."""

from enum import Enum


class LossType(Enum):
    """Losses that need no custom block."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(Enum):
    """Optimizers that need no custom block."""

    AdamW = 1
    SGD = 2
