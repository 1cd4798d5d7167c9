"""Pointwise activations."""

import torch
from op_case import FLOATS, Row, case, const, unary
from op_oracle import from_torch


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


CLIP = [
    case((2, 3), const(-0.5, "row"), const(0.5, "row")),
    case((7,), None, const(0.0, "row")),
    case((0,)),
    case((3, 5), (), None),
]
SLOPES = [((2, 3, 5), (2, 3, 5)), ((2, 3), (3,)), ((2, 3, 4), (3, 1)), ((0, 3), (3,)), ((5,), ())]

ROWS = [
    Row("Relu", unary(), dtypes=(*FLOATS, "int32", "int8"), opset=(28, 13, 7), grad=[0], bench=(1024, 1024)),
    Row("LeakyRelu", unary(), attrs=[{}, {"alpha": 0.3}], dtypes=FLOATS, opset=(28, 7), grad=[0], bench=(1024, 1024)),
    Row("Sigmoid", unary(), dtypes=FLOATS, opset=(28, 7), grad=[0], bench=(1024, 1024)),
    # The reference takes erf from Python's math, element by element.
    Row("Gelu", unary(), attrs=[{}, {"approximate": "tanh"}], dtypes=FLOATS, oracle=from_torch(gelu), grad=[0]),
    Row("PRelu", SLOPES, dtypes=FLOATS, opset=(28, 9, 7), grad=[0, 1]),
    Row("Clip", CLIP, dtypes=(*FLOATS, "int32", "uint8"), opset=(28, 13, 11), grad=[0]),
    Row("Clip", [(2, 3), (0,), ()], attrs=[{}, {"min": -0.5, "max": 0.5}], opset=7, name="Clip-attributes"),
]
