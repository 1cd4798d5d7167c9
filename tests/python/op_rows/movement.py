"""Views, copies and shapes: what is moved, not what is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_case import ANY, FLOATS, Row, case, const, data, unary

MOVED = (*ANY, "str")
SHAPES = [(2, 3, 5), (7,), (), (0,), (3, 0, 2), (2, 1, 3, 2, 1, 2)]

RESHAPE = [
    case((2, 3, 5), const([5, 6])),
    case((2, 3, 5), const([0, -1])),
    case((4, 1), const([2, 1, -1, 1])),
    case((1,), const(np.zeros(0, np.int64))),
    case((0, 3), const([3, 0]), allowzero=1),
]
TRANSPOSE = [
    case((2, 3, 5), perm=[2, 0, 1]),
    case((2, 3, 5), perm=[0, 2, 1]),
    case((2, 3, 5)),
    case((2, 3, 4, 5), perm=[0, 2, 1, 3]),
    case((2, 3, 4, 5), perm=[0, 3, 1, 2]),
    case((33, 70), perm=[1, 0]),
    case((3, 35, 37), perm=[0, 2, 1]),
    case((1, 5, 1, 3), perm=[2, 3, 0, 1]),
    case((2, 3, 1, 2, 3, 2, 2), perm=[6, 0, 5, 2, 4, 3, 1]),
    case((3, 0, 2), perm=[1, 2, 0]),
    case(()),
]
CONCAT = [
    case((2, 3), (2, 1), (2, 4), axis=1),
    case((2, 3), (1, 3), axis=0),
    case((2, 3, 2), (2, 0, 2), axis=-2),
    case((5,), axis=0),
    case((0,), (0,), axis=0),
]
SPLIT = [
    case((2, 6, 3), const([2, 0, 4]), axis=1),
    case((7,), const([1, 1, 5])),
]
EVEN = [(6, 3), (7, 2), (4, 3), (1,), (0, 2)]
SLICE = [
    case((5, 4), const([1]), const([9]), None, const([2])),
    case((5, 4, 3), const([1, -2]), const([3, 2**31 - 1]), const([0, 2])),
    case((5, 4), const([-1, 9]), const([-6, -(2**63)]), const([0, 1]), const([-1, -2])),
    case((9,), const([3], "int32"), const([3], "int32")),
    case((5, 4), const([2]), const([1]), const([-1])),
    case((5,), const([0]), const([5]), const([0]), const([2**62])),
    case((0, 3), const([0]), const([1])),
]
EXPAND = [
    case((3, 1), const([2, 3, 4])),
    case((1, 4), const([3, 1])),
    case((), const([2, 2])),
    case((1, 3), const([0, 3])),
    case((2, 1, 1, 3), const([2, 4, 5, 3])),
]
TILE = [
    case((2, 3), const([2, 2])),
    case((3,), const([0])),
    case((1, 2, 3), const([3, 1, 2])),
    case((), const(np.zeros(0, np.int64))),
    case((0, 2), const([2, 2])),
]
PAD = [
    case((3, 4), const([1, 0, 2, 1])),
    case((2, 3, 4), const([0, 1, 2, 1, 0, 3]), const(1, "row")),
    case((3, 4), const([1, 2]), None, const([-1])),
    case((5,), const([2, 3])),
    case((2, 2, 3), const([0, 1, 0, 0, 0, 0])),
    case((0, 2), const([1, 0, 1, 0])),
]
MIRROR = [case((4, 5), const([2, 1, 3, 4])), case((3,), const([5, 7])), case((2, 3, 4), const([0, 1, 0, 0, 2, 0]))]
CROP = [
    case((3, 4), const([0, -1, 2, -2])),
    case((2, 5, 2), const([0, -2, 0, 0, 1, 0]), const(1, "row")),
    case((), const(np.zeros(0, np.int64))),
]
DEPTH = [data(2, 8, 3, 2), data(1, 4, 1, 1), data(0, 4, 2, 2), data(1, 18, 2, 5)]
CENTER = [
    case((5, 4, 3), const([3, 7, 3])),
    case((5, 4), const([8], "int32"), axes=[1]),
    case((5, 7, 3), const([2, 10]), axes=[-3, -2]),
]
TRILU = [case((3, 4), const(k)) for k in (0, 1, -1, 4, -9)] + [
    case((2, 3, 3)),
    case((2, 0, 3)),
    case((4, 2), np.int64(1)),
]
SEQUENCE = [case((5, 3, 2), np.array([5, 1, 3])), case((4, 4), np.array([4, 3, 2, 1]))]
RANGES = [
    case(const(a, "row"), const(b, "row"), const(c, "row"))
    for a, b, c in [(1, 9, 3), (10, 4, -2), (0, 0, 1), (3, 1, 1)]
]
TYPES = [{}, {"dtype": 1}, {"dtype": 9, "k": -1}, {"dtype": 7, "k": 2}, {"k": 100}]

# The same with shapes, bounds and counts that are computed at run time.
FED = {
    "Reshape": [case((6,), np.array([-1, 2])), case((2, 3), np.array([0, 3]))],
    "Split": [case((2, 3), np.array([1, 1, 1]), axis=-1), case((4,), np.array([0, 4, 0]))],
    "Slice": [
        case((9,), np.array([7]), np.array([1]), np.array([0]), np.array([-3])),
        case((5, 4), np.array([1], np.int32), np.array([9], np.int32), np.array([-1], np.int32)),
    ],
    "Expand": [case((2, 3), np.array([1])), case((3, 1), np.array([2, 1, 4]))],
    "Tile": [case((2, 3), np.array([2, 0])), case((2,), np.array([3]))],
    "Pad": [case((3, 4), np.array([1, 2]), None, np.array([-1])), case((3,), np.array([2, 1]), (), mode="edge")],
    "CenterCropPad": [case((2, 3), np.array([0, 4]))],
    "Squeeze": [case((1, 3), np.array([0]))],
    "Unsqueeze": [case((3, 5), np.array([0, 3]))],
    "ConstantOfShape": [case(np.array([4, 2]))],
}

UNRANKED = ("Squeeze", "Unsqueeze")  # onnx.checker refuses gradients that arrive as inputs of unknown rank


def pad_by_slicing(x: Any, pads: Any, value: Any = 0) -> Any:
    """numpy refuses negative pads."""
    if x.ndim == 0:
        return x
    begins, ends = np.split(np.asarray(pads), 2)
    cut = x[tuple(slice(max(0, -b), n + min(0, e)) for n, b, e in zip(x.shape, begins, ends, strict=True))]
    return np.pad(cut, [(max(0, b), max(0, e)) for b, e in zip(begins, ends, strict=True)], constant_values=value)


def flat(x: Any, axis: int = 1) -> Any:
    return x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))


def eye(x: Any, dtype: int = 0, k: int = 0) -> Any:
    chosen = {0: x.dtype, 1: np.dtype(np.float32), 9: np.dtype(np.bool_), 7: np.dtype(np.int64)}[dtype]
    return np.eye(*x.shape, k=k).astype(chosen)


def concat_training(*inputs: Any, axis: int) -> Any:
    return np.concatenate(inputs, axis), np.array([x.shape[axis] for x in inputs])


def split_training(x: Any, sizes: Any, axis: int = 0) -> Any:
    return list(np.split(x, np.cumsum(sizes)[:-1], axis))


def slice_grad(dy: Any, shape: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    dx = np.zeros(shape, dy.dtype)
    where = [slice(None)] * len(shape)
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        where[axis] = slice(starts[i], ends[i], 1 if steps is None else steps[i])
    dx[tuple(where)] = dy
    return dx


def unpad(x: Any, indices: Any) -> Any:
    return x.reshape(-1, *x.shape[2:])[indices], np.array(x.shape[:2])


def pad(x: Any, indices: Any, dims: Any) -> Any:
    out = np.zeros((dims[0] * dims[1], *x.shape[1:]), x.dtype)
    out[indices] = x
    return out.reshape(*dims, *x.shape[1:])


def views(x: np.ndarray, *shapes: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(x.ravel(), ends[:-1]), shapes, strict=True)]


ROWS = [
    Row("Shape", SHAPES, attrs=[{}, {"start": 1}, {"start": -2, "end": -1}, {"start": 9, "end": -9}], dtypes=MOVED),
    Row("Shape", SHAPES, opset=(13, 7), name="Shape-whole"),
    Row("Size", SHAPES, dtypes=MOVED, opset=(28, 13, 7)),
    Row("Identity", unary(), dtypes=MOVED, opset=(28, 14, 7), grad=[0]),
    Row("Identity", [case([data(2), data(3, 1)])], opset=(28, 14), sized=False, name="Identity-sequence"),
    Row("Reshape", RESHAPE, dtypes=MOVED, opset=(28, 14), grad=[0]),
    Row("Reshape", RESHAPE[:3], opset=(13, 7), name="Reshape-7"),
    # The reference leaves one extent of nothing to numpy, which refuses.
    Row(
        "Flatten",
        [(2, 3, 5), (4, 2), (3, 0, 2)],
        attrs=[{}, {"axis": 0}, {"axis": 2}],
        dtypes=MOVED,
        opset=(28, 9),
        oracle=flat,
        grad=[0],
    ),
    Row("Flatten", [(2, 3, 5), (4, 2)], attrs=[{"axis": -1}, {"axis": -2}], name="Flatten-negative"),
    Row("Flatten", [()], attrs={"axis": 0}, name="Flatten-scalar"),
    Row(
        "Squeeze",
        [case((1, 3, 1, 5), const([0, -2])), case((1, 1)), case((2, 3)), case((0, 1), const([1]))],
        dtypes=MOVED,
        opset=(28, 13),
        sized=True,
        grad=[0],
    ),
    Row("Squeeze", [case((1, 3, 1, 5), axes=[0, 2]), case((1, 1))], opset=(11, 7), name="Squeeze-attribute"),
    Row(
        "Unsqueeze",
        [case((3, 5), const([0, -1])), case((), const([0])), case((2, 0), const([1])), case((2, 3), const([-2, 0]))],
        dtypes=MOVED,
        opset=(28, 13),
        grad=[0],
    ),
    Row("Unsqueeze", [case((3, 5), axes=[0, 3]), case((), axes=[0])], opset=(11, 7), name="Unsqueeze-attribute"),
    Row(
        "Transpose",
        TRANSPOSE,
        dtypes=MOVED,
        opset=(28, 13, 7),
        grad=[0],
        bench=case((64, 12, 128, 64), perm=[0, 2, 1, 3]),
    ),
    Row("Concat", CONCAT, dtypes=MOVED, opset=(28, 11), grad=[0, 1]),
    Row("Concat", [case((2, 3), (2, 1), axis=1)], opset=7, name="Concat-7"),
    Row("Split", SPLIT, dtypes=MOVED, opset=(28, 13), outputs=3, grad=[0]),
    Row("Split", EVEN, attrs={"num_outputs": 2}, outputs=2, grad=[0], name="Split-even"),
    Row(
        "Split",
        [case((2, 6), axis=1, split=[1, 2, 3]), case((6, 2)), case((3, 6), axis=-1)],
        opset=(11,),
        outputs=3,
        grad=[0],
        name="Split-attribute",
    ),
    Row("Split", [case((2, 6), axis=1, split=[1, 2, 3]), case((6, 2))], opset=7, outputs=3, name="Split-7"),
    Row("Slice", SLICE, dtypes=MOVED, opset=(28, 11, 10), grad=[0]),
    Row(
        "Slice",
        [case((5, 4), starts=[1, -2], ends=[2**31 - 1, -1]), case((5, 4), starts=[0], ends=[3], axes=[1])],
        opset=7,
        name="Slice-attributes",
    ),
    Row("Expand", EXPAND, dtypes=ANY, opset=(28, 8), grad=[0]),
    Row("Tile", TILE, dtypes=MOVED, opset=(28, 7), grad=[0]),
    Row("Pad", PAD, dtypes=ANY, opset=28, grad=[0, 2]),
    Row("Pad", PAD[:1] + PAD[3:5], dtypes=FLOATS, opset=(13, 11), name="Pad-11"),
    Row(
        "Pad",
        MIRROR,
        attrs=[{"mode": "reflect"}, {"mode": "edge"}, {"mode": "wrap"}],
        dtypes=ANY,
        grad=[0],
        name="Pad-mirror",
    ),
    Row("Pad", CROP, dtypes=FLOATS, oracle=pad_by_slicing, grad=[0, 2], name="Pad-crop"),
    Row(
        "Pad",
        [
            case((3, 4), pads=[1, 0, 2, 1], value=1.5),
            case((3, 4), pads=[1, 0, 2, 1], mode="reflect"),
            case((3, 4), pads=[1, 0, 2, 1], mode="edge"),
        ],
        opset=7,
        oracle="ort",
        name="Pad-attributes",
    ),
    Row(
        "DepthToSpace",
        DEPTH[:3],
        attrs=[{"blocksize": 2}, {"blocksize": 2, "mode": "CRD"}],
        dtypes=MOVED,
        opset=(28, 11),
        grad=[0],
    ),
    Row("DepthToSpace", [DEPTH[3]], attrs=[{"blocksize": 3}, {"blocksize": 1}], opset=(13, 7), name="DepthToSpace-7"),
    Row(
        "SpaceToDepth",
        [(2, 3, 4, 6), (1, 2, 0, 2)],
        attrs=[{"blocksize": 2}, {"blocksize": 1}],
        dtypes=MOVED,
        opset=(28, 13, 7),
        grad=[0],
    ),
    Row("SpaceToDepth", [(2, 3, 4, 6)], attrs={"blocksize": 2, "mode": "CRD"}, grad=[0], name="SpaceToDepth-crd"),
    Row("CenterCropPad", CENTER, dtypes=ANY, opset=(28, 18), grad=[0]),
    Row("Trilu", TRILU, attrs=[{}, {"upper": 0}], dtypes=ANY, opset=(28, 14), grad=[0]),
    Row("ReverseSequence", SEQUENCE, dtypes=MOVED, opset=(28, 10), grad=[0]),
    Row(
        "ReverseSequence",
        [case((3, 5, 2), np.array([5, 0, 3]))],
        attrs={"batch_axis": 0, "time_axis": 1},
        grad=[0],
        name="ReverseSequence-batch-first",
    ),
    Row("EyeLike", [(3, 4), (2, 2), (0, 3)], attrs=TYPES, dtypes=ANY, opset=(28, 9), oracle=eye),
    Row(
        "ConstantOfShape",
        [case(const([2, 3])), case(const([4])), case(const(np.zeros(0, np.int64))), case(const([0, 2]))],
        opset=(28, 9),
    ),
    *(
        Row(
            op,
            cases,
            sized=False,
            outputs=3 if op == "Split" else None,
            grad=None if op in ("ConstantOfShape", *UNRANKED) else [0],
            name=f"{op}-fed",
        )
        for op, cases in FED.items()
    ),
    Row(
        "Range",
        RANGES,
        dtypes=("float32", "float64", "int16", "int32", "int64"),
        opset=(28, 11),
        grad=[0, 2],
        grad_inputs=[
            case(np.float64(0.5), np.float64(4.1), np.float64(0.7)),
            case(np.float64(3), np.float64(-3.1), np.float64(-0.5)),
            case(np.float64(3), np.float64(2), np.float64(0.5)),
        ],
    ),
    Row("Range", RANGES, dtypes=("float16", "bfloat16"), name="Range-half"),
    Row(
        "Range",
        [case(np.float32(0.5), np.float32(4.1), np.float32(0.7)), case(np.int64(7), np.int64(-7), np.int64(-4))],
        sized=False,
        name="Range-fed",
    ),
    # ---- com.microsoft; onnxruntime's inference package has none of these
    Row(
        "ConcatTraining",
        [case((2, 3), (2, 1), (2, 4), axis=1), case((0, 2), (3, 2), axis=0)],
        dtypes=FLOATS,
        domain="com.microsoft",
        outputs=2,
        oracle=concat_training,
        grad=[0, 1],
    ),
    Row(
        "SplitTraining",
        [case((2, 6, 3), const([2, 0, 4]), axis=1), case((7,), const([1, 1, 5]))],
        dtypes=FLOATS,
        domain="com.microsoft",
        outputs=3,
        oracle=split_training,
        grad=[0],
    ),
    Row(
        "SliceGrad",
        [
            case((2, 4), const([5, 4]), const([1]), const([9]), const([0]), const([3])),
            case((3, 2), const([3, 4]), const([0, 1]), const([3, 3])),
            case((2,), const([5]), const([-1]), const([0]), const([0]), const([-2])),
        ],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=slice_grad,
    ),
    Row(
        "FlattenAndUnpad",
        [case((2, 3, 4), const([0, 2, 5])), case((2, 2), const([3]))],
        dtypes=FLOATS,
        domain="com.microsoft",
        outputs=2,
        oracle=unpad,
        grad=[0],
    ),
    Row(
        "PadAndUnflatten",
        [case((3, 4), const([0, 2, 5]), const([2, 3])), case((0, 2), const([], "int64"), const([1, 2]))],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=pad,
        grad=[0],
    ),
    Row(
        "View",
        [case((3, 4), const([2, 3]), const([6])), case((8,), const([1, 7, 1]), const([], "int64"))],
        dtypes=FLOATS,
        domain="com.microsoft",
        outputs=2,
        oracle=views,
        grad=[0],
    ),
]
