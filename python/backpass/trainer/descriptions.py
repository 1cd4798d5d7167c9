"""What a model takes and gives, as the first generation of ORTTrainer is told it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class IODescription:
    """One input or output: its name, its shape (a str is a size that may vary), its element type.

    With `num_classes` it holds numbers of classes, which `generate_sample` draws.
    """

    def __init__(
        self, name: str, shape: Sequence[int | str], dtype: Any = None, num_classes: int | None = None
    ) -> None:
        self.name_ = name
        self.shape_ = shape
        self.dtype_ = dtype
        self.num_classes_ = num_classes

    def __repr__(self) -> str:
        return f"IODescription({self.name_!r}, {list(self.shape_)}, {self.dtype_})"


class ModelDescription:
    """Inputs in the order of the call, labels last; outputs with the loss first."""

    def __init__(self, inputs: Sequence[IODescription], outputs: Sequence[IODescription]) -> None:
        self.inputs_ = inputs
        self.outputs_ = outputs

    def __repr__(self) -> str:
        return f"ModelDescription({list(self.inputs_)}, {list(self.outputs_)})"


def generate_sample(desc: IODescription, device: Any = None) -> Any:
    """A tensor of torch with random values that fits a description; sizes that may vary are 1."""
    import torch

    size = [1 if isinstance(extent, str) else extent for extent in desc.shape_]
    if desc.num_classes_:
        return torch.randint(0, desc.num_classes_, size, dtype=desc.dtype_, device=device)
    return torch.randn(size, dtype=desc.dtype_, device=device)
