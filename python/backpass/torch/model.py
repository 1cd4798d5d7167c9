"""ExportedModel: an ONNX model and how its inputs and outputs belong to a torch module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import onnx
import torch

from backpass.torch.builder import GraphBuilder

InputKind = Literal["parameter", "buffer", "user", "symint", "constant", "python"]
OutputKind = Literal["user", "buffer_mutation", "input_mutation", "condition"]


@dataclass
class InputSpec:
    """One placeholder of the fx graph.

    ``target`` is the torch name of a parameter or buffer, or the position of a user input among all leaves of the
    user's arguments. A ``constant`` has its tensor in ``value`` and becomes an initializer; a ``python`` value was
    specialised (numbers, None, strings): it is no ONNX input, and calls must bring the same.
    """

    name: str
    kind: InputKind
    target: str | int | None = None
    value: Any = None
    dtype: torch.dtype | None = None
    shape: tuple[int | str, ...] = ()  # an int was specialised: another extent needs another export


@dataclass
class OutputSpec:
    """One output of the ONNX graph; ``target`` names the buffer that a ``buffer_mutation`` updates, or is the position
    of the user input that an ``input_mutation`` updates. Where a ``condition`` (one at most, the last) is false, the
    module would not have computed the other outputs: it decides by the contents of tensors."""

    name: str
    kind: OutputKind
    target: str | int | None = None
    dtype: torch.dtype | None = None
    shape: tuple[int | str, ...] = ()


@dataclass
class Slot:
    """Where one leaf of the user's result comes from: output ``index``, input ``index`` (both into the lists of
    ExportedModel), or a ``constant`` value. With ``symint`` it is 0-D and stands for a Python number."""

    source: Literal["output", "input", "constant"]
    index: int = -1
    value: Any = None
    symint: bool = False


@dataclass
class Fallback:
    """An operator that torch itself runs, and why."""

    op: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op} ('{self.node}'): {self.reason}"


@dataclass
class ExportedModel:
    """What export_graph makes. ``inputs`` are the ONNX graph's, in order; ``python_inputs`` were specialised."""

    proto: onnx.ModelProto
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    output_template: list[Slot]
    in_spec: Any = None
    out_spec: Any = None
    python_inputs: list[InputSpec] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    python_ops: list[str] = field(default_factory=list)
    builder: GraphBuilder | None = None
    guards: list[str] = field(default_factory=list)
    """Conditions on the shapes of user inputs, in Python, under which the graph is what the module computes."""
    without_gradients: list[str] = field(default_factory=list)
    """Constants of the graph that are tensors which require gradients: the module uses, but does not register them."""
    draft: bool = False
    """Branches that depend on data were taken as the example takes them."""
    unguarded: list[str] = field(default_factory=list)
    """Decisions on data that no ``condition`` tells of: for other data the graph may be wrong without a word."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent: ``capture`` and ``decompose`` by torch (torch.export, and the second tracing that some graphs need),
    ``simplify`` (instead of that) and ``export`` by Backpass."""

    @property
    def torch_seconds(self) -> float:
        """What torch took, and no change of Backpass makes shorter."""
        return self.seconds.get("capture", 0.0) + self.seconds.get("decompose", 0.0)
