"""Backpass reads, plans and runs ONNX models on CPUs."""

from backpass._core import version as __version__

__all__ = ["__version__"]
