"""numpy arrays and DLPack objects to and from the engine's tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backpass import _core

try:
    import ml_dtypes
except ModuleNotFoundError:  # then there are no arrays of these types either
    ml_dtypes = None  # type: ignore[assignment]

_NUMPY_NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128",
}  # fmt: skip
_ML_NAMES = {
    16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
    21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
    27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip

STRING, BFLOAT16 = 8, 16


class _Types(dict[int, np.dtype[Any]]):
    """ONNX's codes of element types to numpy's types."""

    def __missing__(self, code: int) -> np.dtype[Any]:
        if code not in _ML_NAMES:
            raise KeyError(code)
        raise _core.Unsupported(
            f"array of {_ML_NAMES[code]}: numpy has no such type, and the package ml_dtypes, which has, is not "
            "installed; pip install ml_dtypes, or take tensors instead of arrays"
        )


DTYPE_OF_CODE = _Types({code: np.dtype(name) for code, name in _NUMPY_NAMES.items()})
if ml_dtypes is not None:
    DTYPE_OF_CODE |= {code: np.dtype(getattr(ml_dtypes, name)) for code, name in _ML_NAMES.items()}
CODE_OF_DTYPE = {dtype: code for code, dtype in DTYPE_OF_CODE.items()}
_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2, 27: 6, 28: 6}


def to_engine(value: Any) -> Any:
    """A feed as the engine takes it: Tensor, list of them, or None."""
    if value is None or isinstance(value, _core.Tensor):
        return value
    if isinstance(value, list):
        return [to_engine(item) for item in value]
    if is_ort_value(value):
        return to_engine(value.numpy())
    if isinstance(value, np.ndarray | np.generic):
        return _from_numpy(np.asarray(value))
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    return _from_numpy(np.asarray(value))


def to_stand_in(value: Any, code: int) -> Any:
    """A feed to plan with: for a tuple, zeros of this shape and element type, whose memory nobody touches."""
    if not isinstance(value, tuple):
        return to_engine(value)
    if any(not isinstance(extent, int | np.integer) or extent < 0 for extent in value):
        raise _core.InvalidInput(f"shape: got {value}, expected numbers of 0 or more")
    shape = [int(extent) for extent in value]
    count = math.prod(shape)
    if code == STRING:
        return _core.Tensor.from_strings([""] * count, shape)
    if code in _NUMPY_NAMES:
        return _from_numpy(np.zeros(shape, DTYPE_OF_CODE[code]))
    if code in _BITS:
        return _core.Tensor.from_array(np.zeros(-(-count * _BITS[code] // 8), np.uint8), code, shape)
    return _core.Tensor.from_array(np.zeros(shape, np.uint16 if code == BFLOAT16 else np.uint8), code, shape)


def to_feeds(feeds: Mapping[str, Any], codes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Feeds by name; what cannot be one is refused by its name. With element types, to plan with."""
    if not isinstance(feeds, Mapping):
        raise TypeError(f"feeds: got {type(feeds).__name__}, expected a mapping from names to arrays")
    if codes is None:
        return {name: to_input(f"input {name!r}", value) for name, value in feeds.items()}
    return {name: to_input(f"input {name!r}", value, codes.get(name, 1)) for name, value in feeds.items()}


def to_input(what: str, value: Any, code: int | None = None) -> Any:
    """The same for one; ``what`` is what a message calls it. With ``code``, to plan with."""
    try:
        return to_engine(value) if code is None else to_stand_in(value, code)
    except _core.InvalidInput as error:
        raise _core.InvalidInput(f"{what}: {error}") from None


def is_ort_value(value: Any) -> bool:
    """An OrtValue, onnxruntime's or Backpass's; without importing either."""
    return hasattr(value, "ortvalue_from_numpy")


def _from_numpy(array: np.ndarray[Any, Any]) -> _core.Tensor:
    if array.dtype.kind in "OUST":
        return _core.Tensor.from_strings(_texts(array), list(array.shape))
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    code = CODE_OF_DTYPE.get(array.dtype)
    if code is None:
        raise _core.InvalidInput(f"got an array of {array.dtype}, expected an element type that ONNX has")
    if not array.flags.c_contiguous:
        array = array.copy()
    if code in _BITS:
        return _core.Tensor.from_array(_pack(array, _BITS[code]), code, list(array.shape))
    carrier = array if code in _NUMPY_NAMES else array.view(np.uint8 if array.itemsize == 1 else np.uint16)
    if not carrier.flags.aligned:
        carrier = carrier.copy()
    return _core.Tensor.from_array(carrier, code, list(array.shape))


def _from_dlpack(value: Any) -> _core.Tensor:
    detached = value.detach() if hasattr(value, "detach") else value
    if hasattr(detached, "resolve_neg"):  # torch negates and conjugates by a mark, which DLPack does not carry
        detached = detached.resolve_conj().resolve_neg()
    if hasattr(detached, "contiguous"):
        detached = detached.contiguous()
    if str(getattr(detached, "dtype", "")).endswith("bfloat16"):
        return _core.Tensor.from_array(detached, BFLOAT16, list(detached.shape))
    return _from_numpy(np.from_dlpack(detached))


def _texts(array: np.ndarray[Any, Any]) -> list[str | bytes]:
    items = array.ravel().tolist()
    for item in items:
        if not isinstance(item, str | bytes):
            what = "an object" if array.ndim == 0 else "an array of objects, one of them"
            raise _core.InvalidInput(f"got {what} of type {type(item).__name__}, expected an array of numbers or texts")
    return items


def _pack(array: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    rows = np.unpackbits(array.ravel().view(np.uint8)[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(rows, bitorder="little")


def _unpack(packed: np.ndarray[Any, Any], code: int, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    bits, count = _BITS[code], math.prod(shape)
    rows = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    values = np.packbits(rows, axis=1, bitorder="little").ravel()
    if code in (22, 26):  # signed: extend the sign bit
        sign = 1 << (bits - 1)
        values = ((values ^ sign).astype(np.int8) - np.int8(sign)).view(np.uint8)
    return values.view(DTYPE_OF_CODE[code]).reshape(shape)


def to_numpy(value: Any) -> Any:
    """An engine result as numpy: array, list for a sequence, None for an empty optional. Memory is shared."""
    if value is None:
        return None
    if isinstance(value, list):
        return [to_numpy(item) for item in value]
    code = value.dtype
    if code == STRING:
        return np.array(value.strings(), dtype=object).reshape(value.shape)
    if code in _BITS:
        return _unpack(value.bytes_array(), code, value.shape)
    if code in _NUMPY_NAMES:
        return value.array()
    return value.bytes_array().view(DTYPE_OF_CODE[code]).reshape(value.shape)
