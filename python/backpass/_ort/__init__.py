"""What ``onnxruntime`` holds after `backpass.compat.install(runtime=True)`, or where onnxruntime is not installed."""

from backpass._core import set_seed
from backpass._ort.binding import IOBinding
from backpass._ort.errors import (
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoaded,
    NoModel,
    NoSuchFile,
    NotImplemented,
    RuntimeException,
)
from backpass._ort.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    ModelMetadata,
    RunOptions,
    SessionOptions,
)
from backpass._ort.session import PROVIDER, InferenceSession
from backpass._values import OrtDevice, OrtValue
from backpass.session import NodeArg

__all__ = [
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "ModelMetadata",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtDevice",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "RuntimeException",
    "SessionIOBinding",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "print_debug_info",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

__version__ = "1.19.2"  # the interface that is offered: scripts compare it
SessionIOBinding = IOBinding
OrtValueVector = list


def get_available_providers() -> list[str]:
    return [PROVIDER]


def get_all_providers() -> list[str]:
    return [PROVIDER]


def get_device() -> str:
    return "CPU"


def get_version_string() -> str:
    return __version__


def get_build_info() -> str:
    return f"Backpass, as onnxruntime {__version__}"


def has_collective_ops() -> bool:
    return False


def print_debug_info() -> None:
    print(get_build_info())


def enable_telemetry_events() -> None:
    """Accepted, without effect: nothing is ever sent."""


def disable_telemetry_events() -> None:
    """Accepted, without effect: nothing is ever sent."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Accepted, without effect: there is nothing to load."""


def set_default_logger_severity(severity: int) -> None:
    """Accepted, without effect: Backpass does not log."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted, without effect: Backpass does not log."""
