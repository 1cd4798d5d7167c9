"""Adaptive pooling: windows of unequal extent, looked up in a table or averaged by a product with a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import gradients, is_one, meta, reshape, transpose
from backpass.torch.lowerings.reductions import reduced
from backpass.torch.symbols import dims

aten = torch.ops.aten

Table = np.ndarray[Any, np.dtype[np.int64]]


def windows(extent: int, pooled: int) -> Table:
    """[pooled, widest]: positions of each window; a shorter one repeats its last position."""
    begins = [i * extent // pooled for i in range(pooled)]
    ends = [-(-(i + 1) * extent // pooled) for i in range(pooled)]
    widest = max((e - b for b, e in zip(begins, ends, strict=True)), default=0)
    rows = [np.minimum(np.arange(begin, begin + widest), end - 1) for begin, end in zip(begins, ends, strict=True)]
    return np.array(rows, dtype=np.int64).reshape(pooled, widest)


def _adaptive_max(b: GraphBuilder, node: fx.Node, x: Value, spatial: int) -> tuple[Value, Value]:
    extents, pooled = b.shape_of(x)[-spatial:], meta(node, 0).shape[-spatial:]
    if not all(isinstance(d, int) for d in (*extents, *pooled)):
        raise NoLoweringError("extents that are not constants")
    flat: Table = np.zeros((), np.int64)
    for extent, size in zip(extents, pooled, strict=True):  # position in a plane, [out, window] for each axis
        table = windows(int(extent), int(size))
        flat = flat.reshape(*flat.shape, 1, 1) * int(extent) + table
    order = [*range(0, 2 * spatial, 2), *range(1, 2 * spatial, 2)]
    flat = flat.transpose(order).reshape([int(d) for d in pooled] + [-1])
    shape = b.shape_of(x)
    area = int(np.prod([int(d) for d in extents]))
    planes = b.op("Reshape", x, b.sizes([*shape[:-spatial], area]))
    parts = b.op("Gather", planes, b.constant(flat), axis=len(shape) - spatial)
    axis = len(shape)
    values = b.op("ReduceMax", parts, b.constant([axis], torch.int64), keepdims=0, dtype=x.dtype)
    best = b.op("ArgMax", parts, axis=axis, keepdims=0, dtype=torch.int64, shape=meta(node, 0).shape)
    rows = int(np.prod([int(d) for d in pooled]))
    chosen = reshape(b, best, [*shape[:-spatial], rows])
    offsets = b.constant(np.arange(rows) * flat.shape[-1])
    places = b.op("Gather", b.constant(flat.reshape(-1)), b.op("Add", chosen, offsets), axis=0)
    at = b.op("Reshape", places, b.sizes(meta(node, 1).shape), dtype=torch.int64)
    return values, at


@lowers(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(b: GraphBuilder, node: fx.Node, x: Value, size: Sequence[int]) -> tuple[Value, Value]:
    return _adaptive_max(b, node, x, 2)


@lowers(aten.adaptive_max_pool3d.default)
def adaptive_max_pool3d(b: GraphBuilder, node: fx.Node, x: Value, size: Sequence[int]) -> tuple[Value, Value]:
    return _adaptive_max(b, node, x, 3)


def shares(into: int, outof: int) -> torch.Tensor:
    """[out, in]: what each input is worth in each window of adaptive averaging."""
    matrix = torch.zeros(outof, into, dtype=torch.float64)
    for i in range(outof):
        begin, end = i * into // outof, -(-(i + 1) * into // outof)
        matrix[i, begin:end] = 1 / (end - begin)
    return matrix


def _averaged(b: GraphBuilder, x: Value, wanted: Sequence[Dim]) -> Value:
    """Averaging is linear along each axis: a product with a matrix of shares."""
    spatial = len(wanted)
    if all(is_one(d) for d in wanted):
        return reduced(b, "ReduceMean", x, list(range(x.rank - spatial, x.rank)), True)
    for axis, outof in enumerate(wanted, x.rank - spatial):
        into = b.shape_of(x)[axis]
        if not isinstance(into, int) or not isinstance(outof, int):
            raise NoLoweringError("extents that are not constants")
        if into != outof:
            x = _averaged_along(b, x, axis, into, outof)
    return x


def _averaged_along(b: GraphBuilder, x: Value, axis: int, into: int, outof: int) -> Value:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        matrix = shares(into, outof).T
    order = [i for i in range(x.rank) if i != axis] + [axis]
    made = b.op("MatMul", transpose(b, x, order), b.constant(matrix, x.dtype))
    back = transpose(b, made, [order.index(i) for i in range(x.rank)])
    return Value(back, x.dtype, [outof if i == axis else d for i, d in enumerate(b.shape_of(x))])


def _adaptive_avg(spatial: int) -> Any:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, size: Sequence[Dim]) -> Value:
        return _averaged(b, x, dims(meta(node).shape)[-spatial:])

    def lower_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value) -> Value | None:
        return gradients(b, dy, [x], lambda v: _averaged(b, v, b.shape_of(dy)[-spatial:]))[0]

    return lower, lower_backward


for _spatial, _forward, _backward in (
    (2, aten._adaptive_avg_pool2d, aten._adaptive_avg_pool2d_backward),
    (3, aten._adaptive_avg_pool3d, aten._adaptive_avg_pool3d_backward),
):
    for _target, _lowering in zip((_forward, _backward), _adaptive_avg(_spatial), strict=True):
        lowers(_target.default)(_lowering)
