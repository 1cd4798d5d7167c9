"""What ``onnxruntime.training`` holds at its top after `backpass.compat.install`."""

from backpass import artifacts

__all__ = ["artifacts", "is_ortmodule_available"]

__path__: list[str] = []  # a package to `import`, whose parts backpass.compat knows


def is_ortmodule_available() -> bool:
    """Whether ORTModule can be imported."""
    return False
