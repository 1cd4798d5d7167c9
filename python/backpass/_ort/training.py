"""What ``onnxruntime.training`` holds at its top after `backpass.compat.install`."""

import enum
import importlib
import importlib.util
from typing import Any

from backpass import compat

__all__ = ["PropagateCastOpsStrategy", "artifacts", "is_ortmodule_available"]  # noqa: F822  # by __getattr__

__path__: list[str] = []  # a package to `import`, whose parts backpass.compat knows


class PropagateCastOpsStrategy(enum.IntFlag):
    """Kept for scripts: the engine runs the casts a model has."""

    NONE = 0
    INSERT_AND_REDUCE = 1
    FLOOD_FILL = 2


def is_ortmodule_available() -> bool:
    """Whether ORTModule can be imported: it needs torch."""
    return importlib.util.find_spec("torch") is not None


def __getattr__(name: str) -> Any:
    """``from onnxruntime.training import api`` asks the module itself, by the name it has here."""
    if name == "ORTModule":
        return importlib.import_module("backpass.ortmodule").ORTModule
    place = compat.PARTS.get(f"onnxruntime.training.{name}")
    if place is None:
        raise AttributeError(f"module 'onnxruntime.training' has no attribute {name!r}")
    return importlib.import_module(place)
