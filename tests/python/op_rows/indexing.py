"""Operators that read or write where an index says, and those whose result is a position."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_case import ANY, FLOATS, NUMBERS, Row, case, const, data

MOVED = (*ANY, "str")


def at(*shape: int, low: int, high: int, dtype: str = "int64") -> Any:
    return data(*shape, dtype=dtype, low=low, high=high)


GATHER = [
    case((5, 4), at(3, low=-5, high=5)),
    case((5, 4, 2), at(2, 3, low=-4, high=4, dtype="int32"), axis=1),
    case((3, 7), const(-1), axis=-1),
    case((9,), at(4, low=0, high=9)),
    case((5, 0), at(3, low=0, high=5)),
    case((5, 4), at(0, low=0, high=5)),
]
ALONG = [
    case((3, 4), at(2, 4, low=-3, high=3)),
    case((3, 4), at(3, 2, low=-4, high=4), axis=1),
    case((2, 3, 4), at(2, 5, 4, low=-3, high=3, dtype="int32"), axis=-2),
    case((6,), at(4, low=0, high=6)),
    case((3, 4), at(0, 4, low=0, high=3)),
    case((300, 2), at(7, 2, low=0, high=300)),
]
SCATTERED = [
    case((5, 3), const([[4, 0, 2], [0, 3, -2]]), (2, 3)),
    case((3, 5), const([[1, 3], [-1, 0]], "int32"), (2, 2), axis=1),
    case((4,), const([3, 1]), (2,)),
    case((2, 4, 2), const([[[3, 0]], [[1, 2]]]), (2, 1, 2), axis=-2),
    case((3,), const(np.zeros(0, np.int64)), (0,)),
]
REPEATED = [case((5, 3), const([[4, 0, 4], [4, 0, -1], [4, 1, 4]]), (3, 3)), case((4,), const([1, 1, 1]), (3,))]
REDUCTIONS = [{"reduction": r} for r in ("add", "mul", "max", "min")]
GATHER_ND = [
    case((3, 4, 2), const([[0, 1], [2, -1]])),
    case((3, 4, 2), const([[[1]], [[-3]]])),
    case((2, 3, 4), const([[1], [-2]]), batch_dims=1),
    case((2, 2), const([[0, 0], [1, 1], [0, 1]])),
    case((2, 2), const(np.zeros((0, 1), np.int64))),
]
SCATTER_ND = [
    case((4, 3), const([[3], [1]]), (2, 3)),
    case((4, 3), const([[3, 1], [-1, 0]]), (2,)),
    case((2, 3, 4), const([[[0, 1], [1, -1]]]), (1, 2, 4)),
    case((4,), const(np.zeros((0, 1), np.int64)), (0,)),
]
REPEATED_ND = [case((4, 3), const([[3], [1], [3], [-1]]), (4, 3)), case((4,), const([[1], [1], [2]]), (3,))]
HOT = [
    case(at(3, low=-4, high=4), const(4), const([0, 1])),
    case(at(2, 3, low=-7, high=9), const([5]), const([2, 7], "int32"), axis=1),
    case(data(4, dtype="float32", low=0, high=3), const(3.0), const([-1.0, 1.5]), axis=0),
    case(at(2, 2, low=0, high=3, dtype="uint8"), const(3, "uint8"), const([False, True]), axis=-2),
    case(at(0, low=0, high=3), const(3), const([0.0, 1.0])),
    case(at(low=0, high=3), const(3), const([0.0, 1.0])),
]
HOT_VALUES = [
    case(at(3, low=-4, high=4), const(4), (2,)),
    case(at(2, 3, low=-7, high=9), const([5]), (2,), axis=1),
    case(data(4, dtype="float32", low=0, high=3), const(3.0), (2,), axis=0),
    case(at(0, low=0, high=3), const(3), (2,)),
]
TOP = [
    case((3, 7), const([2])),
    case((7, 3), const([3]), axis=0),
    case((2, 5, 3), const([5]), axis=1),
    case((4,), const([0])),
]
TIES = data(3, 9, make=lambda rng, shape: rng.integers(0, 4, shape))
TOP_TIES = [case(TIES, const([4])), case(TIES, const([9]))]
UNIQUE = [
    case(TIES),
    case(data(5, 2, 2, make=lambda rng, s: rng.integers(0, 2, s)), axis=0),
    case(data(3, 6, make=lambda rng, s: rng.integers(0, 2, s)), axis=-1),
    case((0,)),
]
CACHE = [
    case((2, 3, 5, 4), (2, 3, 2, 4), np.array([3, 0])),
    case((2, 5, 4), (2, 2, 4)),
    case((3, 4, 2), (3, 4, 1), np.array([1, 0, 1]), axis=-1),
]


def compressed(x: Any, condition: Any, axis: int | None = None) -> Any:
    """numpy fails on a condition longer than nothing."""
    return np.compress(condition, x, axis=axis)


def hot(indices: Any, depth: Any, values: Any, axis: int = -1) -> Any:
    depth = int(np.asarray(depth).reshape(()))
    index = np.expand_dims(np.asarray(indices).astype(np.int64), axis)
    wrapped = np.where(index < 0, index + depth, index)
    shape = [1] * wrapped.ndim
    shape[axis] = depth
    return np.where(wrapped == np.arange(depth).reshape(shape), values[1], values[0]).astype(values.dtype)


NEWEST_OF_ORT = 23  # what the judge reads


def gather_grad(shape: Any, indices: Any, dy: Any, axis: int = 0) -> Any:
    dx = np.zeros(shape, dy.dtype)
    axis %= len(shape)
    rows = dy.reshape(*dy.shape[:axis], -1, *dy.shape[axis + np.ndim(indices) :])
    np.add.at(np.moveaxis(dx, axis, 0), np.asarray(indices).reshape(-1), np.moveaxis(rows, axis, 0))
    return dx


def add_gathered(base: Any, indices: Any, dy: Any, axis: int = 0) -> Any:
    return base + gather_grad(base.shape, indices, dy, axis)


def gather_elements_grad(dy: Any, shape: Any, indices: Any, axis: int = 0) -> Any:
    dx = np.zeros(shape, dy.dtype)
    where = list(np.indices(indices.shape))
    where[axis] = np.asarray(indices)
    np.add.at(dx, tuple(where), dy)
    return dx


def gather_nd_grad(shape: Any, indices: Any, dy: Any, batch_dims: int = 0) -> Any:
    dx = np.zeros(shape, dy.dtype)
    indices = np.asarray(indices)
    for at in np.ndindex(indices.shape[:-1]):
        dx[(*at[:batch_dims], *indices[at])] += dy[at]
    return dx


ROWS = [
    Row("Gather", GATHER, dtypes=MOVED, opset=(28, 11), grad=[0], bench=case((30000, 768), at(512, low=0, high=30000))),
    Row("Gather", [case((5, 4), at(3, low=0, high=5))], opset=7, name="Gather-7"),
    Row("GatherElements", ALONG, dtypes=MOVED, opset=(NEWEST_OF_ORT, 11), oracle="ort", grad=[0]),
    Row("ScatterElements", SCATTERED, dtypes=MOVED, opset=(NEWEST_OF_ORT, 16, 11), oracle="ort", grad=[0, 2]),
    Row(
        "ScatterElements",
        REPEATED,
        attrs=REDUCTIONS,
        dtypes=("float32", "float64", "int32", "int8"),
        opset=NEWEST_OF_ORT,
        oracle="ort",
        grad=[0, 2],
        name="ScatterElements-reduced",
    ),
    Row("Scatter", SCATTERED[:3], opset=9, oracle="ort", grad=[0, 2]),
    Row("GatherND", GATHER_ND, dtypes=MOVED, opset=(NEWEST_OF_ORT, 12), oracle="ort", grad=[0]),
    Row("ScatterND", SCATTER_ND, dtypes=MOVED, opset=(NEWEST_OF_ORT, 16, 11), oracle="ort", grad=[0, 2]),
    Row(
        "ScatterND",
        REPEATED_ND,
        attrs=REDUCTIONS,
        dtypes=("float32", "float64", "int32", "int64"),
        opset=NEWEST_OF_ORT,
        oracle="ort",
        grad=[0, 2],
        name="ScatterND-reduced",
    ),
    Row("OneHot", HOT, opset=(28, 11, 9), oracle=hot, grad=[2], grad_inputs=HOT_VALUES),
    Row("TopK", TOP, attrs=[{}, {"largest": 0}], dtypes=FLOATS, opset=(28, 11), outputs=2, grad=[0]),
    Row("TopK", TOP_TIES, attrs=[{}, {"largest": 0}], dtypes=NUMBERS, outputs=2, name="TopK-ties"),
    Row(
        "TopK", [case((3, 7), k=2), case((7, 3), k=7, axis=0)], opset=7, outputs=2, oracle="ort", name="TopK-attribute"
    ),
    Row("TopK", [case((3, 7), np.array([2]))], opset=10, outputs=2, sized=False, grad=[0], name="TopK-fed"),
    Row("NonZero", [(3, 4), (2, 0), (5,)], dtypes=ANY, opset=(28, 9), sized=False),
    Row(
        "Compress",
        [
            case((3, 4), const([True, False, True])),
            case((2, 3), const([False, True]), axis=1),
            case((4,), const([False] * 4), axis=-1),
        ],
        dtypes=ANY,
        opset=(28, 9),
        oracle=compressed,
        grad=[0],
        sized=False,
    ),
    Row(
        "Unique",
        UNIQUE,
        attrs=[{}, {"sorted": 0}],
        dtypes=("int64", "float32", "float64", "int8", "str"),
        opset=(NEWEST_OF_ORT, 11),
        outputs=4,
        oracle="ort",
        grad=[0],
        grad_inputs=[case((3, 4)), case((3, 2, 2), axis=0), case((2, 3), axis=-1), case((0,))],
        sized=False,
    ),
    Row("TensorScatter", CACHE, attrs=[{}, {"mode": "circular"}], dtypes=ANY, opset=(28, 24), grad=[0, 1]),
    Row(
        "TensorScatter",
        [case((2, 5, 4), (2, 3, 4), np.array([3, 9]))],
        attrs={"mode": "circular"},
        grad=[0, 1],
        name="TensorScatter-wrap",
    ),
    # ---- com.microsoft; onnxruntime's inference package has none of these
    Row(
        "GatherGrad",
        [
            case(const([5, 4]), const([4, 0, -1, 4]), (4, 4)),
            case(const([3, 5, 70]), const([[1, 1], [4, 1]]), (3, 2, 2, 70), axis=1),
            case(const([3, 5]), const([], "int32"), (3, 0), axis=-1),
        ],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=gather_grad,
    ),
    Row(
        "AddGathered",
        [
            case((5, 4), const([4, 0, -1, 4]), (4, 4)),
            case((3, 5, 300), const([[1, 1], [4, 1]]), (3, 2, 2, 300), axis=1),
            case((3, 5), const([], "int32"), (3, 0), axis=-1),
            case((0, 4), const([], "int64"), (0, 4)),
        ],
        dtypes=FLOATS,
        domain="backpass",
        oracle=add_gathered,
    ),
    Row(
        "GatherElementsGrad",
        [
            case((2, 4), const([3, 4]), const([[2, 0, 2, 1], [2, 0, -1, 1]])),
            case((3, 5), const([3, 4]), const([[1, 1, 1, 0, 3]] * 3), axis=1),
        ],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=gather_elements_grad,
    ),
    Row(
        "GatherNDGrad",
        [
            case(const([3, 4, 2]), const([[0, 1], [2, -1], [0, 1]]), (3, 2)),
            case(const([2, 3, 4]), const([[[1], [1]], [[-2], [0]]]), (2, 2, 4), batch_dims=1),
        ],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=gather_nd_grad,
    ),
    Row(
        "ShrunkenGather",
        [case((5, 4), const([4, 0])), case((3, 6), const([1, 2, 5]), axis=1)],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=lambda x, i, axis=0: np.take(x, i, axis),
        grad=[0],
    ),
]
