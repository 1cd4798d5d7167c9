"""Imported before torch by whatever cannot do without it: says what to install where it is missing."""

from backpass._needs_onnx import need

need("torch", "works on PyTorch modules, and the package torch is")
