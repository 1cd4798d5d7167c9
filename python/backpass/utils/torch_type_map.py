"""Element types by three names: torch's, that of TorchScript, ONNX's."""

from __future__ import annotations

from backpass import _needs_torch  # noqa: F401

# isort: split

from typing import Any

import torch

Code: Any = torch.onnx.TensorProtoDataType

_TYPES: dict[str, tuple[Any, torch.dtype | None]] = {
    "Bool": (Code.BOOL, torch.bool),
    "Byte": (Code.UINT8, torch.uint8),
    "Char": (Code.INT8, torch.int8),
    "Short": (Code.INT16, torch.int16),
    "Int": (Code.INT32, torch.int32),
    "Long": (Code.INT64, torch.int64),
    "UInt16": (Code.UINT16, torch.uint16),
    "UInt32": (Code.UINT32, torch.uint32),
    "UInt64": (Code.UINT64, torch.uint64),
    "Half": (Code.FLOAT16, torch.float16),
    "BFloat16": (Code.BFLOAT16, torch.bfloat16),
    "Float": (Code.FLOAT, torch.float32),
    "Double": (Code.DOUBLE, torch.float64),
    "ComplexFloat": (Code.COMPLEX64, torch.complex64),
    "ComplexDouble": (Code.COMPLEX128, torch.complex128),
    "Float8_e4m3fn": (Code.FLOAT8E4M3FN, torch.float8_e4m3fn),
    "Float8_e4m3fnuz": (Code.FLOAT8E4M3FNUZ, torch.float8_e4m3fnuz),
    "Float8_e5m2": (Code.FLOAT8E5M2, torch.float8_e5m2),
    "Float8_e5m2fnuz": (Code.FLOAT8E5M2FNUZ, torch.float8_e5m2fnuz),
    "Undefined": (Code.UNDEFINED, None),
}
_CODE_OF = {dtype: code for code, dtype in _TYPES.values()}
_DTYPE_OF = {int(code): dtype for code, dtype in _TYPES.values()}


def pytorch_type_to_onnx_dtype(dtype_or_scalar_type: torch.dtype | str) -> Any:
    """ONNX's code of ``torch.float32`` or ``"Float"``."""
    if isinstance(dtype_or_scalar_type, str):
        return _known(dtype_or_scalar_type)[0]
    if dtype_or_scalar_type not in _CODE_OF:
        raise _unsupported(dtype_or_scalar_type)
    return _CODE_OF[dtype_or_scalar_type]


def pytorch_scalar_type_to_pytorch_dtype(dtype: str) -> torch.dtype | None:
    """``torch.float32`` of ``"Float"``."""
    if not isinstance(dtype, str):
        raise AssertionError(f"dtype: got {type(dtype).__name__}, expected the name of a scalar type")
    return _known(dtype)[1]


def onnx_dtype_to_pytorch_dtype(dtype: Any) -> torch.dtype | None:
    """``torch.float32`` of ONNX's code 1."""
    if not isinstance(dtype, Code | int) or int(dtype) not in _DTYPE_OF:
        raise _unsupported(dtype)
    return _DTYPE_OF[int(dtype)]


def _known(name: str) -> tuple[Any, torch.dtype | None]:
    if name not in _TYPES:
        raise _unsupported(name)
    return _TYPES[name]


def _unsupported(found: object) -> RuntimeError:
    return RuntimeError(f"Unsupported dtype {found}: expected one of {', '.join(_TYPES)}, or what they stand for")
