"""Writing where a mask is true."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import expand, filled, gradients, meta, refuse_complex, reshape
from backpass.torch.lowerings.indexing.order import meta_size

aten = torch.ops.aten


@lowers(aten.masked_scatter.default)
def masked_scatter(b: GraphBuilder, node: fx.Node, x: Value, mask: Value, source: Value) -> Value:
    return where_true(b, expand(b, x, meta(node).shape), mask, source)


def where_true(b: GraphBuilder, x: Value, mask: Value, source: Value) -> Value:
    """The true places of x filled with the elements of the source, one after the other."""
    refuse_complex(x)
    shape, size = b.shape_of(x), meta_size(x)
    flat = reshape(b, expand(b, mask, shape), (size,))
    counts = b.op("CumSum", b.cast(flat, torch.int64), b.constant(0, torch.int64), dtype=torch.int64, shape=(size,))
    before = b.op("Sub", counts, b.constant(1, torch.int64))
    values = b.op("Reshape", source, b.constant([-1], torch.int64))
    taken = b.op("Gather", values, b.op("Where", flat, before, b.constant(0, torch.int64)), axis=0)
    made = b.op("Where", flat, taken, reshape(b, x, (size,)), dtype=x.dtype, shape=(size,))
    return reshape(b, made, shape)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, mask: Value, sizes: Sequence[Dim]
) -> Value | None:
    x, source = (filled(b, shape, 0, b.dtype_of(dy)) for shape in (b.shape_of(dy), sizes))
    return gradients(b, dy, [source], lambda s: where_true(b, x, mask, s))[0]
