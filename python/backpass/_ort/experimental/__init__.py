"""What ``onnxruntime.training.experimental`` holds: export_gradient_graph."""

from backpass import _needs_torch  # noqa: F401

# isort: split

from backpass._ort.experimental.gradient_graph import export_gradient_graph

__all__ = ["export_gradient_graph"]
