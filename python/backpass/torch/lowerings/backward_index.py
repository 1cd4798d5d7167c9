"""Gradients of embedding, selecting and slicing, as AOT graphs hold them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import axis_of, filled, refuse_complex, unsqueeze

aten = torch.ops.aten
MICROSOFT = "com.microsoft"
END = 2**63 - 1


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: GraphBuilder,
    node: fx.Node,
    dy: Value,
    indices: Value,
    num_weights: Dim,
    padding_idx: Dim,
    scale_grad_by_freq: bool,
) -> Value:
    dtype, kind = b.dtype_of(dy), b.dtype_of(indices)
    factors: Value | None = None
    if scale_grad_by_freq:
        ones = filled(b, b.shape_of(indices), 1, dtype)
        counts = b.op("GatherGrad", b.sizes([num_weights]), indices, ones, axis=0, domain=MICROSOFT)
        factors = b.op("Reciprocal", b.op("Gather", counts, indices, axis=0), dtype=dtype, shape=indices.shape)
        dy = b.op("Mul", dy, unsqueeze(b, factors, indices.rank), dtype=dtype, shape=dy.shape)
    if not isinstance(padding_idx, int) or padding_idx >= 0:
        padding = b.op("Equal", indices, b.scalar(padding_idx, kind), dtype=torch.bool, shape=indices.shape)
        dy = b.op("Where", unsqueeze(b, padding, indices.rank), b.constant(0, dtype), dy, dtype=dtype, shape=dy.shape)
    shape = b.sizes([num_weights, b.shape_of(dy)[-1]])
    result: Value = b.op("GatherGrad", shape, indices, dy, axis=0, domain=MICROSOFT, dtype=dtype)
    return result


def _put_back(
    b: GraphBuilder, dy: Value, sizes: Sequence[Dim], axis: int, start: Dim, end: Dim, step: int = 1
) -> Value:
    """Zeros with dY where a slice was taken."""
    refuse_complex(dy)
    bounds = [b.sizes([start]), b.sizes([end]), b.constant([axis], torch.int64), b.constant([step], torch.int64)]
    result: Value = b.op("SliceGrad", dy, b.sizes(sizes), *bounds, domain=MICROSOFT, dtype=dy.dtype)
    return result


@lowers(aten.select_backward.default)
def select_backward(b: GraphBuilder, node: fx.Node, dy: Value, sizes: Sequence[Dim], dim: int, index: Dim) -> Value:
    axis = axis_of(dim, len(sizes))
    if isinstance(index, int) and index < 0:
        index = index + sizes[axis]
    return _put_back(b, unsqueeze(b, dy, axis), sizes, axis, index, index + 1)


@lowers(aten.slice_backward.default)
def slice_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, sizes: Sequence[Dim], dim: int, start: Dim, end: Dim, step: int
) -> Value:
    return _put_back(b, dy, sizes, axis_of(dim, len(sizes)), start, end, step)
