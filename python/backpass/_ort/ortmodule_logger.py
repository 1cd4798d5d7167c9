"""What scripts take from ``onnxruntime.training.ortmodule._logger``."""

from __future__ import annotations

import logging

from backpass.ortmodule.debug import LogLevel
from backpass.ortmodule.debug import make_logger as configure_ortmodule_logger

__all__ = [
    "ORTMODULE_LOG_LEVEL_MAP",
    "LogColor",
    "LogLevel",
    "configure_ortmodule_logger",
    "ortmodule_loglevel_to_onnxruntime_c_loglevel",
    "ortmodule_loglevel_to_python_loglevel",
]


# By level: that of the engine, from 0 (everything) to 4 (the end of it), and that of Python.
ORTMODULE_LOG_LEVEL_MAP = {
    LogLevel.VERBOSE: [0, logging.NOTSET],
    LogLevel.DEVINFO: [1, logging.DEBUG],
    LogLevel.INFO: [2, logging.INFO],
    LogLevel.WARNING: [2, logging.WARNING],
    LogLevel.ERROR: [3, logging.ERROR],
    LogLevel.FATAL: [4, logging.FATAL],
}


def ortmodule_loglevel_to_onnxruntime_c_loglevel(loglevel: LogLevel) -> int:
    return ORTMODULE_LOG_LEVEL_MAP[LogLevel(loglevel)][0]


def ortmodule_loglevel_to_python_loglevel(loglevel: LogLevel) -> int:
    return ORTMODULE_LOG_LEVEL_MAP[LogLevel(loglevel)][1]


class LogColor:
    """Sequences that colour text in a terminal."""

    HEADER = "\033[95m"
    BLUE = "\033[94m"
    CYAN = "\033[96m"
    GREEN = "\033[92m"
    WARNING = "\033[93m"
    RED = "\033[91m"
    ENDC = "\033[0m"
    BOLD = "\033[1m"
    UNDERLINE = "\033[4m"
