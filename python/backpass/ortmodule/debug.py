"""DebugOptions and LogLevel: what ORTModule tells and which models it leaves on disk."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx


class LogLevel(enum.IntEnum):
    """How much is said."""

    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5

    @property
    def python_level(self) -> int:
        """The level of Python's logging."""
        return max(10 * self, logging.DEBUG)


@dataclass(frozen=True)
class SaveOnnx:
    """Which models are written, and where."""

    save: bool
    name_prefix: str
    path: str

    def write(self, model: onnx.ModelProto | Callable[[], bytes], stage: str, training: bool) -> None:
        """Writes ``<prefix>_<stage>_<training|inference>.onnx`` if models are to be saved, and only then makes them."""
        if self.save:
            data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model()
            mode = "training" if training else "inference"
            (Path(self.path) / f"{self.name_prefix}_{stage}_{mode}.onnx").write_bytes(data)


@dataclass(frozen=True)
class Logging:
    log_level: LogLevel


class DebugOptions:
    """Says how much ORTModule logs and whether it saves the models on its way.

    With ``save_onnx`` these appear in ``save_path`` (the current folder by default): ``<onnx_prefix>_<stage>_<mode>``
    with the stages ``torch_exported`` (as captured), ``post_processed`` (the same: nothing is left to do),
    ``optimized_pre_grad`` (what register_graph_optimizer's functions made of it), when training ``optimized`` (with
    gradients), and ``execution_model`` (after rewriting, before it is laid out for running; operators of domain
    ``backpass`` in it run in Backpass alone), and the modes ``training`` and ``inference``.
    ``ORTMODULE_LOG_LEVEL`` and ``ORTMODULE_SAVE_ONNX_PATH`` win over what is given here.
    """

    def __init__(
        self,
        log_level: LogLevel = LogLevel.WARNING,
        save_onnx: bool = False,
        onnx_prefix: str = "",
        save_path: str = "",
        config: object = None,  # of the original, which does not read it either
    ) -> None:
        self.log_level, self.save_onnx, self.onnx_prefix = log_level, save_onnx, onnx_prefix  # as they were given
        self.logging = Logging(_log_level(log_level))
        self.save_onnx_models = _save_onnx(save_onnx, onnx_prefix, save_path)


def _log_level(level: LogLevel) -> LogLevel:
    if not isinstance(level, LogLevel):
        raise TypeError(f"log_level: got {type(level).__name__}, expected a LogLevel")
    name = os.environ.get("ORTMODULE_LOG_LEVEL")
    return level if name is None else read_level("environment variable ORTMODULE_LOG_LEVEL", name)


def read_level(what: str, name: str) -> LogLevel:
    """The level of this name; ``what`` is where it was given."""
    if name not in LogLevel.__members__:
        raise ValueError(f"{what}: got {name!r}, expected {', '.join(LogLevel.__members__)}")
    return LogLevel[name]


def _save_onnx(save: bool, prefix: str, path: str) -> SaveOnnx:
    if not save:
        return SaveOnnx(False, "", "")
    if not isinstance(prefix, str):
        raise TypeError(f"onnx_prefix: got {type(prefix).__name__}, expected a string")
    if not prefix:
        raise ValueError("onnx_prefix: got an empty string, expected the beginning of the files' names")
    folder = os.environ.get("ORTMODULE_SAVE_ONNX_PATH") or path or os.getcwd()
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise OSError(f"save_path: got {folder!r}, expected a folder that can be written to")
    return SaveOnnx(True, prefix, folder)


def rank() -> int:
    """The number of this process among those that train together; 0 when it is alone."""
    import torch.distributed

    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    return 0 if alone else torch.distributed.get_rank()


def make_logger(level: LogLevel) -> logging.Logger:
    """The logger of ORTModule. Processes other than the first only say what is worse than a warning."""
    logger = logging.getLogger("backpass.ortmodule")
    number = rank()
    if number:
        logger = logger.getChild(f"rank-{number}")
    logger.setLevel(max(level.python_level, logging.ERROR) if number else level.python_level)
    return logger
