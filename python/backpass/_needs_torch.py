"""Imported before torch by whatever cannot do without it: says what to install where it is missing."""

from backpass import _needs_onnx  # noqa: F401

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "this part of Backpass works on PyTorch modules, and the package torch is not installed; "
        "pip install 'backpass[torch]'",
        name="torch",
    ) from None
