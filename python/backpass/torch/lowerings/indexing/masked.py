"""Writing where a mask is true."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import expand, filled, meta, refuse_complex, reshape
from backpass.torch.lowerings.indexing.order import meta_size

aten = torch.ops.aten


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
