"""Rarer ways of writing into copies, and gradients of padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import axis_of, expand, filled, meta, refuse_complex, reshape
from backpass.torch.lowerings.indexing.order import meta_size
from backpass.torch.lowerings.indexing.scatter_reduce import scatter_reduce

aten = torch.ops.aten


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


@lowers(aten.put.default)
def put(b: GraphBuilder, node: fx.Node, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """Positions count through the whole tensor."""
    refuse_complex(x)
    flat, where, values = (b.op("Reshape", v, b.constant([-1], torch.int64)) for v in (x, index, source))
    reduction = "add" if accumulate else "none"
    made = b.op("ScatterElements", flat, where, values, axis=0, reduction=reduction)
    return b.op("Reshape", made, b.sizes(b.shape_of(x)), dtype=x.dtype)


def _places_of_true(b: GraphBuilder, mask: Value, size: Dim) -> tuple[Value, Value]:
    """The mask as a list, and for each true element how many stand before it."""
    flat = reshape(b, mask, (size,))
    counts = b.op("CumSum", b.cast(flat, torch.int64), b.constant(0, torch.int64), dtype=torch.int64, shape=(size,))
    return flat, b.op("Sub", counts, b.constant(1, torch.int64), dtype=torch.int64, shape=(size,))


@lowers(aten.masked_scatter.default)
def masked_scatter(b: GraphBuilder, node: fx.Node, x: Value, mask: Value, source: Value) -> Value:
    refuse_complex(x)
    shape = meta(node).shape
    x, mask = expand(b, x, shape), expand(b, mask, shape)
    size = meta_size(x)
    flat, places = _places_of_true(b, mask, size)
    safe = b.op("Max", places, b.constant(0, torch.int64))
    values = b.op("Reshape", source, b.constant([-1], torch.int64))
    taken = b.op("Gather", values, b.op("Where", flat, safe, b.constant(0, torch.int64)), axis=0)
    made = b.op("Where", flat, taken, reshape(b, x, (size,)), dtype=x.dtype, shape=(size,))
    return reshape(b, made, shape)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(b: GraphBuilder, node: fx.Node, dy: Value, mask: Value, sizes: Sequence[Dim]) -> Value:
    """dY of the true places, one after the other; the others go to one place more, which is cut off."""
    dtype, shape = b.dtype_of(dy), b.shape_of(dy)
    mask = expand(b, mask, shape)
    flat, places = _places_of_true(b, mask, meta_size(dy))
    total: Dim = 1
    for extent in sizes:
        total = total * extent
    where = b.op("Where", flat, places, b.size(total))
    zeros = filled(b, (total + 1,), 0, dtype)
    made = b.op("ScatterElements", zeros, where, reshape(b, dy, (meta_size(dy),)), axis=0, reduction="add")
    cut = b.op("Slice", made, b.constant([0], torch.int64), b.sizes([total]), dtype=dtype, shape=(total,))
    return reshape(b, cut, sizes)


@lowers(aten.replication_pad1d_backward.default)
@lowers(aten.replication_pad2d_backward.default)
@lowers(aten.replication_pad3d_backward.default)
def replication_pad_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, padding: Sequence[int]) -> Value:
    """Axis by axis: what was copied from an element is added to it."""
    shape, dtype = b.shape_of(x), b.dtype_of(dy)
    current = list(b.shape_of(dy))
    for i in range(len(padding) // 2):
        axis, before = len(shape) - 1 - i, padding[2 * i]
        extent, padded = shape[axis], current[axis]
        if not isinstance(extent, int) or not isinstance(padded, int):
            raise NoLoweringError("an extent that is not a constant")
        source = np.clip(np.arange(padded) - before, 0, extent - 1)
        current[axis] = extent
        dy = b.op(
            "GatherGrad", b.sizes(current), b.constant(source), dy, axis=axis, domain="com.microsoft", dtype=dtype,
            shape=current,
        )  # fmt: skip
    return dy


@lowers(aten._efficientzerotensor.default)
def zeros(b: GraphBuilder, node: fx.Node, sizes: Sequence[Dim], **_: object) -> Value:
    found = meta(node)
    return filled(b, found.shape, 0, found.dtype)


@lowers(aten.angle.default)
def angle(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    """Of real numbers: pi for negative ones, 0 for the others."""
    refuse_complex(x)
    dtype = meta(node).dtype
    x = b.cast(x, dtype)
    zero = b.constant(0.0, dtype)
    made = b.op("Where", b.op("Less", x, zero), b.constant(torch.pi, dtype), zero)
    return b.op("Where", b.op("IsNaN", x), x, made, dtype=dtype)


@lowers(aten._trilinear.default)
def trilinear(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    y: Value,
    z: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """The sum of a product of three, each with axes of extent 1 put in."""
    dtype = b.dtype_of(x)
    parts = []
    for value, axes in ((x, expand1), (y, expand2), (z, expand3)):
        parts.append(b.op("Unsqueeze", value, b.constant(sorted(axes), torch.int64)) if axes else value)
    product = b.op("Mul", b.op("Mul", parts[0], parts[1]), parts[2])
    if not sumdim:
        return product
    return b.op("ReduceSum", product, b.constant(list(sumdim), torch.int64), keepdims=0, dtype=dtype)
