"""Adaptive pooling: windows of unequal extent, looked up in a table or averaged by a product with a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings.common import axis_last, gradients, inverse, meta, reshape, transpose
from backpass.torch.lowerings.reductions import reduced
from backpass.torch.symbols import dims, is_one

aten = torch.ops.aten

Table = np.ndarray[Any, np.dtype[np.int64]]


def bounds(extent: int, pooled: int) -> tuple[list[int], list[int]]:
    """Where windows begin and end."""
    return [i * extent // pooled for i in range(pooled)], [-(-(i + 1) * extent // pooled) for i in range(pooled)]


def windows(extent: int, pooled: int) -> Table:
    """[pooled, widest]: positions of each window; a shorter one repeats its last position."""
    begins, ends = bounds(extent, pooled)
    widest = max((e - b for b, e in zip(begins, ends, strict=True)), default=0)
    rows = [np.minimum(np.arange(begin, begin + widest), end - 1) for begin, end in zip(begins, ends, strict=True)]
    return np.array(rows, dtype=np.int64).reshape(pooled, widest)


def _adaptive_max(b: GraphBuilder, node: fx.Node, x: Value, spatial: int) -> tuple[Value, ...]:
    extents, pooled = b.shape_of(x)[-spatial:], meta(node, 0).shape[-spatial:]
    if not all(isinstance(d, int) for d in (*extents, *pooled)):
        raise NoLoweringError("extents that are not constants")
    flat: Table = np.zeros((), np.int64)
    for extent, size in zip(extents, pooled, strict=True):  # position in a plane, [out, window] for each axis
        table = windows(int(extent), int(size))
        flat = flat.reshape(*flat.shape, 1, 1) * int(extent) + table
    order = [*range(0, 2 * spatial, 2), *range(1, 2 * spatial, 2)]
    flat = flat.transpose(order).reshape([int(d) for d in pooled] + [-1])
    lead, axis = b.shape_of(x)[:-spatial], x.rank
    planes = b.op("Reshape", x, b.sizes([*lead, math.prod(extents)]))
    parts = b.op("Gather", planes, b.constant(flat), axis=axis - spatial)
    best = b.op("ArgMax", parts, axis=axis, keepdims=0, shape=meta(node, 0).shape)
    rows = math.prod(map(int, pooled))
    offsets = b.constant(np.arange(rows) * flat.shape[-1])
    places = b.op("Gather", b.constant(flat.reshape(-1)), b.op("Add", reshape(b, best, [*lead, rows]), offsets), axis=0)
    values = b.op("GatherElements", planes, places, axis=axis - spatial)  # of equals, the first gets all the gradient
    return tuple(b.op("Reshape", found, b.sizes(meta(node, 0).shape)) for found in (values, places))


lowers(aten.adaptive_max_pool2d.default)(lambda b, node, x, size: _adaptive_max(b, node, x, 2))
lowers(aten.adaptive_max_pool3d.default)(lambda b, node, x, size: _adaptive_max(b, node, x, 3))


def shares(into: int, outof: int) -> Any:
    """[in, out]: what each input is worth in each window of adaptive averaging."""
    matrix = np.zeros((into, outof))
    for i, (begin, end) in enumerate(zip(*bounds(into, outof), strict=True)):
        matrix[begin:end, i] = 1 / (end - begin)
    return matrix


def _averaged(b: GraphBuilder, x: Value, wanted: Sequence[Dim]) -> Value:
    """Averaging is linear along each axis: a product with a matrix of shares."""
    first = x.rank - len(wanted)
    if all(is_one(d) for d in wanted):
        return reduced(b, "ReduceMean", x, list(range(first, x.rank)), True)
    for axis, outof in enumerate(wanted, first):
        into = b.shape_of(x)[axis]
        if not isinstance(into, int) or not isinstance(outof, int):
            raise NoLoweringError("extents that are not constants")
        if into != outof:
            x = _averaged_along(b, x, axis, into, outof)
    return x


def _averaged_along(b: GraphBuilder, x: Value, axis: int, into: int, outof: int) -> Value:
    order = axis_last(axis, x.rank)
    moved = transpose(b, x, order)
    shape = [*b.shape_of(moved)[:-1], outof]
    return transpose(b, b.op("MatMul", moved, b.constant(shares(into, outof), x.dtype), shape=shape), inverse(order))


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg(b: GraphBuilder, node: fx.Node, x: Value, size: Sequence[Dim]) -> Value:
    return _averaged(b, x, dims(meta(node).shape)[-len(size) :])


def _adaptive_avg_backward(spatial: int) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, dy: Value, x: Value) -> Value | None:
        return gradients(b, dy, [x], lambda v: _averaged(b, v, b.shape_of(dy)[-spatial:]))[0]

    return lower


lowers(aten._adaptive_avg_pool2d_backward.default)(_adaptive_avg_backward(2))
lowers(aten._adaptive_avg_pool3d_backward.default)(_adaptive_avg_backward(3))
