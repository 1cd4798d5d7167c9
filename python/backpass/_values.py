"""OrtValue: a tensor, or a sequence of them, under onnxruntime's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backpass._convert import CODE_OF_DTYPE, DTYPE_OF_CODE, STRING
from backpass._core import InvalidInput, Unsupported

Array = np.ndarray[Any, Any]
_TYPE_NAMES = {"float32": "float", "float64": "double", "object": "string"}


class OrtDevice:
    """Where a value is: on the CPU."""

    def __init__(self, device_type: int = 0, memory_type: int = 0, device_id: int = 0) -> None:
        if device_type != self.cpu():
            raise Unsupported(f"device type: got {device_type}, expected {self.cpu()}, the CPU")
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int = 0) -> OrtDevice:
        on_cpu(ort_device_name)
        return OrtDevice(device_id=device_id)

    @staticmethod
    def cpu() -> int:
        return 0

    @staticmethod
    def default_memory() -> int:
        return 0

    def device_type(self) -> int:
        return self.cpu()

    def device_id(self) -> int:
        return self._id

    def __repr__(self) -> str:
        return f"OrtDevice('cpu', {self._id})"


class OrtValue:
    """Holds numpy arrays in the memory they came in, so that operators that update in place do so visibly."""

    def __init__(self, value: Array | list[Array]) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        on_cpu(device_type)
        return OrtValue(np.ascontiguousarray(numpy_obj).reshape(numpy_obj.shape))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Array, onnx_element_type: int) -> OrtValue:
        """The array read as another type of the same width: bfloat16 and others that came as uint16 or uint8."""
        dtype = dtype_of(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise InvalidInput(f"OrtValue: got elements of {data.dtype.itemsize} bytes, expected {dtype.itemsize}")
        return OrtValue(data.view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """``element_type`` is a numpy type, or ONNX's code for one."""
        on_cpu(device_type)
        return OrtValue(np.zeros(tuple(shape), dtype_of(element_type)))

    @staticmethod
    def ortvalue_from_shape_and_onnx_type(
        shape: Sequence[int], onnx_element_type: int, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, onnx_element_type, device_type, device_id)

    @staticmethod
    def ort_value_from_sequence(values: Sequence[Array]) -> OrtValue:
        return OrtValue([np.asarray(v) for v in values])

    def numpy(self) -> Any:
        """The elements; memory is shared."""
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._tensor(), dtype=dtype, copy=copy)

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

    def tensor_size_in_bytes(self) -> int:
        return self._tensor().nbytes

    def data_type(self) -> str:
        """``tensor(float)``, ``seq(tensor(int64))``."""
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

    def __repr__(self) -> str:
        shape = f", shape={self.shape()}" if self.is_tensor() else ""
        return f"OrtValue({self.data_type()}{shape})"


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """Of a numpy type, or of ONNX's code for one."""
    if not isinstance(element_type, int):
        found: np.dtype[Any] = np.dtype(element_type)
        return found
    if element_type == STRING:
        return np.dtype(object)
    try:
        return DTYPE_OF_CODE[element_type]
    except KeyError:
        raise InvalidInput(f"element type: got {element_type}, expected one of ONNX's codes") from None


def on_cpu(device_type: str) -> None:
    """Refuses other devices."""
    if device_type.split(":")[0].lower() != "cpu":
        raise Unsupported(f"device {device_type!r}: expected 'cpu'")
