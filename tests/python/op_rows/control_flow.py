"""If, Loop, Scan."""

from __future__ import annotations

import numpy as np
import onnx
from op_case import Row, case, const, data


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

# onnx.reference knows no loop without iterations, no scan along another axis.
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
]


def batched_sum(lens: np.ndarray | None, state: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    sums = np.cumsum(x, axis=1, dtype=np.float32) + state[:, None]
    lens = np.full(len(x), x.shape[1]) if lens is None else lens
    for row, n in zip(sums, lens, strict=True):
        row[n:] = 0
    return [np.stack([row[n - 1] for row, n in zip(sums, lens, strict=True)]), sums]
