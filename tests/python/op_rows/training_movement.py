"""Movement operators of ORT's training graphs (domain com.microsoft). Oracles in numpy: onnxruntime's inference package
has none of these."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_case import FLOATS, Row, case, const, data

MS = "com.microsoft"


def concat_training(*inputs: Any, axis: int) -> Any:
    return np.concatenate(inputs, axis), np.array([x.shape[axis] for x in inputs])


def split_training(x: Any, sizes: Any, axis: int = 0) -> Any:
    return list(np.split(x, np.cumsum(sizes)[:-1], axis))


def gather_grad(shape: Any, indices: Any, dy: Any, axis: int = 0) -> Any:
    dx = np.zeros(shape, dy.dtype)
    axis %= len(shape)
    rows = dy.reshape(*dy.shape[:axis], -1, *dy.shape[axis + np.ndim(indices) :])
    np.add.at(np.moveaxis(dx, axis, 0), np.asarray(indices).reshape(-1), np.moveaxis(rows, axis, 0))
    return dx


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


def slice_grad(dy: Any, shape: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    dx = np.zeros(shape, dy.dtype)
    where = [slice(None)] * len(shape)
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        where[axis] = slice(starts[i], ends[i], 1 if steps is None else steps[i])
    dx[tuple(where)] = dy
    return dx


def gradient_args(a: Any, b: Any) -> Any:
    rank = max(len(a), len(b))
    full_a, full_b = [0] * (rank - len(a)) + list(a), [0] * (rank - len(b)) + list(b)
    axes = range(rank - 1, -1, -1)
    repeated = [[i for i in axes if x[i] != y[i] and x[i] < 2] for x, y in ((full_a, full_b), (full_b, full_a))]
    return [np.array(axes, np.int64) for axes in repeated]


def unpad(x: Any, indices: Any) -> Any:
    return x.reshape(-1, *x.shape[2:])[indices], np.array(x.shape[:2])


def pad(x: Any, indices: Any, dims: Any) -> Any:
    out = np.zeros((dims[0] * dims[1], *x.shape[1:]), x.dtype)
    out[indices] = x
    return out.reshape(*dims, *x.shape[1:])


def accumulate(total: Any, value: Any, signal: Any = True) -> Any:
    return total + value if np.all(signal) else total


def accumulate_v2(total: Any, value: Any, overwrite: Any = False) -> Any:
    return np.array([True]), value if np.all(overwrite) else total + value


ROWS = [
    Row(
        "ConcatTraining",
        [case((2, 3), (2, 1), (2, 4), axis=1), case((0, 2), (3, 2), axis=0)],
        dtypes=FLOATS,
        domain=MS,
        outputs=2,
        oracle=concat_training,
        grad=[0, 1],
    ),
    Row(
        "SplitTraining",
        [case((2, 6, 3), const([2, 0, 4]), axis=1), case((7,), const([1, 1, 5]))],
        dtypes=FLOATS,
        domain=MS,
        outputs=3,
        oracle=split_training,
        grad=[0],
    ),
    Row(
        "GatherGrad",
        [
            case(const([5, 4]), const([4, 0, -1, 4]), (4, 4)),
            case(const([3, 5, 70]), const([[1, 1], [4, 1]]), (3, 2, 2, 70), axis=1),
            case(const([3, 5]), const([], "int32"), (3, 0), axis=-1),
        ],
        dtypes=FLOATS,
        domain=MS,
        oracle=gather_grad,
    ),
    Row(
        "GatherElementsGrad",
        [
            case((2, 4), const([3, 4]), const([[2, 0, 2, 1], [2, 0, -1, 1]])),
            case((3, 5), const([3, 4]), const([[1, 1, 1, 0, 3]] * 3), axis=1),
        ],
        dtypes=FLOATS,
        domain=MS,
        oracle=gather_elements_grad,
    ),
    Row(
        "GatherNDGrad",
        [
            case(const([3, 4, 2]), const([[0, 1], [2, -1], [0, 1]]), (3, 2)),
            case(const([2, 3, 4]), const([[[1], [1]], [[-2], [0]]]), (2, 2, 4), batch_dims=1),
        ],
        dtypes=FLOATS,
        domain=MS,
        oracle=gather_nd_grad,
    ),
    Row(
        "SliceGrad",
        [
            case((2, 4), const([5, 4]), const([1]), const([9]), const([0]), const([3])),
            case((3, 2), const([3, 4]), const([0, 1]), const([3, 3])),
            case((2,), const([5]), const([-1]), const([0]), const([0]), const([-2])),
        ],
        dtypes=FLOATS,
        domain=MS,
        oracle=slice_grad,
    ),
    Row(
        "ShrunkenGather",
        [case((5, 4), const([4, 0])), case((3, 6), const([1, 2, 5]), axis=1)],
        dtypes=FLOATS,
        domain=MS,
        oracle=lambda x, i, axis=0: np.take(x, i, axis),
        grad=[0],
    ),
    Row(
        "BroadcastGradientArgs",
        [
            case(np.array([2, 1, 5]), np.array([3, 5])),
            case(np.array([4]), np.array([4])),
            case(np.array([1, 1]), np.array([2, 3, 4])),
            case(const([7, 1]), const([1, 2])),
        ],
        domain=MS,
        outputs=2,
        oracle=gradient_args,
        sized=False,
    ),
    Row(
        "FlattenAndUnpad",
        [case((2, 3, 4), const([0, 2, 5])), case((2, 2), const([3]))],
        dtypes=FLOATS,
        domain=MS,
        outputs=2,
        oracle=unpad,
        grad=[0],
    ),
    Row(
        "PadAndUnflatten",
        [case((3, 4), const([0, 2, 5]), const([2, 3])), case((0, 2), const([], "int64"), const([1, 2]))],
        dtypes=FLOATS,
        domain=MS,
        oracle=pad,
        grad=[0],
    ),
    Row("PassThrough", [case((2, 3), (4,))], domain=MS, outputs=2, oracle=lambda *x: list(x)),
    Row("Group", [case((2, 3), (4,))], domain=MS, oracle=lambda *_: np.array([True])),
    Row(
        "ZeroGradient", [case((2, 3), np.array([True]))], dtypes=FLOATS, domain=MS, oracle=lambda x, _: np.zeros_like(x)
    ),
    Row(
        "InPlaceAccumulator",
        [
            case((2, 3), (2, 3)),
            case((5,), (5,), np.array([True])),
            case((5,), (5,), np.array([False])),
            case((3,), data(3, dtype="float16")),
        ],
        dtypes=FLOATS,
        domain=MS,
        oracle=accumulate,
    ),
    Row(
        "InPlaceAccumulatorV2",
        [case((2, 3), (2, 3)), case((5,), (5,), np.array([True])), case((5,), (5,), np.array([False]))],
        dtypes=FLOATS,
        domain=MS,
        outputs=2,
        oracle=accumulate_v2,
    ),
]
