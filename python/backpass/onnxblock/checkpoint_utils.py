"""save_checkpoint, load_checkpoint_to_model: parameters between models and checkpoint files."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx
from onnx import TensorProto, numpy_helper

from backpass import _core
from backpass._convert import to_engine, to_numpy
from backpass._core import InvalidInput
from backpass._weights import array_of


def save_checkpoint(
    parameters: tuple[Sequence[TensorProto], Sequence[TensorProto]] | None,
    path: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Writes trained and frozen parameters, as `TrainingBlock.parameters` returns them.

    A nominal checkpoint has their names and types, not their data.
    """
    if parameters is None:
        raise InvalidInput("parameters: got None, expected (trained, frozen), as TrainingBlock.parameters() returns")
    state = _core.CheckpointState()
    for tensors, requires_grad in zip(parameters, (True, False), strict=True):
        for tensor in tensors:
            if nominal_checkpoint:
                state.add_nominal(tensor.name, tensor.data_type, requires_grad)
            else:
                state.add_parameter(tensor.name, to_engine(array_of(tensor)), requires_grad)
    state.save(os.fspath(path))


def load_checkpoint_to_model(path: str | os.PathLike[str], model: onnx.ModelProto) -> None:
    """Replaces, in place, the initializers that the checkpoint has parameters for: all of them, or, on error, none."""
    state = _core.CheckpointState.load(os.fspath(path))
    if state.is_nominal:
        raise InvalidInput(f"{os.fspath(path)!r} is a nominal checkpoint: it has no data to load into a model")
    chosen = [tensor for tensor in model.graph.initializer if state.has_parameter(tensor.name)]
    if state.parameter_names and not chosen:
        raise InvalidInput(f"{os.fspath(path)!r} is of another model: none of its parameters is an initializer")
    found = [numpy_helper.from_array(to_numpy(state.parameter(tensor.name)), tensor.name) for tensor in chosen]
    for old, new in zip(chosen, found, strict=True):
        if (new.data_type, new.dims) != (old.data_type, old.dims):
            raise InvalidInput(f"parameter {old.name!r}: got {_type(new)}, expected {_type(old)}, as in the model")
    for old, new in zip(chosen, found, strict=True):
        old.CopyFrom(new)


def _type(tensor: TensorProto) -> str:
    return f"{TensorProto.DataType.Name(tensor.data_type).lower()}{list(tensor.dims)}"
