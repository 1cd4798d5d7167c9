"""If, Loop, Scan, and what works on sequences and optionals."""

from __future__ import annotations

import numpy as np
import onnx
from op_case import ANY, Row, case, const, data

RAGGED = [(2, 3), (4,), ()]
NUMBERS = [np.full((2, 3), i, np.float32) for i in range(3)]


def body(text: str) -> onnx.GraphProto:
    return onnx.parser.parse_graph(text)


RUNNING_SUM = body("b (float[n] s, float[n] x) => (float[n] t, float[n] u) { t = Add(s, x) u = Identity(t) }")
GROWING = body(
    "b (int64 i, bool c, float[n] v) => (bool d, float[m] w, float[1] last)"
    "{ d = Identity(c) one = Constant<value = float[1] {1.0}>() w = Concat<axis = 0>(v, one)"
    "  last = ReduceSum<keepdims = 1>(w) }"
)
COUNTING = body(
    "b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] kept)"
    "{ w = Add(v, v) kept = Identity(w) top = ReduceMax<keepdims = 0>(w)"
    "  limit = Constant<value = float {20.0}>() d = Less(top, limit) }"
)

# onnx.reference knows no loop without iterations, no scan along another axis, no insertion at the end by number.
ROWS = [
    Row(
        "If",
        [case(np.array(True)), case(np.array([False])), case(const(True))],
        attrs={
            "then_branch": body("t () => (float[2, 3] y) { y = Constant<value = float[2, 3] {1,2,3,4,5,6}>() }"),
            "else_branch": body("e () => (float[4] z) { z = Constant<value = float[4] {7,8,9,10}>() }"),
        },
        opset=(28, 16, 11),
        sized=False,
    ),
    Row(
        "Loop",
        [
            case(const(np.int64(3)), const(True), data(2)),
            case(np.array(5), None, data(0)),
            case(np.array(0), np.array(True), data(3)),
            case(np.array(4), np.array(False), data(1)),
        ],
        attrs={"body": GROWING},
        outputs=2,
        sized=False,
        opset=(28, 16, 13),
        oracle="ort",
    ),
    Row(
        "Loop",
        [case(None, const(True), data(3, low=1, high=2)), case(np.array(2), np.array(True), data(3))],
        attrs={"body": COUNTING},
        outputs=2,
        sized=False,
        grad=[2],
        grad_inputs=[case(None, const(True), data(3, low=1, high=2)), case(np.array(2), np.array(True), data(3))],
        name="Loop-while",
    ),
    Row(
        "Scan",
        [
            case((3,), (4, 3)),
            case((3,), (3, 5), scan_input_axes=[1], scan_output_axes=[-1]),
            case((2,), (4, 2), scan_input_directions=[1], scan_output_directions=[1]),
        ],
        attrs={"body": RUNNING_SUM, "num_scan_inputs": 1},
        outputs=2,
        opset=(28, 16, 11, 9),
        oracle="ort",
        grad=[0, 1],
    ),
    # onnx.reference does not know the batched form of opset 8.
    Row(
        "Scan",
        [case(None, (2, 3), (2, 4, 3)), case(np.array([4, 2]), (2, 3), (2, 4, 3))],
        attrs={"body": RUNNING_SUM, "num_scan_inputs": 1},
        outputs=2,
        opset=8,
        name="Scan-batched",
        oracle=lambda lens, s, x, **_: batched_sum(lens, s, x),
    ),
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


def batched_sum(lens: np.ndarray | None, state: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    sums = np.cumsum(x, axis=1, dtype=np.float32) + state[:, None]
    lens = np.full(len(x), x.shape[1]) if lens is None else lens
    for row, n in zip(sums, lens, strict=True):
        row[n:] = 0
    return [np.stack([row[n - 1] for row, n in zip(sums, lens, strict=True)]), sums]
