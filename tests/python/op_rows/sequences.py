"""Sequences and optionals."""

from __future__ import annotations

import numpy as np
from op_case import ANY, Row, case, const

RAGGED = [(2, 3), (4,), ()]
NUMBERS = [np.full((2, 3), i, np.float32) for i in range(3)]

# onnx.reference knows no insertion at the end by number.
ROWS = [
    Row("SequenceConstruct", [case((2, 3), (1,)), case((4,))], dtypes=ANY, sized=False, grad=[0, 1]),
    Row(
        "SequenceAt",
        [case(NUMBERS, np.array(1)), case(NUMBERS, const(-3))],
        sized=False,
        grad=[0],
        grad_inputs=[case(RAGGED, np.array(i)) for i in (0, 2, -1, -3)],
    ),
    Row(
        "SequenceInsert",
        [case(NUMBERS, (2, 2)), case(NUMBERS, (2, 2), np.array(-2)), case(NUMBERS, (1,), np.array(3))],
        oracle="ort",
        grad=[0, 1],
        grad_inputs=[case(RAGGED, (2, 2)), *(case(RAGGED, (2, 2), np.array(i)) for i in (-2, 3, 0))],
    ),
    Row(
        "SequenceErase",
        [case(NUMBERS), case(NUMBERS, np.array(0)), case(NUMBERS, np.array(-1))],
        grad=[0],
        grad_inputs=[case(RAGGED), *(case(RAGGED, np.array(i)) for i in (0, 1, -3))],
    ),
    Row("Optional", [case((2, 3)), case((0,))], opset=(28, 15), oracle=lambda x: x, sized=False, grad=[0]),
    Row("SequenceLength", [case(NUMBERS)]),
    Row("SequenceEmpty", [case(dtype=7)]),
    Row(
        "SplitToSequence",
        [case((7, 2), const(3)), case((7, 2), const([3, 0, 4])), case((3, 4)), case((3, 4), axis=-1, keepdims=0)],
        dtypes=ANY,
        opset=(28, 11),
        grad=[0],
    ),
    Row(
        "ConcatFromSequence",
        [case(NUMBERS, axis=1), case([(2, 3), (2, 3)], axis=-1, new_axis=1)],
        sized=False,
        grad=[0],
        grad_inputs=[
            case([(2, 3), (2, 1), (2, 2)], axis=1),
            case([(2, 3), (2, 3)], axis=-1, new_axis=1),
            case([(2, 0), (2, 3)], axis=-1),
            case([(3,)], axis=0),
        ],
    ),
]
