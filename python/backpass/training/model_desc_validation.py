"""Descriptions of a model's inputs and outputs: checked, and completed with element types when those are known."""

from __future__ import annotations

import importlib.util
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backpass.optim._require import require
from backpass.training._description_schema import schema
from backpass.training._needs_trainer import need

LEARNING_RATE_IO_DESCRIPTION_NAME = "__learning_rate"
ALL_FINITE_IO_DESCRIPTION_NAME = "__all_finite"
LOSS_SCALE_INPUT_IO_DESCRIPTION_NAME = "__loss_scale_input_name"
GRADIENT_ACCUMULATION_IO_DESCRIPTION_NAME = "__gradient_accumulation_name"

_InputDescription = namedtuple("InputDescription", ["name", "shape"])  # type: ignore[name-match]
_InputDescriptionTyped = namedtuple("InputDescriptionTyped", ["name", "shape", "dtype"])  # type: ignore[name-match]
_OutputDescription = namedtuple("OutputDescription", ["name", "shape", "is_loss"])  # type: ignore[name-match]
_OutputDescriptionTyped = namedtuple(  # type: ignore[name-match]
    "OutputDescriptionTyped", ["name", "shape", "is_loss", "dtype", "dtype_amp"]
)


def _element_type(name: str) -> Any:
    """torch's type of that name, or numpy's where there is no torch."""
    if importlib.util.find_spec("torch") is None:
        return np.dtype(name)
    import torch

    return getattr(torch, name)


class _ORTTrainerModelDesc:
    """``{"inputs": [(name, shape)], "outputs": [(name, shape[, is_loss])]}``, checked. Extents are numbers, or names
    of those that vary."""

    _main_class_name = "_ORTTrainerModelDesc"
    _InputDescription = _InputDescription
    _InputDescriptionTyped = _InputDescriptionTyped
    _OutputDescription = _OutputDescription
    _OutputDescriptionTyped = _OutputDescriptionTyped

    def __init__(self, model_desc: Mapping[str, Any]) -> None:
        validator = need("cerberus", "the description of a model").Validator(schema())
        if not validator.validate(dict(model_desc)):
            raise ValueError(f"Invalid model_desc: {validator.errors}")
        self._original = dict(model_desc)
        self.inputs: list[Any] = [_InputDescription(name, list(shape)) for name, shape in model_desc["inputs"]]
        self.outputs: list[Any] = [
            _OutputDescription(name, list(shape), bool(is_loss and is_loss[0]))
            for name, shape, *is_loss in model_desc["outputs"]
        ]
        self._all_finite: str | None = None
        self._loss_scale_input: str | None = None
        self._gradient_accumulation: str | None = None

    @property
    def loss_index(self) -> int:
        """Which of the outputs is the loss."""
        losses = [place for place, output in enumerate(self.outputs) if output.is_loss]
        require(len(losses) == 1, f"Only one loss output is supported ({len(losses)} were specified)")
        return losses[0]

    @property
    def learning_rate(self) -> Any:
        return _InputDescriptionTyped(LEARNING_RATE_IO_DESCRIPTION_NAME, [1], _element_type("float32"))

    @property
    def all_finite(self) -> Any:
        return self._described(self._all_finite, [1], "bool")

    @all_finite.setter
    def all_finite(self, name: str | None) -> None:
        self._all_finite = _checked(name)

    @property
    def loss_scale_input(self) -> Any:
        return self._described(self._loss_scale_input, [], "float32")

    @loss_scale_input.setter
    def loss_scale_input(self, name: str | None) -> None:
        self._loss_scale_input = _checked(name)

    @property
    def gradient_accumulation(self) -> Any:
        return self._described(self._gradient_accumulation, [1], "bool")

    @gradient_accumulation.setter
    def gradient_accumulation(self, name: str | None) -> None:
        self._gradient_accumulation = _checked(name)

    def add_type_to_input_description(self, index: int, dtype: Any) -> None:
        """Tells the element type of an input."""
        _check_place(index, self.inputs)
        name, shape = self.inputs[index][:2]
        self.inputs[index] = _InputDescriptionTyped(name, shape, dtype)

    def add_type_to_output_description(self, index: int, dtype: Any, dtype_amp: Any = None) -> None:
        """Tells the element type of an output, and the one it has under mixed precision."""
        _check_place(index, self.outputs)
        name, shape, is_loss = self.outputs[index][:3]
        self.outputs[index] = _OutputDescriptionTyped(name, shape, is_loss, dtype, dtype_amp)

    @staticmethod
    def _described(name: str | None, shape: list[int], dtype: str) -> Any:
        return None if name is None else _InputDescriptionTyped(name, shape, _element_type(dtype))

    def __repr__(self) -> str:
        return f"{{'inputs': {self.inputs!r}, 'outputs': {self.outputs!r}}}"


def _checked(name: str | None) -> str | None:
    require(
        name is None or (isinstance(name, str) and name != ""),
        f"a name must be a string that is not empty, not {name!r}",
    )
    return name


def _check_place(index: int, descriptions: Sequence[Any]) -> None:
    require(
        isinstance(index, int) and 0 <= index < len(descriptions),
        f"'index' must be an int from 0 to {len(descriptions) - 1}, not {index!r}",
    )
