"""A description beside the ONNX model it is of."""

from __future__ import annotations

from typing import Any

from backpass.optim._require import require
from backpass.training._utils import dtype_of_onnx


def check_names(model: Any, description: Any) -> None:
    """AssertionError for an input or output that the model does not have."""
    for kind, described, found in (
        ("input", description.inputs, model.graph.input),
        ("output", description.outputs, model.graph.output),
    ):
        names = [value.name for value in found]
        for one in described:
            require(one.name in names, f"model_desc: the model has no {kind} '{one.name}', it has {names}")
            declared = found[names.index(one.name)].type.tensor_type
            rank = len(declared.shape.dim) if declared.HasField("shape") else len(one.shape)
            fits = kind == "output" or rank == len(one.shape)
            require(fits, f"model_desc: {kind} '{one.name}': got {one.shape}, expected {rank} axes as in the model")


def add_types(model: Any, description: Any) -> None:
    """Element types as the model tells them."""
    inputs = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    outputs = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    for place, one in enumerate(description.inputs):
        description.add_type_to_input_description(place, dtype_of_onnx(inputs[one.name]))
    for place, one in enumerate(description.outputs):
        description.add_type_to_output_description(place, dtype_of_onnx(outputs[one.name]))
