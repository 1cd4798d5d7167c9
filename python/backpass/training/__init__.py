"""ORTTrainer of the second generation, with its options; what ``onnxruntime.training`` holds at its top.

Everything is imported when it is first used: training an ONNX model needs no torch.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backpass.ortmodule import ORTModule as ORTModule
    from backpass.training.cast_strategy import PropagateCastOpsStrategy as PropagateCastOpsStrategy
    from backpass.training.orttrainer import ORTTrainer as ORTTrainer
    from backpass.training.orttrainer_options import ORTTrainerOptions as ORTTrainerOptions
    from backpass.training.train_step_info import TrainStepInfo as TrainStepInfo

__all__ = ["ORTTrainer", "ORTTrainerOptions", "PropagateCastOpsStrategy", "TrainStepInfo", "is_ortmodule_available"]

_NAMES = {
    "ORTModule": "backpass.ortmodule",
    "ORTTrainer": "backpass.training.orttrainer",
    "ORTTrainerOptions": "backpass.training.orttrainer_options",
    "PropagateCastOpsStrategy": "backpass.training.cast_strategy",
    "TrainStepInfo": "backpass.training.train_step_info",
    "TrainingParameters": "backpass._ort.training_parameters",
}
_ELSEWHERE = {"optim": "backpass.optim", "utils": "backpass.utils"}  #: parts that scripts look for here


def is_ortmodule_available() -> bool:
    """Whether ORTModule can be imported: it needs torch."""
    return importlib.util.find_spec("torch") is not None


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    inside = f"{__name__}.{name}"
    if not name.startswith("__") and importlib.util.find_spec(inside):
        return importlib.import_module(inside)
    from backpass import compat

    place = _ELSEWHERE.get(name) or compat.PARTS.get(f"onnxruntime.training.{name}")
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(place)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
