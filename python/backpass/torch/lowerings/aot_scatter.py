"""Writing into copies: index_put and the scatter operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import (
    axis_of,
    expand,
    is_one,
    meta,
    refuse_complex,
    reshape,
    same_extent,
    transpose,
    unsqueeze,
)

aten = torch.ops.aten
END = 2**63 - 1


def _broadcast(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    rank = max(len(s) for s in shapes)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, extent in enumerate(shape):
            place = rank - len(shape) + i
            if not is_one(extent):
                result[place] = extent
    return tuple(result)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    """The indexed axes come first, then it is ScatterND."""
    refuse_complex(x)
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return _put_where(b, x, indices, values, accumulate)
    places = [axis for axis, index in enumerate(indices) if index is not None]
    found = [b.cast(i, torch.int64) for i in indices if i is not None]
    shape = b.shape_of(x)
    common = _broadcast([b.shape_of(i) for i in found])
    rest = [axis for axis in range(len(shape)) if axis not in places]
    columns = [unsqueeze(b, expand(b, i, common), len(common)) for i in found]
    where = columns[0] if len(columns) == 1 else b.op("Concat", *columns, axis=len(common))
    adjacent = places == list(range(places[0], places[0] + len(places)))
    before = [shape[axis] for axis in rest if axis < places[0]] if adjacent else []
    after = [shape[axis] for axis in rest][len(before) :]
    updates = expand(b, b.cast(values, b.dtype_of(x)), [*before, *common, *after])
    order = [*range(len(before), len(before) + len(common)), *range(len(before))]
    updates = transpose(b, updates, [*order, *range(len(order), len(order) + len(after))])
    perm = places + rest
    added = "add" if accumulate else "none"
    made = b.op("ScatterND", transpose(b, x, perm), where, updates, reduction=added, dtype=x.dtype)
    return transpose(b, Value(made, x.dtype, [shape[p] for p in perm]), [perm.index(i) for i in range(len(perm))])


def _put_where(b: GraphBuilder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    """One number into the places where a mask of leading axes is true."""
    mask, *others = indices
    if mask is None or mask.dtype != torch.bool or others or not all(is_one(d) for d in b.shape_of(values)):
        raise NoLoweringError("a mask with values whose number depends on it")
    mask = unsqueeze(b, mask, *range(mask.rank, x.rank)) if x.rank > mask.rank else mask
    value = reshape(b, b.cast(values, b.dtype_of(x)), ())
    written = b.op("Add", x, value) if accumulate else value
    result: Value = b.op("Where", mask, written, x, dtype=x.dtype)
    return result


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


@lowers(aten.scatter.src)
def scatter_src(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scattered(b, x, dim, index, src)


@lowers(aten.scatter.value)
def scatter_value(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, value: Scalar) -> Value:
    source = expand(b, b.scalar(value, b.dtype_of(x)), b.shape_of(index))
    return _scattered(b, x, dim, index, source)


@lowers(aten.scatter_add.default)
def scatter_add(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scattered(b, x, dim, index, src, "add")


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}
_SHORT = {"add": "add", "multiply": "mul"}


@lowers(aten.scatter.reduce)
def scatter_reduce_src(
    b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, src: Value, reduce: str
) -> Value:
    return _scattered(b, x, dim, index, src, _SHORT[reduce])


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


@lowers(aten.slice_scatter.default)
def slice_scatter(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    src: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    axis, shape = axis_of(dim, x.rank), b.shape_of(x)
    src = expand(b, b.cast(src, b.dtype_of(x)), b.shape_of(src))
    if step == 1 and same_extent(b.shape_of(src)[axis], shape[axis]):
        return src
    positions = _positions(b, shape[axis], axis, start, end, step)
    index = reshape(b, positions, [b.shape_of(src)[axis] if i == axis else 1 for i in range(x.rank)])
    return _scattered(b, x, axis, expand(b, index, b.shape_of(src)), src)


def _positions(b: GraphBuilder, extent: Dim, axis: int, start: Dim | None, end: Dim | None, step: int) -> Value:
    """What a slice selects of 0, 1, ... extent - 1."""
    all_of_them = b.op("Range", b.constant(0, torch.int64), b.size(extent), b.constant(1, torch.int64))
    bounds = [b.sizes([0 if start is None else start]), b.sizes([END if end is None else end])]
    more = [b.constant([0], torch.int64), b.constant([step], torch.int64)]
    result: Value = b.op("Slice", all_of_them, *bounds, *more, dtype=torch.int64)
    return result


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


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: GraphBuilder, node: fx.Node, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    flat, order = diagonal_last(b, x, dim1, dim2)
    places = diagonal_places(b, b.shape_of(x)[order[-1]], offset, meta(node).shape[-1])
    result: Value = b.op("Gather", flat, places, axis=x.rank - 2, dtype=x.dtype)
    return result


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
