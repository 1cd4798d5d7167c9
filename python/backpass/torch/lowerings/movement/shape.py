"""Operators that only rearrange elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import axes_of, axis_of, meta
from backpass.torch.symbols import is_one

aten = torch.ops.aten
END = 2**63 - 1


@lowers(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten, aten.unflatten)
@lowers(aten.view_as.default, aten.reshape_as.default)
def view(b: GraphBuilder, node: fx.Node, x: Value, *_: Any, **__: Any) -> Value:
    return common.reshape(b, x, meta(node).shape)


@lowers(aten.permute.default)
def permute(b: GraphBuilder, node: fx.Node, x: Value, dims: Sequence[int]) -> Value:
    return common.transpose(b, x, [axis_of(d, x.rank) for d in dims])


@lowers(aten.transpose.int)
def transpose(b: GraphBuilder, node: fx.Node, x: Value, first: int, second: int) -> Value:
    if x.rank == 0:
        return x
    order = list(range(x.rank))
    first, second = axis_of(first, x.rank), axis_of(second, x.rank)
    order[first], order[second] = order[second], order[first]
    return common.transpose(b, x, order)


@lowers(aten.t.default, aten.numpy_T.default)
def reversed_axes(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return common.transpose(b, x, list(range(x.rank))[::-1])


@lowers(aten.unsqueeze.default)
def unsqueeze(b: GraphBuilder, node: fx.Node, x: Value, dim: int) -> Value:
    return common.unsqueeze(b, x, dim if dim >= 0 else dim + x.rank + 1)


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(b: GraphBuilder, node: fx.Node, x: Value, dim: int | Sequence[int] | None = None) -> Value:
    if x.rank == meta(node).dim():
        return x
    listed = range(x.rank) if dim is None else axes_of(dim, x.rank)
    return common.squeeze(b, x, *[a for a in listed if is_one(b.shape_of(x)[a])])


@lowers(aten.expand.default, aten.broadcast_to.default, aten.expand_as.default)
def expand(b: GraphBuilder, node: fx.Node, x: Value, *_: Any, **__: Any) -> Value:
    return common.expand(b, x, meta(node).shape)


@lowers(aten.cat.default, aten.concat.default)
def cat(b: GraphBuilder, node: fx.Node, tensors: Sequence[Value], dim: int = 0) -> Value:
    rank = meta(node).dim()
    whole = [t for t in tensors if t.rank == rank]  # torch lets empty 1-D tensors join anything
    return joined(b, [b.cast(t, meta(node).dtype) for t in whole], axis_of(dim, rank))


def joined(b: GraphBuilder, parts: Sequence[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=axis)


@lowers(aten.stack.default)
def stack(b: GraphBuilder, node: fx.Node, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = axis_of(dim, meta(node).dim())
    return joined(b, [common.unsqueeze(b, b.cast(t, meta(node).dtype), axis) for t in tensors], axis)


@lowers(
    aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default, aten.tensor_split.sections
)
def split(b: GraphBuilder, node: fx.Node, x: Value, sizes: Any, dim: int = 0) -> tuple[Value, ...]:
    results = node.meta["val"]
    axis = axis_of(dim, x.rank)
    if len(results) == 1:
        return (x,)
    extents = b.sizes([r.shape[axis] for r in results])
    return b.op("Split", x, extents, axis=axis, outputs=len(results))


@lowers(aten.unbind.int)
def unbind(b: GraphBuilder, node: fx.Node, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(dim, x.rank)
    count = len(node.meta["val"])
    if count == 1:
        return (common.squeeze(b, x, axis),)
    parts = b.op("Split", x, b.constant([1] * count), axis=axis, outputs=count)
    return tuple(common.squeeze(b, p, axis) for p in parts)


def sliced(b: GraphBuilder, x: Value, axis: int, start: Any, end: Any, step: int = 1) -> Value:
    steps = None if step == 1 else b.constant([step])
    return b.op("Slice", x, b.sizes([start]), b.sizes([end]), b.constant([axis]), steps)


@lowers(aten.slice.Tensor)
def slice_tensor(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    axis = axis_of(dim, x.rank)
    start = 0 if start is None else start
    end = END if end is None else end
    whole = common.same_extent(meta(node).shape[axis], b.shape_of(x)[axis])
    if whole and step == 1:
        return x
    return sliced(b, x, axis, start, end, step)


@lowers(aten.narrow.default)
def narrow(b: GraphBuilder, node: fx.Node, x: Value, dim: int, start: Dim, length: Dim) -> Value:
    axis = axis_of(dim, x.rank)
    if isinstance(start, int) and start < 0:
        start = start + b.shape_of(x)[axis]
    return sliced(b, x, axis, start, start + length)


@lowers(aten.select.int)
def select(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Dim) -> Value:
    axis = axis_of(dim, x.rank)
    return b.op("Gather", x, b.size(index), axis=axis)


@lowers(aten.repeat.default)
def repeat(b: GraphBuilder, node: fx.Node, x: Value, repeats: Sequence[Dim]) -> Value:
    if len(repeats) > x.rank:
        x = common.unsqueeze(b, x, *range(len(repeats) - x.rank))
    if not repeats:
        return x
    return b.op("Tile", x, b.sizes(repeats))


@lowers(aten.flip.default)
def flip(b: GraphBuilder, node: fx.Node, x: Value, dims: Sequence[int]) -> Value:
    axes = [axis_of(d, x.rank) for d in dims]
    if not axes or x.rank == 0:
        return x
    back = b.constant([-1] * len(axes))
    return b.op("Slice", x, back, b.constant([-END] * len(axes)), b.constant(axes), back)


@lowers(aten.alias.default, aten.clone.default, aten.contiguous.default, aten.lift_fresh_copy.default)
@lowers(aten.lift_fresh.default, aten.conj.default, aten.resolve_conj.default)
@lowers(aten.positive.default, aten.detach_copy.default)
def same(b: GraphBuilder, node: fx.Node, x: Value, *_: Any, **__: Any) -> Value:
    common.refuse_complex(x)
    return x


@lowers(aten.copy.default)
def copy(b: GraphBuilder, node: fx.Node, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """The source in the shape and element type of x."""
    common.refuse_complex(source)
    return common.expand(b, b.cast(source, meta(node).dtype), meta(node).shape)


@lowers(aten.detach.default, "backpass::stop_gradient")
def stop_gradient(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.stop_gradient(x) if b.dtype_of(x).is_floating_point else x


@lowers(aten.roll.default)
def roll(b: GraphBuilder, node: fx.Node, x: Value, shifts: Any, dims: Any = ()) -> Value:
    shifts = [shifts] if isinstance(shifts, int | torch.SymInt) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        flat = common.reshape(b, x, [meta(node).numel()])
        return common.reshape(b, _rolled(b, flat, 0, shifts[0]), meta(node).shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(b, x, axis_of(dim, x.rank), shift)
    return x


def _rolled(b: GraphBuilder, x: Value, axis: int, shift: Dim) -> Value:
    extent = b.shape_of(x)[axis]
    if not isinstance(shift, int):
        raise NoLoweringError("a shift that is not a constant")
    if isinstance(extent, int):
        shift = shift % extent if extent else 0
        if shift == 0:
            return x
    at: Any = (extent - shift) % extent  # type: ignore[operator]
    return b.op("Concat", sliced(b, x, axis, at, END), sliced(b, x, axis, 0, at), axis=axis, shape=x.shape)


@lowers(aten.unfold.default)
def unfold(b: GraphBuilder, node: fx.Node, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows along an axis, their elements on a new last axis."""
    if x.rank == 0:
        raise NoLoweringError("a number")
    axis = axis_of(dim, x.rank)
    starts = common.counted(b, meta(node).shape[axis], 0, step)
    places = b.op("Add", common.unsqueeze(b, starts, 1), b.constant(torch.arange(size)))
    return common.transpose(b, b.op("Gather", x, places, axis=axis), common.axis_last(axis + 1, x.rank + 1))


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: GraphBuilder, node: fx.Node, x: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    flat, order, places = on_diagonal(b, x, offset, first, second, meta(node).shape[-1])
    return b.op("Gather", flat, places, axis=len(order) - 2)


def on_diagonal(
    b: GraphBuilder, x: Value, offset: int, first: int, second: int, count: Dim
) -> tuple[Value, list[int], Value]:
    """The two axes at the end and as one, the order in which axes then stand, and the places of the diagonal: every
    (columns + 1)-th."""
    pair = [axis_of(first, x.rank), axis_of(second, x.rank)]
    order = [*(a for a in range(x.rank) if a not in pair), *pair]
    x = common.transpose(b, x, order)
    *rest, rows, columns = b.shape_of(x)
    start = offset if offset >= 0 else -offset * columns
    return common.reshape(b, x, [*rest, rows * columns]), order, common.counted(b, count, start, columns + 1)


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(b: GraphBuilder, node: fx.Node, x: Value, factor: int) -> Value:
    if x.rank != 4:
        raise NoLoweringError("not a batch of images")
    return b.op("DepthToSpace", x, blocksize=factor, mode="CRD")


def put_back(b: GraphBuilder, dy: Value, sizes: Sequence[Dim], axis: int, start: Dim, end: Dim, step: int = 1) -> Value:
    """Zeros with dY where a slice was taken."""
    common.refuse_complex(dy)
    bounds = [b.sizes([start]), b.sizes([end]), b.constant([axis]), b.constant([step])]
    return b.op("SliceGrad", dy, b.sizes(sizes), *bounds, domain="com.microsoft")


@lowers(aten.select_backward.default)
def select_backward(b: GraphBuilder, node: fx.Node, dy: Value, sizes: Sequence[Dim], dim: int, index: Dim) -> Value:
    axis = axis_of(dim, len(sizes))
    if isinstance(index, int) and index < 0:
        index = index + sizes[axis]
    return put_back(b, common.unsqueeze(b, dy, axis), sizes, axis, index, index + 1)


@lowers(aten.slice_backward.default)
def slice_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, sizes: Sequence[Dim], dim: int, start: Dim, end: Dim, step: int
) -> Value:
    return put_back(b, dy, sizes, axis_of(dim, len(sizes)), start, end, step)
