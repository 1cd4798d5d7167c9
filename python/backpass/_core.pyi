"""The Backpass engine."""

from collections.abc import Sequence
import os
from typing import Annotated, Any

from numpy.typing import NDArray


version: str = '0.1.0'

class Error(RuntimeError):
    pass

class InvalidInput(Error):
    pass

class Unsupported(Error):
    pass

class InternalBug(Error):
    pass

class Tensor:
    """A dense tensor owned by, or lent to, the engine. Supports DLPack."""

    @staticmethod
    def from_array(array: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], dtype: int, dims: Sequence[int]) -> Tensor:
        """
        Shares the memory of a C-contiguous CPU array (numpy, DLPack) read as ONNX element type `dtype`.
        """

    @staticmethod
    def from_strings(items: Sequence[str], dims: Sequence[int]) -> Tensor: ...

    @property
    def dtype(self) -> int:
        """ONNX code of the element type"""

    @property
    def shape(self) -> tuple: ...

    @property
    def nbytes(self) -> int: ...

    def strings(self) -> list[str]: ...

    def array(self) -> NDArray:
        """numpy view of the memory"""

    def bytes_array(self) -> NDArray:
        """the memory as uint8"""

    def __dlpack__(self, **kwargs: object) -> Any: ...

    def __dlpack_device__(self) -> tuple: ...

class SessionOptions:
    """How a session runs; every default is automatic."""

    def __init__(self) -> None: ...

    @property
    def num_threads(self) -> int: ...

    @num_threads.setter
    def num_threads(self, arg: int, /) -> None: ...

    @property
    def optimize(self) -> bool: ...

    @optimize.setter
    def optimize(self, arg: bool, /) -> None: ...

    @property
    def reference(self) -> bool: ...

    @reference.setter
    def reference(self, arg: bool, /) -> None: ...

    @property
    def profile(self) -> bool: ...

    @profile.setter
    def profile(self, arg: bool, /) -> None: ...

    @property
    def binding_cache(self) -> int: ...

    @binding_cache.setter
    def binding_cache(self, arg: int, /) -> None: ...

class ValueInfo:
    """Name and type of an input or output."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def dtype(self) -> int: ...

    @property
    def extents(self) -> list[str] | None:
        """numbers, or names for what may vary; None when the rank is not known"""

class StepRecord:
    """One executed step."""

    @property
    def name(self) -> str: ...

    @property
    def op(self) -> str: ...

    @property
    def shapes(self) -> str: ...

    @property
    def start_us(self) -> float: ...

    @property
    def duration_us(self) -> float: ...

    @property
    def bytes(self) -> int: ...

class PlanReport:
    """What planning decided for one set of input extents."""

    @property
    def peak_bytes(self) -> int: ...

    @property
    def lower_bound_bytes(self) -> int: ...

    @property
    def constant_bytes(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def views(self) -> int: ...

    @property
    def in_place(self) -> int: ...

    @property
    def late_steps(self) -> int: ...

    def __str__(self) -> str: ...

class Problem:
    """One thing wrong with a model."""

    @property
    def kind(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def op(self) -> str: ...

    @property
    def text(self) -> str: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class Session:
    """A loaded model."""

    @staticmethod
    def from_path(path: str | os.PathLike, options: SessionOptions) -> Session: ...

    @staticmethod
    def from_bytes(model: bytes, options: SessionOptions) -> Session: ...

    def inputs(self) -> list[ValueInfo]: ...

    def outputs(self) -> list[ValueInfo]: ...

    def run(self, names: Sequence[str], feeds: dict) -> list: ...

    def plan(self, feeds: dict) -> PlanReport: ...

    def rewrites(self) -> list[str]: ...

    def graph_text(self) -> str: ...

    def take_profile(self) -> list[StepRecord]: ...

def check_path(path: str | os.PathLike) -> list[Problem]: ...

def check_bytes(model: bytes) -> list[Problem]: ...

class GradientRequest:
    """What to differentiate with respect to what."""

    def __init__(self) -> None: ...

    @property
    def wrt(self) -> list[str]: ...

    @wrt.setter
    def wrt(self, arg: Sequence[str], /) -> None: ...

    @property
    def outputs(self) -> list[str]: ...

    @outputs.setter
    def outputs(self, arg: Sequence[str], /) -> None: ...

    @property
    def seeds_as_inputs(self) -> bool: ...

    @seeds_as_inputs.setter
    def seeds_as_inputs(self, arg: bool, /) -> None: ...

    @property
    def standard_only(self) -> bool: ...

    @standard_only.setter
    def standard_only(self, arg: bool, /) -> None: ...

def grad_path(path: str | os.PathLike, request: GradientRequest) -> bytes: ...

def grad_bytes(model: bytes, request: GradientRequest) -> bytes: ...

def check_gradients_path(path: str | os.PathLike, request: GradientRequest) -> list[Problem]: ...

def check_gradients_bytes(model: bytes, request: GradientRequest) -> list[Problem]: ...

def build_training_model(model: bytes, requires_grad: list[str], frozen: list[str], outputs: list[str]) -> tuple[bytes, bytes]:
    """
    The training and the eval model of a model whose first output is the loss.
    """

def running_statistics(model: bytes) -> list[str]:
    """Initializers that batch normalisations in training mode update."""

def ops() -> list:
    """One dict per registered operator."""
