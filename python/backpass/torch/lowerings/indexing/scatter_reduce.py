"""Scattering with every reduction, and into diagonals."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import (
    axis_of,
    expand,
    refuse_complex,
    reshape,
    same_extent,
    transpose,
)

aten = torch.ops.aten


def _scattered(b: GraphBuilder, x: Value, dim: int, index: Value, source: Value, reduction: str = "none") -> Value:
    refuse_complex(x)
    shape = b.shape_of(x)
    if not shape:
        x, index, source = (reshape(b, v, (1,)) for v in (x, index, source))
    if len(b.shape_of(index)) == 0:
        index = reshape(b, index, (1,))
        source = reshape(b, source, (1,))
    for axis, (wanted, given) in enumerate(zip(b.shape_of(index), b.shape_of(source), strict=True)):
        if not same_extent(wanted, given):
            bounds = b.constant([0], torch.int64), b.sizes([wanted]), b.constant([axis], torch.int64)
            source = Value(b.op("Slice", source, *bounds), source.dtype, source.shape)
    made = b.op(
        "ScatterElements", x, index, b.cast(source, b.dtype_of(x)), axis=axis_of(dim, x.rank), reduction=reduction,
        dtype=x.dtype, shape=x.shape,
    )  # fmt: skip
    return reshape(b, made, shape)


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}
_SHORT = {"add": "add", "multiply": "mul"}


@lowers(aten.scatter.value_reduce)
def scatter_reduce_value(
    b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, value: Scalar, reduce: str
) -> Value:
    source = expand(b, b.scalar(value, b.dtype_of(x)), b.shape_of(index))
    return _scattered(b, x, dim, index, source, _SHORT[reduce])


def neutral(reduce: str, dtype: torch.dtype) -> Any:
    """What changes nothing."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if reduce == "amax" else info.max


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    dtype = b.dtype_of(x)
    if dtype == torch.bool:
        raise NoLoweringError("bool")
    start = x
    if not include_self:
        blank = expand(b, b.constant(neutral(reduce, dtype), dtype), b.shape_of(index))
        start = _scattered(b, x, dim, index, blank)
    total = _scattered(b, start, dim, index, src, _REDUCTIONS[reduce])
    if reduce != "mean":
        return total
    ones = expand(b, b.constant(1, dtype), b.shape_of(index))
    first = expand(b, b.constant(1 if include_self else 0, dtype), b.shape_of(x))
    counts = _scattered(b, first, dim, index, ones, "add")
    counts = b.op("Max", counts, b.constant(1, dtype), dtype=dtype, shape=x.shape)
    if dtype.is_floating_point:
        result: Value = b.op("Div", total, counts, dtype=dtype)
        return result
    whole = b.op("Sub", total, b.op("Mod", total, counts))  # towards minus infinity
    return b.op("Div", whole, counts, dtype=dtype)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    b: GraphBuilder, node: fx.Node, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    flat, order = diagonal_last(b, x, dim1, dim2)
    extents = b.shape_of(src)
    places = diagonal_places(b, b.shape_of(x)[order[-1]], offset, extents[-1])
    index = expand(b, reshape(b, places, [*([1] * (len(extents) - 1)), extents[-1]]), extents)
    made = _scattered(b, flat, -1, index, src)
    moved = reshape(b, made, [b.shape_of(x)[i] for i in order])
    return transpose(b, moved, [order.index(i) for i in range(x.rank)])


def diagonal_last(b: GraphBuilder, x: Value, dim1: int, dim2: int) -> tuple[Value, list[int]]:
    """The two axes at the end and as one, and the order in which axes then stand."""
    first, second = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    order = [i for i in range(x.rank) if i not in (first, second)] + [first, second]
    moved = transpose(b, x, order)
    extents = [b.shape_of(x)[i] for i in order]
    return reshape(b, Value(moved, x.dtype, extents), [*extents[:-2], extents[-2] * extents[-1]]), order


def diagonal_places(b: GraphBuilder, width: Dim, offset: int, count: Dim) -> Value:
    """Positions of a diagonal in a flat matrix of this width."""
    start = offset if offset >= 0 else -offset * width
    zero, one = b.constant(0, torch.int64), b.constant(1, torch.int64)
    steps = b.op("Mul", b.op("Range", zero, b.size(count), one), b.size(width + 1))
    result: Value = b.op("Add", steps, b.size(start), dtype=torch.int64, shape=(count,))
    return result


@lowers(aten.index_reduce.default)
def index_reduce(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """scatter_reduce with the index repeated across all other axes."""
    shape = b.shape_of(source)
    axis = axis_of(dim, x.rank)
    if x.rank == 0:
        wide = reshape(b, index, (1,))
    else:
        wide = expand(b, reshape(b, index, [shape[i] if i == axis else 1 for i in range(x.rank)]), shape)
    return scatter_reduce(b, node, x, dim, b.cast(wide, torch.int64), source, reduce, include_self)
