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
    chosen = None if len(listed) == x.rank else b.constant(listed)
    return b.op(op, x, chosen, keepdims=int(keepdim), shape=shape)


def _accumulating(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, keepdim: bool = False, **_: Any) -> Value:
        """In the type of the result; small integers wrap around like wide ones cut off."""
        dtype = result_type(node)
        wide = torch.int64 if dtype in (torch.bool, torch.int8, torch.int16, torch.uint8) else dtype
        return b.cast(reduced(b, op, b.cast(b.cast(x, dtype), wide), axes, keepdim), dtype)

    return lower


lowers(aten.sum.default, aten.sum.dim_IntList)(_accumulating("ReduceSum"))
lowers(aten.prod.default, aten.prod.dim_int)(_accumulating("ReduceProd"))
lowers(aten.mean.default, aten.mean.dim)(_accumulating("ReduceMean"))
lowers(aten.logsumexp.default)(_accumulating("ReduceLogSumExp"))


def _extreme(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
        if x.dtype in (torch.bool, torch.int16):
            return b.cast(reduced(b, op, b.cast(x, torch.int32), axes, keepdim), b.dtype_of(x))
        return reduced(b, op, x, axes, keepdim)

    return lower


lowers(aten.amax.default, aten.max.default)(_extreme("ReduceMax"))
lowers(aten.amin.default, aten.min.default)(_extreme("ReduceMin"))


def place(b: GraphBuilder, op: str, x: Value, axis: int | None, keepdim: bool) -> Value:
    """ArgMax or ArgMin; of all elements in one row for None."""
    refuse_complex(x)
    if x.rank == 0:
        return common.filled(b, (), 0, torch.int64)
    if x.dtype in (torch.bool, torch.int16, torch.uint8):
        x = b.cast(x, torch.int32)
    if axis is None:
        found = b.op(op, common.flat(b, x), axis=0, keepdims=0, shape=())
        return common.reshape(b, found, [1] * x.rank) if keepdim else found
    return b.op(op, x, axis=axis_of(axis, x.rank), keepdims=int(keepdim))


lowers(aten.argmax.default)(lambda b, node, x, dim=None, keepdim=False: place(b, "ArgMax", x, dim, keepdim))
lowers(aten.argmin.default)(lambda b, node, x, dim=None, keepdim=False: place(b, "ArgMin", x, dim, keepdim))


def _extreme_and_place(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        """The gradient goes to the one element that was picked, as torch's does."""
        if x.rank == 0:
            return x, common.filled(b, (), 0, torch.int64)
        axis = axis_of(dim, x.rank)
        kept = place(b, op, x, axis, True)
        picked = b.op("GatherElements", x, kept, axis=axis)
        if keepdim:
            return picked, kept
        return common.squeeze(b, picked, axis), common.squeeze(b, kept, axis)

    return lower


lowers(aten.max.dim)(_extreme_and_place("ArgMax"))
lowers(aten.min.dim)(_extreme_and_place("ArgMin"))


def any_true(b: GraphBuilder, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    """Counted, so that nothing is false."""
    count = reduced(b, "ReduceSum", b.cast(x, torch.int64), axes, keepdim)
    return b.op("Greater", count, 0)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    if isinstance(axes, Sequence) and not axes:  # here, no axes are none
        return b.cast(as_bool(b, x), result_type(node))
    return b.cast(any_true(b, as_bool(b, x), axes, keepdim), result_type(node))


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all_(b: GraphBuilder, node: fx.Node, x: Value, axes: Axes = None, keepdim: bool = False) -> Value:
    if isinstance(axes, Sequence) and not axes:
        return b.cast(as_bool(b, x), result_type(node))
    wrong = any_true(b, b.op("Not", as_bool(b, x)), axes, keepdim)
    return b.cast(b.op("Not", wrong), result_type(node))


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
    centred = b.op("Sub", x, mean, shape=x.shape)
    total = reduced(b, "ReduceSum", b.op("Mul", centred, centred), axes, keepdim)
    count = b.scalar(math.prod([b.shape_of(x)[a] for a in listed]), dtype)
    variance = b.op("Div", total, b.op("Max", b.op("Sub", count, correction), 0))
    return variance, mean if keepdim or x.rank == 0 else common.squeeze(b, mean, *listed)


def root_of_variance(b: GraphBuilder, variance: Value) -> Value:
    """0 where nothing varies, where no gradient flows either: torch's does not."""
    still = b.op("Equal", variance, 0)
    return b.op("Where", still, 0, b.op("Sqrt", b.op("Where", still, 1, variance)))


def _spreading(is_root: bool, with_mean: bool) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, *given: Any, **named: Any) -> Any:
        variance, mean = spread(b, x, *_settings(*given, **named))
        found = root_of_variance(b, variance) if is_root else variance
        return (found, mean) if with_mean else found

    return lower


def _settings(*given: Any, **named: Any) -> tuple[Axes, Any, bool]:
    """Axes, correction and keepdim. The older forms are (unbiased) and (axes, unbiased, keepdim)."""
    if given and isinstance(given[0], bool):
        given = (None, *given)
    axes, unbiased, keepdim = given + (None, True, False)[len(given) :]
    correction = named.get("correction", int(named.get("unbiased", unbiased)))
    return named.get("dim", axes), correction, named.get("keepdim", keepdim)


for _name in ("var", "std", "var_mean", "std_mean"):
    _lowering = _spreading(_name.startswith("std"), _name.endswith("mean"))
    lowers(*(f"aten::{_name}.{form}" for form in ("correction", "default", "dim")))(_lowering)


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    b: GraphBuilder, node: fx.Node, x: Value, order: Any = 2, axes: Axes = None, keepdim: bool = False, **_: Any
) -> Value:
    x = b.cast(x, result_type(node))
    if order in (1, 2):
        return reduced(b, f"ReduceL{int(order)}", x, axes, keepdim) if x.rank else b.op("Abs", x)
    if order == math.inf:
        return reduced(b, "ReduceMax", b.op("Abs", x), axes, keepdim)
    if order > 0:
        return _root_of_powers(b, x, order, axes, keepdim)
    raise NoLoweringError(f"norm of order {order}")


def _root_of_powers(b: GraphBuilder, x: Value, order: float, axes: Axes, keepdim: bool) -> Value:
    """Elements that are 0, and a sum that is, get no gradient, as in torch; powers of 0 would give them NaN."""

    def raised(y: Value, exponent: float) -> Value:
        nothing = b.op("Equal", y, 0)
        return b.op("Where", nothing, 0, b.op("Pow", b.op("Where", nothing, 1, y), exponent))

    powers = raised(b.op("Abs", x), order)
    return raised(reduced(b, "ReduceSum", powers, axes, keepdim), 1 / order)


@lowers(aten.cumsum.default)
def cumsum(b: GraphBuilder, node: fx.Node, x: Value, dim: int, **_: Any) -> Value:
    dtype = result_type(node)
    x = b.cast(x, dtype)
    if x.rank == 0:
        return x
    wide = dtype if dtype in (*common.FLOATS, torch.int32, torch.int64) else torch.int64
    return b.cast(b.op("CumSum", b.cast(x, wide), b.size(axis_of(dim, x.rank))), dtype)


@lowers(aten.cumprod.default)
def cumprod(b: GraphBuilder, node: fx.Node, x: Value, dim: int, **_: Any) -> Value:
    x = b.cast(x, meta(node).dtype)
    if x.rank == 0:
        return x
    b.require_opset(26)
    return b.op("CumProd", x, b.size(axis_of(dim, x.rank)))
