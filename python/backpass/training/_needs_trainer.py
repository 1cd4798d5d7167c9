"""What ORTTrainer needs besides onnx, asked for when it is used: says what to install where it is missing."""

from __future__ import annotations

import importlib
from typing import Any


def need(package: str, use: str) -> Any:
    """The module `package`, or a ModuleNotFoundError that says what to install."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        text = f"{use} needs the package {package}, which is not installed; pip install 'backpass[trainer]'"
        raise ModuleNotFoundError(text, name=package) from None
