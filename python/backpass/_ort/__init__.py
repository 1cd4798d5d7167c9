"""What ``onnxruntime`` holds after `backpass.compat.install(runtime=True)`, or where onnxruntime is not installed."""

from backpass._core import set_seed
from backpass._ort.options import ExecutionMode, GraphOptimizationLevel, ModelMetadata, RunOptions, SessionOptions
from backpass._ort.session import PROVIDER, InferenceSession, IOBinding
from backpass._ort.value import OrtValue
from backpass.session import NodeArg

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

__version__ = "1.19.2"  # the interface that is offered: scripts compare it


def get_available_providers() -> list[str]:
    return [PROVIDER]


def get_all_providers() -> list[str]:
    return [PROVIDER]


def get_device() -> str:
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Accepted, without effect: Backpass does not log."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted, without effect: Backpass does not log."""
