"""Reductions over axes, positions of extrema, running sums and products, questions about many tensors."""

from typing import Any

import numpy as np
from op_case import FLOATS, NUMBERS, Row, case, const, data
from op_oracle import from_torch

SUM_TYPES = (*FLOATS, "int32", "int64", "uint32", "uint64")
ORDER_TYPES = (*SUM_TYPES, "int8", "uint8", "bool")


def axes_sets(**range_: Any) -> list[Any]:
    """Last, first, middle, several and all axes; runs and columns shorter and longer than vectors; nothing at all."""
    shapes_and_axes = [((2, 3, 5), [2]), ((2, 3, 5), [0, -1]), ((7, 33), [0]), ((4, 9, 17), [1]),
                       ((3, 1, 5, 2), [1, 3]), ((2, 3, 4, 5), [0, 2, 3]), ((3, 4), []), ((3, 0, 2), [1]),
                       ((3, 0, 2), [0]), ((5000,), [0]), ((300, 5), [0])]  # fmt: skip
    return [
        *[
            case(data(*s, **range_), const(np.array(a, np.int64)), keepdims=i % 2)
            for i, (s, a) in enumerate(shapes_and_axes)
        ],
        case(data(2, 3, 5, **range_)),
        case(data(**range_)),
        case(data(2, 3, 5, **range_), const(np.array([], np.int64)), noop_with_empty_axes=1),
    ]


# Enough work for several threads: rows, columns, few results of many elements.
LARGE = [
    case(s, const(a)) for s, a in [((70, 3, 600), [1]), ((70000, 2), [0]), ((2, 1100, 67), [0, 1]), ((200000,), [0])]
]


def by_attribute(**range_: Any) -> list[Any]:
    return [
        case(data(2, 3, 5, **range_), axes=[2], keepdims=0),
        case(data(2, 3, 5, **range_), axes=[0, 1]),
        case(data(7, **range_)),
    ]


def numpy_oracle(function: Any) -> Any:
    """In float64, then rounded; integers stay integers. The reference adds up in the element type or a wider one."""

    def oracle(x: np.ndarray, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> np.ndarray:
        given = axes is not None and len(axes) > 0
        axis = tuple(int(a) for a in axes) if given else () if noop_with_empty_axes else None
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        with np.errstate(all="ignore"):
            result = np.asarray(function(wide, axis=axis, keepdims=bool(keepdims)))
            if x.dtype.kind in "iu" and result.dtype.kind == "f":
                # The mean of nothing has no integer, and the standard leaves it open: 0, as dividing by 0 gives.
                result = np.nan_to_num(result, nan=0.0)
            return result.astype(x.dtype)

    return oracle


ORACLES = {
    "Sum": np.sum,
    "Mean": np.mean,
    "L1": lambda x, **k: np.sum(np.abs(x), **k),
    "L2": lambda x, **k: np.sqrt(np.sum(np.square(x), **k)),
    "SumSquare": lambda x, **k: np.sum(np.square(x), **k),
    "LogSum": lambda x, **k: np.log(np.sum(x, **k)),
    "LogSumExp": np.logaddexp.reduce,
}

EXTREMA = [(2, 3, 5), (7, 33), (5000,), (2, 1, 9), (4, 300)]


CUMULATE = [
    case((3, 4), const(0)),
    case((3, 4), const(-1)),
    case((2, 3, 70), const(1, "int32")),
    case((5,), np.int64(0)),
    case((0, 2), const(0)),
]
DIRECTIONS = [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}]

ODD = np.array([[1, np.inf, -np.inf], [np.nan, 0, -2]], np.float32)

ROWS = [
    *[
        Row(f"Reduce{name}", axes_sets(), dtypes=SUM_TYPES, opset=(28, 18), oracle=numpy_oracle(function), grad=[0])
        for name, function in ORACLES.items()
        if not name.startswith("Log")
    ],
    *[
        Row(
            f"Reduce{name}",
            axes_sets(low=0.1, high=3),
            dtypes=FLOATS,
            opset=(28, 18),
            oracle=numpy_oracle(ORACLES[name]),
            grad=[0],
        )
        for name in ("LogSum", "LogSumExp")
    ],
    Row("ReduceMax", axes_sets(), dtypes=ORDER_TYPES, opset=(28, 18), grad=[0]),
    Row("ReduceMin", axes_sets(), dtypes=ORDER_TYPES, opset=(28, 18), grad=[0]),
    Row("ReduceProd", axes_sets(low=0.99, high=1.01), dtypes=SUM_TYPES, tol=1e-2, opset=(28, 18), grad=[0]),
    *[
        Row(f"Reduce{name}", LARGE, oracle=numpy_oracle(ORACLES.get(name, np.max)), name=f"Reduce{name}-large")
        for name in ("Sum", "Max", "LogSumExp")
    ],
    Row(
        "ReduceSum",
        [case((2, 3, 5), np.array([1])), case((2, 3), np.array([], np.int64))],
        opset=(28, 13),
        sized=False,
        name="ReduceSum-axes-at-run-time",
    ),
    *[
        Row(
            f"Reduce{name}",
            by_attribute(low=0.5, high=2),
            opset=(11, 7),
            tol=1e-4,
            name=f"Reduce{name}-attribute",
            grad=[0],
            torch=False,
        )
        for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
    ],
    *[
        Row(
            name,
            EXTREMA,
            attrs=[
                {},
                {"axis": -1, "keepdims": 0},
                {"axis": -1, "select_last_index": 1},
                {"axis": 0, "select_last_index": 1},
            ],
            dtypes=NUMBERS,
            opset=(28, 12),
        )
        for name in ("ArgMax", "ArgMin")
    ],
    Row(
        "ReduceSumTraining",
        [case((2, 3, 5), const([0, 2])), case((4,), const(np.array([], np.int64)), noop_with_empty_axes=1)],
        domain="com.microsoft",
        oracle=numpy_oracle(np.sum),
        grad=[0],
    ),
    Row(
        "ReduceAllL2",
        [case((3, 4), (5,)), case((2, 2), (0,), ())],
        dtypes=("float32", "float64"),
        domain="com.microsoft",
        oracle=from_torch(lambda *x: sum((v.double() ** 2).sum() for v in x).sqrt().to(x[0].dtype)),
    ),
    Row("CumSum", CUMULATE, attrs=DIRECTIONS, dtypes=(*FLOATS, "int32", "int64", "uint32"), opset=(28, 11), grad=[0]),
    Row("CumProd", CUMULATE, attrs=DIRECTIONS, dtypes=(*FLOATS, "int32", "int64", "uint32"), opset=(28, 26), grad=[0]),
    Row(
        "IsAllFinite",
        [case((2,), (3, 0)), case((2,), ODD), case(ODD[1:], (2,), isinf_only=1), case(ODD[1:], isnan_only=1)],
        domain="com.microsoft",
        oracle=lambda *x, isinf_only=0, isnan_only=0: np.array(
            not any(((not isnan_only) & np.isinf(v) | (not isinf_only) & np.isnan(v)).any() for v in x)
        ),
    ),
    Row(
        "All",
        [np.array([[True, False], [True, True]]), np.ones((3, 7), bool), np.zeros((0, 2), bool)],
        dtypes=("bool",),
        domain="com.microsoft",
        oracle=lambda x: np.all(x),
    ),
]
