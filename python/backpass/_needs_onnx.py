"""Imported before the package onnx by whatever cannot do without it: says what to install where it is missing.

Running and training from artifacts need numpy alone, so that a device need not carry onnx and protobuf about.
"""

try:
    import onnx  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "onnx":
        raise
    raise ModuleNotFoundError(
        "this part of Backpass reads or writes models with the package onnx, which is not installed; "
        "pip install 'backpass[onnx]'",
        name="onnx",
    ) from None
