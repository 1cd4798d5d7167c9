"""What ``onnxruntime.backend`` holds: ONNX's interface for backends, as functions."""

from backpass.backend import Backend

__all__ = ["is_compatible", "prepare", "run", "supports_device"]

is_compatible = Backend.is_compatible
prepare = Backend.prepare
run = Backend.run_model
supports_device = Backend.supports_device
