"""OrtValue: a tensor, or a sequence of them, under onnxruntime's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backpass._convert import CODE_OF_DTYPE, DTYPE_OF_CODE, STRING
from backpass._core import InvalidInput, Unsupported

Array = np.ndarray[Any, Any]
_TYPE_NAMES = {"float32": "float", "float64": "double", "object": "string"}


class OrtValue:
    """Holds numpy arrays in the memory they came in, so that operators that update in place do so visibly."""

    def __init__(self, value: Array | list[Array]) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        _on_cpu(device_type)
        return OrtValue(np.ascontiguousarray(numpy_obj).reshape(numpy_obj.shape))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """``element_type`` is a numpy type, or ONNX's code for one."""
        _on_cpu(device_type)
        dtype = DTYPE_OF_CODE[element_type] if isinstance(element_type, int) else np.dtype(element_type)
        return OrtValue(np.zeros(tuple(shape), dtype))

    @staticmethod
    def ort_value_from_sequence(values: Sequence[Array]) -> OrtValue:
        return OrtValue([np.asarray(v) for v in values])

    def numpy(self) -> Any:
        """The elements; memory is shared."""
        return self._value

    def to_dlpack(self) -> Any:
        return self._tensor().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @staticmethod
    def from_dlpack(value: Any, is_bool_tensor: bool = False) -> OrtValue:
        array = np.from_dlpack(value)
        return OrtValue(array.view(np.bool_) if is_bool_tensor else array)

    def update_inplace(self, np_arr: Array) -> None:
        if np_arr.shape != self._tensor().shape:
            raise InvalidInput(f"OrtValue: got shape {list(np_arr.shape)}, expected {self.shape()}, its own")
        np.copyto(self._tensor(), np_arr, casting="no")

    def shape(self) -> list[int]:
        return list(self._tensor().shape)

    def data_ptr(self) -> int:
        return int(self._tensor().ctypes.data)

    def element_type(self) -> int:
        """ONNX's code."""
        dtype = self._tensor().dtype
        return STRING if dtype.kind in "OUST" else CODE_OF_DTYPE[dtype]

    def data_type(self) -> str:
        first = self._value[0] if isinstance(self._value, list) else self._value
        name = f"tensor({_TYPE_NAMES.get(first.dtype.name, first.dtype.name)})"
        return f"seq({name})" if isinstance(self._value, list) else name

    def device_name(self) -> str:
        return "cpu"

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        return False

    def has_value(self) -> bool:
        return self._value is not None

    def _tensor(self) -> Array:
        if not isinstance(self._value, np.ndarray):
            raise InvalidInput("OrtValue: got a sequence, expected a tensor")
        return self._value


def _on_cpu(device_type: str) -> None:
    if device_type.split(":")[0].lower() != "cpu":
        raise Unsupported(f"device {device_type!r}: expected 'cpu'")
