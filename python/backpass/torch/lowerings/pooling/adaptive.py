"""Adaptive pooling: windows of unequal extent, looked up in a table or averaged by a product with a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.backward_pool import adaptive_average
from backpass.torch.lowerings.common import meta, reshape

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


def _adaptive(b: GraphBuilder, node: fx.Node, x: Value, spatial: int) -> Value:
    wanted = meta(node).shape[-spatial:]
    if all(isinstance(d, int) and d == 1 for d in wanted):
        axes = b.constant(list(range(-spatial, 0)), torch.int64)
        result: Value = b.op("ReduceMean", x, axes, keepdims=1, dtype=x.dtype)
        return result
    return adaptive_average(b, x, list(zip(b.shape_of(x)[-spatial:], wanted, strict=True)), transposed=False)


@lowers(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(b: GraphBuilder, node: fx.Node, x: Value, size: Sequence[int]) -> Value:
    return _adaptive(b, node, x, 2)


@lowers(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(b: GraphBuilder, node: fx.Node, x: Value, size: Sequence[int]) -> Value:
    return _adaptive(b, node, x, 3)
