"""What else ``onnxruntime.training.ortmodule`` holds."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from backpass._ort import torch_cpp_extensions
from backpass.ortmodule import fallback as _fallback
from backpass.ortmodule.options import RuntimeOptions

__all__ = [
    "MINIMUM_RUNTIME_PYTORCH_VERSION_STR",
    "ONNX_OPSET_VERSION",
    "ORTMODULE_FALLBACK_POLICY",
    "ORTMODULE_FALLBACK_RETRY",
    "ORTMODULE_IS_DETERMINISTIC",
    "ORTMODULE_TORCH_CPP_DIR",
    "_defined_from_envvar",
    "_fallback",
    "export_context",
    "torch_cpp_extensions",
]

MINIMUM_RUNTIME_PYTORCH_VERSION_STR = "2.13.0"
ONNX_OPSET_VERSION = RuntimeOptions().onnx_opset_version
ORTMODULE_FALLBACK_POLICY = _fallback.DEFAULT_POLICY
ORTMODULE_FALLBACK_RETRY = RuntimeOptions().fallback_retry
ORTMODULE_IS_DETERMINISTIC = torch.are_deterministic_algorithms_enabled()
ORTMODULE_TORCH_CPP_DIR = os.path.dirname(torch_cpp_extensions.__file__)


def _defined_from_envvar(name: str, default: Any, warn: bool = True) -> Any:
    """An environment variable read as the type of its default, which stands where it cannot be."""
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return type(default)(text)
    except (TypeError, ValueError) as error:
        if warn:
            warnings.warn(f"{name}: got {text!r}: {error}; it stays {default!r}", stacklevel=2)
        return default


@contextlib.contextmanager
def export_context() -> Iterator[None]:
    """In the original, around exports; nothing here needs it."""
    yield
