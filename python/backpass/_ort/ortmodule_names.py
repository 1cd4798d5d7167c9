"""What else ``onnxruntime.training.ortmodule`` holds."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from backpass._core import set_seed
from backpass._ort import torch_cpp_extensions
from backpass._ort.torch_cpp_extensions import is_installed as is_torch_cpp_extensions_installed
from backpass.ortmodule import fallback as _fallback
from backpass.ortmodule.fallback import (
    FallbackPolicy as _FallbackPolicy,
)
from backpass.ortmodule.fallback import (
    ORTModuleFallbackException,
    ORTModuleInitException,
    wrap_exception,
)
from backpass.ortmodule.options import RuntimeOptions

__all__ = [
    "MINIMUM_RUNTIME_PYTORCH_VERSION_STR",
    "ONNXRUNTIME_CUDA_VERSION",
    "ONNXRUNTIME_ROCM_VERSION",
    "ONNX_OPSET_VERSION",
    "ORTMODULE_FALLBACK_POLICY",
    "ORTMODULE_FALLBACK_RETRY",
    "ORTMODULE_IS_DETERMINISTIC",
    "ORTMODULE_ONNX_EXPORT_CONTEXT",
    "ORTMODULE_TORCH_CPP_DIR",
    "ORTModuleFallbackException",
    "ORTModuleInitException",
    "_FallbackPolicy",
    "_defined_from_envvar",
    "_fallback",
    "export_context",
    "is_ortmodule_available",
    "is_torch_cpp_extensions_installed",
    "override_torch_cuda_manual_seed",
    "override_torch_manual_seed",
    "torch_cpp_extensions",
    "torch_cuda_manual_seed",
    "torch_manual_seed",
    "wrap_exception",
]

MINIMUM_RUNTIME_PYTORCH_VERSION_STR = "2.13.0"
ONNX_OPSET_VERSION = RuntimeOptions().onnx_opset_version
ORTMODULE_FALLBACK_POLICY = _fallback.DEFAULT_POLICY
ORTMODULE_FALLBACK_RETRY = RuntimeOptions().fallback_retry
ORTMODULE_IS_DETERMINISTIC = torch.are_deterministic_algorithms_enabled()
ONNXRUNTIME_CUDA_VERSION = ONNXRUNTIME_ROCM_VERSION = None
ORTMODULE_ONNX_EXPORT_CONTEXT = [False]
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


def is_ortmodule_available() -> bool:
    return True


torch_manual_seed = torch.manual_seed
torch_cuda_manual_seed = torch.cuda.manual_seed


def override_torch_manual_seed(seed: int) -> torch.Generator:
    """torch's seed, and the engine's."""
    set_seed(int(seed) & (2**63 - 1))
    return torch_manual_seed(seed)


def override_torch_cuda_manual_seed(seed: int) -> None:
    """torch's seed for GPUs, and the engine's."""
    set_seed(int(seed) & (2**63 - 1))
    torch_cuda_manual_seed(seed)
