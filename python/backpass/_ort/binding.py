"""IOBinding: inputs and outputs of a session, bound before it runs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass._core import InvalidInput
from backpass._ort.errors import InvalidArgument
from backpass._values import OrtValue, dtype_of, on_cpu

if TYPE_CHECKING:
    from backpass._ort.session import InferenceSession


class UnboundError(InvalidInput, InvalidArgument):
    """Something is not bound, or to nothing."""


class IOBinding:
    """Inputs are read where they are when the session runs. Outputs are written where they are bound to, or made."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray[Any, Any]) -> None:
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Memory of the caller's, who keeps it alive."""
        on_cpu(device_type)
        self._inputs[name] = _array_at(buffer_ptr, element_type, shape)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Without ``buffer_ptr`` the session makes the output; with it, it is written there."""
        on_cpu(device_type)
        is_placed = buffer_ptr is not None and shape is not None
        self._outputs[name] = OrtValue(_array_at(buffer_ptr, element_type, shape)) if is_placed else None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._outputs[name] = ortvalue

    def synchronize_inputs(self) -> None:
        """Nothing to wait for: memory is the CPU's."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for: memory is the CPU's."""

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def run(self) -> None:
        if not self._outputs:
            raise UnboundError("IOBinding: got no outputs, expected at least one; bind it with bind_output(name)")
        results = self._session.run(list(self._outputs), self._inputs)
        self._results = []
        for result, place in zip(results, self._outputs.values(), strict=True):
            if place is not None:
                place.update_inplace(result)
            self._results.append(place or OrtValue(result))

    def get_outputs(self) -> list[OrtValue]:
        return self._results

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        return self._results

    def copy_outputs_to_cpu(self) -> list[Any]:
        return [value.numpy() for value in self._results]

    def __repr__(self) -> str:
        return f"IOBinding(inputs={list(self._inputs)}, outputs={list(self._outputs)})"


def _array_at(address: int | None, element_type: Any, shape: Sequence[int] | None) -> np.ndarray[Any, Any]:
    """The memory at an address as an array."""
    dtype = dtype_of(element_type)
    extents = tuple(int(extent) for extent in shape or ())
    if any(extent < 0 for extent in extents) or not address:
        shown = f"address {address}, shape {list(extents)}"
        raise UnboundError(f"buffer: got {shown}, expected memory and extents from 0 on")
    size = int(np.prod(extents, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_uint8 * size).from_address(int(address))
    found: np.ndarray[Any, Any] = np.frombuffer(memoryview(memory), np.uint8).view(dtype).reshape(extents)
    return found
