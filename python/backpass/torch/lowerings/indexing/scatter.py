"""Writing by index: functional forms, which return the changed tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import axis_of, refuse_complex
from backpass.torch.lowerings.indexing.gather import Places, from_front, refuse_mixed
from backpass.torch.lowerings.movement.shape import END, sliced

aten = torch.ops.aten


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    common.refuse_complex(x)
    given = [i for i in indices if i is not None]
    values = b.cast(values, b.dtype_of(x))
    whole = len(given) == 1 and given[0].dtype == torch.bool and common.same_shape(b.shape_of(given[0]), b.shape_of(x))
    if whole and values.rank == 0 and not accumulate:
        return b.op("Where", given[0], values, x)
    places = Places(b, x, indices)
    refuse_mixed(places)
    tuples = places.tuples(b)
    moved = common.transpose(b, x, places.order())
    updates = updates_for(b, places, tuples, moved, values)
    mode = "add" if accumulate else "none"
    changed = b.op("ScatterND", moved, tuples, updates, reduction=mode)
    return common.transpose(b, changed, common.inverse(places.order()))


def updates_for(b: GraphBuilder, places: Places, tuples: Value, moved: Value, values: Value) -> Value:
    """The values broadcast to the shape of x[indices], its index axes in front."""
    index_extents = b.op("Shape", tuples, start=0, end=places.rank)
    rest = b.shape_of(moved)[len(places.axes) :]
    front = places.first == 0 or values.rank <= len(places.rest) - places.first
    if front:
        target = index_extents if not rest else b.op("Concat", index_extents, b.sizes(rest), axis=0)
        return b.op("Expand", values, target)
    before, after = rest[: places.first], rest[places.first :]
    parts = [b.sizes(before), index_extents, *([b.sizes(after)] if after else [])]
    wide = b.op("Expand", values, b.op("Concat", *parts, axis=0))
    return b.op("Transpose", wide, perm=common.inverse(places.result_order()))


@lowers(aten.slice_scatter.default)
def slice_scatter(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    axis = axis_of(dim, x.rank)
    extent = b.shape_of(x)[axis]
    source = b.cast(source, b.dtype_of(x))
    if step == 1 and common.same_extent(b.shape_of(source)[axis], extent):
        return source
    first = _from_front(0 if start is None else start, extent)
    if step != 1:
        return rows_written(b, x, axis, common.counted(b, b.shape_of(source)[axis], first, step), source)
    parts = [sliced(b, x, axis, 0, first)] if not (isinstance(first, int) and first == 0) else []
    parts.append(source)
    last = first + b.shape_of(source)[axis]
    if not common.same_extent(last, extent):
        parts.append(sliced(b, x, axis, last, END))
    return b.op("Concat", *parts, axis=axis)


def _from_front(place: Dim, extent: Dim) -> Dim:
    if not isinstance(place, int):
        return place
    if isinstance(extent, int):
        return min(max(place + extent if place < 0 else place, 0), extent)
    return extent + place if place < 0 else place


@lowers(aten.select_scatter.default)
def select_scatter(b: GraphBuilder, node: fx.Node, x: Value, source: Value, dim: int, index: Dim) -> Value:
    axis = axis_of(dim, x.rank)
    at = _from_front(index, b.shape_of(x)[axis])
    return slice_scatter(b, node, x, common.unsqueeze(b, source, axis), axis, at, at + 1)


def scattered(b: GraphBuilder, x: Value, dim: int, index: Value, source: Value, mode: str = "none") -> Value:
    source = b.cast(source, b.dtype_of(x))
    if x.rank == 0:
        if mode == "none":
            return common.reshape(b, source, [])
        row = (common.reshape(b, v, [1]) for v in (x, index, source))
        flat = b.op("ScatterElements", *row, reduction=mode, outputs=None, **from_front(b))
        return b.op("Reshape", flat, b.constant([]), shape=())
    if index.rank == 0:
        index, source = common.reshape(b, index, [1]), common.reshape(b, source, [1])
    if not common.same_shape(b.shape_of(source), b.shape_of(index)):
        # torch reads as much of the source as there are indices
        axes = range(index.rank)
        bounds = b.constant([0 for _ in axes]), b.sizes(b.shape_of(index)), b.constant(list(axes))
        source = b.op("Slice", source, *bounds)
    where = {"axis": axis_of(dim, x.rank), **from_front(b)}
    return b.op("ScatterElements", x, index, source, reduction=mode, shape=x.shape, outputs=None, **where)


REDUCTIONS = {"sum": "add", "mean": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@lowers(aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce)
def scatter(
    b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, source: Value | Scalar, reduce: str | None = None
) -> Value:
    if not isinstance(source, Value):
        source = common.filled(b, b.shape_of(index), source, b.dtype_of(x))
    return scattered(b, x, dim, index, source, REDUCTIONS[reduce] if reduce else "none")


@lowers(aten.scatter_add.default)
def scatter_add(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, source: Value) -> Value:
    return scattered(b, x, dim, index, source, "add")


@lowers(aten.index_add.default)
def index_add(
    b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, source: Value, alpha: Scalar = 1
) -> Value:
    if x.rank == 0 or index.rank == 0:
        raise NoLoweringError("a number")
    if alpha != 1:
        source = b.op("Mul", source, alpha)
    return rows_written(b, x, dim, index, source, "add")


@lowers(aten.index_copy.default)
def index_copy(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, source: Value) -> Value:
    if x.rank == 0 or index.rank == 0 or source.rank != x.rank:
        raise NoLoweringError("a number")
    return rows_written(b, x, dim, index, source)


def rows_written(b: GraphBuilder, x: Value, dim: int, index: Value, source: Value, mode: str = "none") -> Value:
    axis = axis_of(dim, x.rank)
    order = [axis, *[a for a in range(x.rank) if a != axis]]
    tuples = common.unsqueeze(b, b.cast(index, torch.int64), 1)
    moved = (common.transpose(b, x, order), tuples, common.transpose(b, source, order))
    return common.transpose(
        b, b.op("ScatterND", *moved, reduction=mode, outputs=None, **from_front(b)), common.inverse(order)
    )


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, value: Scalar | Value) -> Value:
    """By a mask and not by writing: a place that is named twice is still filled once, and counts once in gradients."""
    if x.rank == 0 or index.rank == 0:
        raise NoLoweringError("a number")
    axis = axis_of(dim, x.rank)
    nowhere = common.filled(b, [b.shape_of(x)[axis]], False, torch.bool)
    there = common.filled(b, [b.shape_of(index)[0]], True, torch.bool)
    mask = b.op("ScatterElements", nowhere, b.cast(index, torch.int64), there, axis=0)
    mask = common.reshape(b, mask, [b.shape_of(x)[axis], *[1] * (x.rank - 1 - axis)])
    return b.op("Where", mask, common.operand(b, value, b.dtype_of(x)), x)


@lowers(aten.put.default)
def put(b: GraphBuilder, node: fx.Node, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """Positions count through the whole tensor."""
    refuse_complex(x)
    reduction = "add" if accumulate else "none"
    made = b.op("ScatterElements", *(common.flat(b, v) for v in (x, index, source)), axis=0, reduction=reduction)
    return b.op("Reshape", made, b.sizes(b.shape_of(x)))


@lowers(aten.masked_scatter.default)
def masked_scatter(b: GraphBuilder, node: fx.Node, x: Value, mask: Value, source: Value) -> Value:
    return where_true(b, common.expand(b, x, common.meta(node).shape), mask, source)


def where_true(b: GraphBuilder, x: Value, mask: Value, source: Value) -> Value:
    """The true places of x filled with the elements of the source, one after the other."""
    refuse_complex(x)
    shape, size = b.shape_of(x), math.prod(b.shape_of(x))
    chosen = common.reshape(b, common.expand(b, mask, shape), (size,))
    before = b.op("Sub", b.op("CumSum", b.cast(chosen, torch.int64), b.size(0)), 1)
    taken = b.op("Gather", common.flat(b, source), b.op("Where", chosen, before, 0), axis=0)
    made = b.op("Where", chosen, taken, common.reshape(b, x, (size,)), shape=(size,))
    return common.reshape(b, made, shape)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, mask: Value, sizes: Sequence[Dim]
) -> Value | None:
    x, source = (common.filled(b, shape, 0, b.dtype_of(dy)) for shape in (b.shape_of(dy), sizes))
    return common.gradients(b, dy, [source], lambda s: where_true(b, x, mask, s))[0]
