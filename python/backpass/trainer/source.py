"""Source: where the models of an Engine come from, a torch module or an ONNX model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import onnx

Fetches = tuple[str, ...] | None


@dataclass
class Capture:
    """A model for the native trainer: for values of some shapes, and for some of the outputs."""

    model: bytes
    loss: str
    outputs: list[str]
    """In the order in which a step gives them; those of ``written`` last."""
    training: bool
    assigned: dict[str, str] = field(default_factory=dict)
    """Outputs that are new values of buffers, and which."""
    written: dict[str, str] = field(default_factory=dict)
    """Outputs that are new values of inputs, which the module changes in place, and which."""
    names: dict[str, str] = field(default_factory=dict)
    """Names in the model of outputs that have another there: a parameter has theirs."""
    to_inference: bool = False
    """Nodes in training mode are still to be turned off."""
    types: dict[str, int] = field(default_factory=dict)
    """ONNX codes of the outputs' element types."""
    about: list[str] = field(default_factory=list)
    """What there is to say of it."""
    details: Any = None
    """Of the source."""

    def name(self, output: str) -> str:
        """Of an output, in the model."""
        return self.names.get(output, output)


class Source(Protocol):
    """What an Engine asks of either kind of model."""

    inputs: list[str]
    outputs: list[str]
    loss: str

    def make_state(self) -> Any:
        """Parameters and buffers, for the native trainer."""

    def refresh(self, state: Any) -> None:
        """Shares tensors again that were replaced since."""

    def key(self, values: Mapping[str, Any], training: bool, fetches: Fetches) -> tuple[Hashable, Mapping[str, Any]]:
        """What a capture depends on, and the values as tensors."""

    def fits(self, capture: Capture, tensors: Mapping[str, Any], training: bool, fetches: Fetches) -> bool:
        """Whether a capture for other shapes is right for these."""

    def capture(self, tensors: Mapping[str, Any], training: bool, fetches: Fetches, state: Any) -> Capture: ...

    def feeds(self, names: Sequence[str], capture: Capture, tensors: Mapping[str, Any]) -> list[Any]:
        """What the native trainer is called with."""

    def results(self, capture: Capture, results: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Any]: ...

    def after_step(self, capture: Capture, updated: bool) -> None:
        """A train step has run."""

    def weights(self, state: Any) -> dict[str, Any]: ...

    def buffers(self, state: Any) -> dict[str, Any]: ...

    def copy_in(self, values: Mapping[str, Any], state: Any) -> None:
        """Of values that fit."""

    def onnx_model(self, state: Any, training: bool) -> onnx.ModelProto: ...

    def session_options(self, options: Any) -> Any: ...

    def described(self) -> str:
        """What it is, in a few words."""
