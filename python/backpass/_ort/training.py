"""What ``onnxruntime.training`` holds at its top after `backpass.compat.install`."""

import importlib
from types import ModuleType

from backpass import artifacts, compat

__all__ = ["artifacts", "is_ortmodule_available"]

__path__: list[str] = []  # a package to `import`, whose parts backpass.compat knows


def is_ortmodule_available() -> bool:
    """Whether ORTModule can be imported."""
    return False


def __getattr__(name: str) -> ModuleType:
    """``from onnxruntime.training import api`` asks the module itself, by the name it has here."""
    place = compat.PARTS.get(f"onnxruntime.training.{name}")
    if place is None:
        raise AttributeError(f"module 'onnxruntime.training' has no attribute {name!r}")
    return importlib.import_module(place)
