"""Views by strides, gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import reshape

aten = torch.ops.aten
MOST = 1 << 20  # elements of an index table that is written into the model


def _places(size: Sequence[Dim], stride: Sequence[Dim], offset: Dim) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where in the flat storage each element lies."""
    if not all(isinstance(v, int) for v in (*size, *stride, offset)):
        raise NoLoweringError("strides that are not constants")
    if int(np.prod([int(s) for s in size])) > MOST:
        raise NoLoweringError("a view of strides with many elements")
    at: Any = np.full((), offset, np.int64)
    for extent, step in zip(size, stride, strict=True):
        at = at[..., None] + np.arange(int(extent)) * int(step)
    return np.asarray(at)


def _storage_offset(node: fx.Node, offset: Dim | None) -> Dim:
    """Only a tensor that fills its storage in order looks the same to the engine."""
    source = node.args[0].meta["val"]  # type: ignore[union-attr]
    if not source.is_contiguous() or source.storage_offset() != 0:
        raise NoLoweringError("strides over a tensor that is itself a view")
    return 0 if offset is None else offset


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> Value:
    places = _places(size, stride, _storage_offset(node, storage_offset))
    flat = b.op("Reshape", x, b.constant([-1], torch.int64))
    result: Value = b.op("Gather", flat, b.constant(places), axis=0, dtype=x.dtype)
    return result


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    src: Value,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> Value:
    places = _places(size, stride, _storage_offset(node, storage_offset)).reshape(-1)
    flat = b.op("Reshape", x, b.constant([-1], torch.int64))
    values = b.op("Reshape", src, b.constant([-1], torch.int64))
    made = b.op("ScatterElements", flat, b.constant(places), values, axis=0, dtype=x.dtype)
    return reshape(b, made, b.shape_of(x))
