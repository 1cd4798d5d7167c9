"""Sorting, and what compares everything with everything: medians, searches, running extremes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import (
    axis_last,
    axis_of,
    inverse,
    meta,
    refuse_complex,
    reshape,
    transpose,
    unsqueeze,
)
from backpass.torch.lowerings.pointwise.special import values_of

aten = torch.ops.aten
WIDEST = 1024  # extent up to which all pairs along an axis are looked at


def _kth(b: GraphBuilder, x: Value, axis: int, k: Dim) -> tuple[Value, Value]:
    """The k-th smallest along an axis (counting from 1) and where it is, both with the axis as extent 1."""
    extent = b.shape_of(x)[axis]
    values, places = b.op("TopK", x, b.sizes([extent]), axis=axis, largest=0, sorted=1, outputs=2)
    at = b.sizes([k - 1])
    return b.op("Gather", values, at, axis=axis), b.op("Gather", places, at, axis=axis)


def _as_row(b: GraphBuilder, x: Value) -> Value:
    return x if x.rank else reshape(b, x, (1,))


@lowers(aten.kthvalue.default)
def kthvalue(
    b: GraphBuilder, node: fx.Node, x: Value, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Value, Value]:
    axis = axis_of(dim, x.rank)
    values, places = _kth(b, _as_row(b, x), axis, k)
    return _shaped(b, node, values, places)


def _shaped(b: GraphBuilder, node: fx.Node, values: Value, places: Value) -> tuple[Value, Value]:
    shape = b.sizes(meta(node, 0).shape)
    return b.op("Reshape", values, shape), b.op("Reshape", places, shape)


def _median(b: GraphBuilder, x: Value, axis: int) -> tuple[Value, Value]:
    """The lower of two in the middle; NaN as soon as there is one."""
    extent = b.shape_of(x)[axis]
    values, places = _kth(b, x, axis, (extent + 1) // 2)
    if not b.dtype_of(x).is_floating_point:
        return values, places
    broken = b.cast(b.op("IsNaN", x), torch.int64)
    first = b.op("ArgMax", broken, axis=axis, keepdims=1)
    any_broken = b.cast(b.op("ReduceMax", broken, b.constant([axis])), torch.bool)
    return b.op("Where", any_broken, math.nan, values), b.op("Where", any_broken, first, places)


@lowers(aten.median.dim)
def median_dim(b: GraphBuilder, node: fx.Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _shaped(b, node, *_median(b, _as_row(b, x), axis_of(dim, x.rank)))


@lowers(aten.median.default)
def median(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    row = reshape(b, x, (math.prod(b.shape_of(x)),))
    return b.op("Reshape", _median(b, row, 0)[0], b.constant([]))


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar, aten.bucketize.Tensor, aten.bucketize.Scalar)
def searchsorted(
    b: GraphBuilder,
    node: fx.Node,
    first: Any,
    second: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """How many boundaries lie before a value (with ``right``: or at it)."""
    swapped = "bucketize" in str(node.target)
    sequence, values = (second, first) if swapped else (first, second)
    if sorter is not None:
        raise NoLoweringError("a sorter")
    values = values if isinstance(values, Value) else b.scalar(values, b.dtype_of(sequence))
    extent = b.shape_of(sequence)[-1]
    if not isinstance(extent, int) or extent > WIDEST:
        raise NoLoweringError("many boundaries")
    kind = torch.promote_types(b.dtype_of(values), b.dtype_of(sequence))
    values, sequence = b.cast(values, kind), b.cast(sequence, kind)
    column = unsqueeze(b, values, values.rank)
    row = sequence if sequence.rank <= 1 else unsqueeze(b, sequence, sequence.rank - 1)
    upper = right or side == "right"
    # not "greater" but "not less or equal": NaN comes after everything
    before = b.op("LessOrEqual" if upper else "Less", row, column)
    if kind.is_floating_point:
        before = b.op("Or", before, b.op("IsNaN", column))
    count = b.op("ReduceSum", b.cast(before, torch.int64), b.constant([values.rank]), keepdims=0)
    return b.cast(count, meta(node).dtype)


def _running(b: GraphBuilder, x: Value, dim: int, fill: Scalar) -> Value:
    """[.., n, n]: along the last axis everything up to the position on the one before, `fill` after it."""
    extent = b.shape_of(x)[dim]
    if not isinstance(extent, int) or extent > WIDEST:
        raise NoLoweringError("a long axis")
    moved = unsqueeze(b, transpose(b, x, axis_last(dim, x.rank)), x.rank - 1)
    later = np.triu(np.ones((extent, extent), np.bool_), 1)
    return b.op("Where", b.constant(later), fill, moved)


def _back(b: GraphBuilder, x: Value, rank: int, dim: int) -> Value:
    return transpose(b, x, inverse(axis_last(dim, rank)))


@values_of(aten.logcumsumexp.default)
def logcumsumexp(b: GraphBuilder, node: fx.Node, x: Value, dim: int) -> Value:
    refuse_complex(x)
    if x.rank == 0:
        return x
    axis = axis_of(dim, x.rank)
    made = b.op("ReduceLogSumExp", _running(b, x, axis, -math.inf), b.constant([x.rank]), keepdims=0)
    return _back(b, made, x.rank, axis)


def _running_extreme(op: str, least: float) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, dim: int) -> tuple[Value, ...]:
        """The gradient goes to the one element that was picked, as torch's does."""
        if not b.dtype_of(x).is_floating_point:
            raise NoLoweringError("integers")
        if x.rank == 0:
            return x, b.constant(0)
        axis, last = axis_of(dim, x.rank), x.rank
        pairs = _running(b, x, axis, least)
        kept = b.op(op, pairs, axis=last, keepdims=1, select_last_index=1)
        picked = b.op("GatherElements", pairs, kept, axis=last)
        return tuple(_back(b, b.op("Squeeze", v, b.constant([last])), x.rank, axis) for v in (picked, kept))

    return lower


lowers(aten.cummax.default)(_running_extreme("ArgMax", -math.inf))
lowers(aten.cummin.default)(_running_extreme("ArgMin", math.inf))


@lowers(aten.topk.default)
def topk(
    b: GraphBuilder, node: fx.Node, x: Value, k: Dim, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:
    if x.rank == 0:
        return x, common.filled(b, (), 0, torch.int64)
    settings: dict[str, Any] = {"axis": axis_of(dim, x.rank), "largest": int(largest), "sorted": 1}
    return b.op("TopK", x, b.sizes([k]), outputs=2, **settings)


@lowers(aten.sort.default)
def sort(b: GraphBuilder, node: fx.Node, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, ...]:
    if x.rank == 0:
        return x, common.filled(b, (), 0, torch.int64)
    if x.dtype == torch.bool:
        raise NoLoweringError("sorting of bools")
    return topk(b, node, x, b.shape_of(x)[axis_of(dim, x.rank)], dim, descending)


@lowers(aten.sort.stable)
def sort_stable(
    b: GraphBuilder, node: fx.Node, x: Value, *, stable: bool = False, dim: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    return sort(b, node, x, dim, descending)


@lowers(aten.argsort.default)
def argsort(b: GraphBuilder, node: fx.Node, x: Value, dim: int = -1, descending: bool = False) -> Value:
    return sort(b, node, x, dim, descending)[1]
