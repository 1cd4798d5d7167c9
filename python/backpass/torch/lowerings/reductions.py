"""Reductions along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import axes_of, axis_of, meta, refuse_complex, result_type
from backpass.torch.lowerings.pointwise.compare import as_bool

aten = torch.ops.aten
Axes = int | Sequence[int] | None


def reduced(b: GraphBuilder, op: str, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    """A reducing operator of ONNX over these axes, over all of them for None."""
    refuse_complex(x)
    if x.rank == 0:
        return x
    listed = axes_of(axes, x.rank)
    shape = [1 if i in listed else d for i, d in enumerate(b.shape_of(x)) if keepdim or i not in listed]
    chosen = None if len(listed) == x.rank else b.constant(listed, torch.int64)
    return b.op(op, x, chosen, keepdims=int(keepdim), dtype=x.dtype, shape=shape)


def accumulated(b: GraphBuilder, node: fx.Node, op: str, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    """A sum or product in the type of the result; small integers wrap around like wide ones cut off."""
    dtype = result_type(node)
    x = b.cast(x, dtype)
    wide = torch.int64 if dtype in (torch.bool, torch.int8, torch.int16, torch.uint8) else dtype
    return b.cast(reduced(b, op, b.cast(x, wide), axes, keepdim), dtype)


@lowers(aten.sum.default)
def sum_all(b: GraphBuilder, node: fx.Node, x: Value, **_: Any) -> Value:
    return accumulated(b, node, "ReduceSum", x)


@lowers(aten.sum.dim_IntList)
def sum_axes(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes, keepdim: bool = False, **_: Any) -> Value:
    return accumulated(b, node, "ReduceSum", x, axes, keepdim)


@lowers(aten.mean.default)
def mean_all(b: GraphBuilder, node: fx.Node, x: Value, **_: Any) -> Value:
    return reduced(b, "ReduceMean", b.cast(x, result_type(node)))


@lowers(aten.mean.dim)
def mean_axes(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes, keepdim: bool = False, **_: Any) -> Value:
    return reduced(b, "ReduceMean", b.cast(x, result_type(node)), axes, keepdim)


@lowers(aten.prod.default)
def prod_all(b: GraphBuilder, node: fx.Node, x: Value, **_: Any) -> Value:
    return accumulated(b, node, "ReduceProd", x)


@lowers(aten.prod.dim_int)
def prod_axis(b: GraphBuilder, node: fx.Node, x: Value, axis: int, keepdim: bool = False, **_: Any) -> Value:
    return accumulated(b, node, "ReduceProd", x, axis, keepdim)


@lowers(aten.logsumexp.default)
def logsumexp(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes, keepdim: bool = False) -> Value:
    return reduced(b, "ReduceLogSumExp", b.cast(x, result_type(node)), axes, keepdim)


def _extreme(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
        if x.dtype in (torch.bool, torch.int16):
            return b.cast(reduced(b, op, b.cast(x, torch.int32), axes, keepdim), b.dtype_of(x))
        return reduced(b, op, x, axes, keepdim)

    return lower


amax, amin = _extreme("ReduceMax"), _extreme("ReduceMin")
lowers(aten.amax.default, aten.max.default)(amax)
lowers(aten.amin.default, aten.min.default)(amin)


def place(b: GraphBuilder, op: str, x: Value, axis: int | None, keepdim: bool) -> Value:
    """ArgMax or ArgMin; of all elements in one row for None."""
    refuse_complex(x)
    if x.rank == 0:
        return common.filled(b, (), 0, torch.int64)
    if x.dtype in (torch.bool, torch.int16, torch.uint8):
        x = b.cast(x, torch.int32)
    if axis is None:
        flat = b.op("Reshape", x, b.constant([-1], torch.int64), dtype=x.dtype)
        found = b.op(op, flat, axis=0, keepdims=0, dtype=torch.int64, shape=())
        return common.reshape(b, found, [1] * x.rank) if keepdim else found
    return b.op(op, x, axis=axis_of(axis, x.rank), keepdims=int(keepdim), dtype=torch.int64)


@lowers(aten.argmax.default)
def argmax(b: GraphBuilder, node: fx.Node, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return place(b, "ArgMax", x, dim, keepdim)


@lowers(aten.argmin.default)
def argmin(b: GraphBuilder, node: fx.Node, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return place(b, "ArgMin", x, dim, keepdim)


def _extreme_and_place(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        """The gradient goes to the one element that was picked, as torch's does."""
        if x.rank == 0:
            return x, common.filled(b, (), 0, torch.int64)
        axis = axis_of(dim, x.rank)
        kept = place(b, op, x, axis, True)
        picked = b.op("GatherElements", x, kept, axis=axis, dtype=x.dtype)
        if keepdim:
            return picked, kept
        return common.squeeze(b, picked, axis), common.squeeze(b, kept, axis)

    return lower


lowers(aten.max.dim)(_extreme_and_place("ArgMax"))
lowers(aten.min.dim)(_extreme_and_place("ArgMin"))


def any_true(b: GraphBuilder, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    """Counted, so that nothing is false."""
    count = reduced(b, "ReduceSum", b.cast(x, torch.int64), axes, keepdim)
    return b.op("Greater", count, b.constant(0, torch.int64), dtype=torch.bool)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    if isinstance(axes, Sequence) and not axes:  # here, no axes are none
        return b.cast(as_bool(b, x), result_type(node))
    return b.cast(any_true(b, as_bool(b, x), axes, keepdim), result_type(node))


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all_(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    if isinstance(axes, Sequence) and not axes:
        return b.cast(as_bool(b, x), result_type(node))
    wrong = b.op("Not", as_bool(b, x), dtype=torch.bool, shape=x.shape)
    return b.cast(b.op("Not", any_true(b, wrong, axes, keepdim), dtype=torch.bool), result_type(node))


@lowers(aten.count_nonzero.dim_IntList, aten.count_nonzero.default)
def count_nonzero(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None) -> Value:
    return reduced(b, "ReduceSum", b.cast(as_bool(b, x), torch.int64), axes)


def spread(b: GraphBuilder, x: Value, axes: Axes, correction: Any, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean; of 16-bit floats in float32, as squares and counts soon exceed float16."""
    refuse_complex(x)
    dtype = b.dtype_of(x)
    if dtype in (torch.float16, torch.bfloat16):
        variance, mean = spread(b, b.cast(x, torch.float32), axes, correction, keepdim)
        return b.cast(variance, dtype), b.cast(mean, dtype)
    correction = 1 if correction is None else correction
    if not isinstance(correction, int | float):
        raise NoLoweringError("a correction that is not a constant")
    listed = axes_of(axes, x.rank)
    mean = reduced(b, "ReduceMean", x, axes, True)
    centred = b.op("Sub", x, mean, dtype=x.dtype, shape=x.shape)
    squares = b.op("Mul", centred, centred, dtype=x.dtype, shape=x.shape)
    total = reduced(b, "ReduceSum", squares, axes, keepdim)
    count = math.prod([b.shape_of(x)[a] for a in listed])
    below = b.op("Sub", b.scalar(count, b.dtype_of(x)), b.constant(correction, x.dtype))
    below = b.op("Max", below, b.constant(0, x.dtype))
    variance = b.op("Div", total, below, dtype=x.dtype, shape=total.shape)
    return variance, mean if keepdim or x.rank == 0 else common.squeeze(b, mean, *listed)


@lowers(aten.var.correction)
def var(
    b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    return spread(b, x, axes, correction, keepdim)[0]


@lowers(aten.std.correction)
def std(
    b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    return root_of_variance(b, spread(b, x, axes, correction, keepdim)[0])


def root_of_variance(b: GraphBuilder, variance: Value) -> Value:
    """0 where nothing varies, where no gradient flows either: torch's does not."""
    still = b.op("Equal", variance, b.constant(0, variance.dtype))
    root = b.op("Sqrt", b.op("Where", still, b.constant(1, variance.dtype), variance))
    return b.op("Where", still, b.constant(0, variance.dtype), root, dtype=variance.dtype, shape=variance.shape)


@lowers(aten.var.default, aten.var.dim)
def var_unbiased(b: GraphBuilder, node: fx.Node, x: Value, *given: Any, **named: Any) -> Value:
    return spread(b, x, *_settings(*given, **named))[0]


@lowers(aten.std.default, aten.std.dim)
def std_unbiased(b: GraphBuilder, node: fx.Node, x: Value, *given: Any, **named: Any) -> Value:
    return root_of_variance(b, spread(b, x, *_settings(*given, **named))[0])


@lowers(aten.var_mean.default, aten.var_mean.dim)
def var_mean_unbiased(b: GraphBuilder, node: fx.Node, x: Value, *given: Any, **named: Any) -> tuple[Value, Value]:
    return spread(b, x, *_settings(*given, **named))


@lowers(aten.std_mean.default, aten.std_mean.dim)
def std_mean_unbiased(b: GraphBuilder, node: fx.Node, x: Value, *given: Any, **named: Any) -> tuple[Value, Value]:
    variance, mean = spread(b, x, *_settings(*given, **named))
    return root_of_variance(b, variance), mean


def _settings(*given: Any, **named: Any) -> tuple[Axes, int, bool]:
    """Axes, correction and keepdim of the older forms: (unbiased) and (axes, unbiased, keepdim)."""
    axes, unbiased, keepdim = (None, *given, False) if given and isinstance(given[0], bool) else _older(*given)
    return named.get("dim", axes), int(named.get("unbiased", unbiased)), named.get("keepdim", keepdim)


def _older(axes: Axes = None, unbiased: bool = True, keepdim: bool = False) -> tuple[Axes, bool, bool]:
    return axes, unbiased, keepdim


@lowers(aten.std_mean.correction)
def std_mean(
    b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, mean = spread(b, x, axes, correction, keepdim)
    return root_of_variance(b, variance), mean


@lowers(aten.var_mean.correction)
def var_mean(
    b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return spread(b, x, axes, correction, keepdim)


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    b: GraphBuilder, node: fx.Node, x: Value, order: Any = 2, axes: Axes = None, keepdim: bool = False, **_: Any
) -> Value:
    x = b.cast(x, result_type(node))
    if order == 1:
        return reduced(b, "ReduceL1", x, axes, keepdim) if x.rank else b.op("Abs", x)
    if order == math.inf:
        return reduced(b, "ReduceMax", b.op("Abs", x, dtype=x.dtype, shape=x.shape), axes, keepdim)
    if order == 2:
        return reduced(b, "ReduceL2", x, axes, keepdim) if x.rank else b.op("Abs", x)
    if order > 0:
        return _root_of_powers(b, x, order, axes, keepdim)
    raise NoLoweringError(f"norm of order {order}")


def _root_of_powers(b: GraphBuilder, x: Value, order: float, axes: Axes, keepdim: bool) -> Value:
    """Elements that are 0, and a sum that is, get no gradient, as in torch; powers of 0 would give them NaN."""
    zero, one = b.constant(0, x.dtype), b.constant(1, x.dtype)

    def raised(y: Value, exponent: float) -> Value:
        nothing = b.op("Equal", y, zero)
        power = b.op("Pow", b.op("Where", nothing, one, y), b.constant(exponent, x.dtype))
        return b.like(b.op("Where", nothing, zero, power), y)

    powers = raised(b.like(b.op("Abs", x), x), order)
    return raised(reduced(b, "ReduceSum", powers, axes, keepdim), 1 / order)


@lowers(aten.cumsum.default)
def cumsum(b: GraphBuilder, node: fx.Node, x: Value, dim: int, **_: Any) -> Value:
    dtype = result_type(node)
    x = b.cast(x, dtype)
    if x.rank == 0:
        return x
    wide = dtype if dtype in (*common.FLOATS, torch.int32, torch.int64) else torch.int64
    return b.cast(b.op("CumSum", b.cast(x, wide), b.size(axis_of(dim, x.rank)), dtype=wide), dtype)


@lowers(aten.cumprod.default)
def cumprod(b: GraphBuilder, node: fx.Node, x: Value, dim: int, **_: Any) -> Value:
    x = b.cast(x, meta(node).dtype)
    if x.rank == 0:
        return x
    b.require_opset(26)
    return b.op("CumProd", x, b.size(axis_of(dim, x.rank)), dtype=x.dtype)
