"""Backpass reads, differentiates, plans and runs ONNX models on CPUs."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from backpass import _waiting  # noqa: F401  # before OpenMP is loaded
from backpass._collection import without_collection
from backpass._core import (
    CancelFlag,
    Cancelled,
    Error,
    InternalBug,
    InvalidInput,
    MachineLimits,
    Tensor,
    Unsupported,
    machine_limits,
    ops,
    set_seed,
)
from backpass._core import version as __version__
from backpass.custom import register_gradient, register_operator
from backpass.gradient import grad
from backpass.profile import Profile
from backpass.session import CheckReport, InferenceSession, NodeArg, SessionOptions, check

if TYPE_CHECKING:
    from backpass.ortmodule import ORTModule as ORTModule
    from backpass.trainer import IODescription as IODescription
    from backpass.trainer import LossScaler as LossScaler
    from backpass.trainer import ModelDescription as ModelDescription
    from backpass.trainer import ORTTrainer as ORTTrainer
    from backpass.trainer import load_checkpoint as load_checkpoint
    from backpass.trainer import save_checkpoint as save_checkpoint

__all__ = [
    "CancelFlag",
    "Cancelled",
    "CheckReport",
    "Error",
    "InferenceSession",
    "InternalBug",
    "InvalidInput",
    "MachineLimits",
    "NodeArg",
    "Profile",
    "SessionOptions",
    "Tensor",
    "Unsupported",
    "__version__",
    "check",
    "grad",
    "machine_limits",
    "ops",
    "register_gradient",
    "register_operator",
    "set_seed",
]

_TRAINER = ("IODescription", "LossScaler", "ModelDescription", "ORTTrainer", "load_checkpoint", "save_checkpoint")


def __getattr__(name: str) -> Any:
    """What needs torch, or few use, is imported when it is first used."""
    if name in _TRAINER:
        return getattr(_imported("backpass.trainer"), name)
    if name == "ORTModule":
        return _imported("backpass.ortmodule").ORTModule
    if name == "ortmodule":
        return _imported("backpass.ortmodule")
    raise AttributeError(f"module 'backpass' has no attribute {name!r}")


def _imported(name: str) -> Any:
    with without_collection():
        return importlib.import_module(name)


def __dir__() -> list[str]:
    """What needs torch only where it can be had: help() and editors ask for every name that is listed."""
    is_there = all(importlib.util.find_spec(package) for package in ("onnx", "torch"))
    return sorted({*globals(), *_TRAINER, *(("ORTModule", "ortmodule") if is_there else ())})
