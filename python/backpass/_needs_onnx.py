"""Imported before the package onnx by whatever cannot do without it: says what to install where it is missing.

Running and training from artifacts need numpy alone, so that a device need not carry onnx and protobuf about.
"""

import importlib


def need(package: str, use: str) -> None:
    """Raises a ModuleNotFoundError that says what to install, where `package` is missing."""
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        text = f"this part of Backpass {use} not installed; pip install 'backpass[{package}]'"
        raise ModuleNotFoundError(text, name=package) from None


need("onnx", "reads or writes models with the package onnx, which is")
