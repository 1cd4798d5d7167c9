"""Views by strides, gathered.

Strides mean the memory torch has: the engine has every tensor in order. torch's strides of the tensor (not ours) say
which of its elements a place in that memory holds. What reads memory beside the tensor is refused: handed to torch at
run time, it would read something else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import Max

from backpass._core import Unsupported
from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import counted, flat, inverse, reshape, same_extent, transpose, unsqueeze

aten = torch.ops.aten
MOST = 1 << 20  # elements of an index table that is written into the model

Table = np.ndarray[Any, np.dtype[np.int64]]


def _refused(node: fx.Node, got: str) -> Unsupported:
    name = str(node.target).split(".")[1]
    return Unsupported(f"[{name} '{node.name}'] strides: got {got}, expected a tensor and places in it; copy it before")


def _source(node: fx.Node) -> torch.Tensor:
    """The tensor with torch's strides."""
    at: Any = node.args[0]
    found: torch.Tensor = at.meta["val"]
    while at.args and isinstance(at.args[0], fx.Node):
        made, given = at.meta.get("val"), at.args[0].meta.get("val")
        if at.target is torch.ops.backpass.stop_gradient.default:
            if not _alike(given, made):  # a mark is a copy where torch had a view, and torch traced it again
                raise _refused(node, "a view that was detached")
        elif not _one_memory(given, made):
            break
        at = at.args[0]
    return found


def _one_memory(x: Any, y: Any) -> bool:
    both = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return both and bool(x.untyped_storage()._cdata == y.untyped_storage()._cdata)


def _alike(x: Any, y: Any) -> bool:
    pairs = zip((*x.stride(), x.storage_offset()), (*y.stride(), y.storage_offset()), strict=True)
    return all(same_extent(i, j) for i, j in pairs)


def _order(source: torch.Tensor) -> list[int] | None:
    """Its axes as they lie in memory, if it certainly fills one piece of it, each element once."""
    strides: list[Any] = list(source.stride())
    known: list[Any] = [s if isinstance(s, int) else s.node.hint if s.node.has_hint() else None for s in strides]
    order = list(range(source.dim()))
    if None not in known:
        order.sort(key=lambda axis: -known[axis])
    wanted: Any = 1
    for axis in reversed(order):
        extent = source.shape[axis]
        if isinstance(extent, int) and extent == 1:
            continue
        if _step(strides[axis]) != _step(wanted):
            return None
        wanted = wanted * extent
    return order


def _step(stride: Any) -> Any:
    """For comparing. torch counts no extent as 0 here; but then there is nothing to be read."""
    expr = sympy.sympify(stride if isinstance(stride, int) else stride.node.expr)
    maxima = {m: sympy.Mul(*(a for a in m.args if a != 1)) for m in expr.atoms(Max) if 1 in m.args and len(m.args) == 2}
    return sympy.expand(expr.xreplace(maxima))


def _table(size: Sequence[Dim], stride: Sequence[Dim], offset: Dim) -> Table | None:
    """Where in memory each element lies, if that can be written down."""
    if not all(isinstance(v, int) for v in (*size, *stride, offset)) or math.prod(map(int, size)) > MOST:
        return None
    at: Any = np.full((), offset, np.int64)
    for extent, step in zip(size, stride, strict=True):
        at = at[..., None] + np.arange(int(extent)) * int(step)
    return np.asarray(at)


def _computed(b: GraphBuilder, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim) -> Value:
    """The same at run time."""
    at = b.size(offset)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        at = b.op("Add", unsqueeze(b, at, axis), b.op("Mul", counted(b, extent), b.size(step)))
    return at


def _places(
    b: GraphBuilder, node: fx.Node, source: torch.Tensor, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim | None
) -> tuple[Value, list[int]]:
    """Which elements are meant, of the tensor with its axes in this order, flattened."""
    start: Any = source.storage_offset()
    first: Any = start if offset is None else offset
    order = _order(source)
    table = _table(size, stride, 0 if same_extent(first, start) else first - start)
    if order is None:
        own = _table(source.shape, source.stride(), 0)
        if table is None or own is None:
            raise _refused(node, "a view with gaps, of extents that vary or with many elements")
        held, where = np.unique(own, return_index=True)
        if not np.isin(table, held).all():
            raise _refused(node, "places beside the tensor")
        return b.constant(where[np.searchsorted(held, table)].astype(np.int64)), list(range(source.dim()))
    if table is not None:
        count: Any = source.numel()
        if table.size and (table.min() < 0 or (isinstance(count, int) and table.max() >= count)):
            raise _refused(node, "places beside the tensor")
        return b.constant(table), order
    if not same_extent(first, start) and not (isinstance(start, int) and start == 0):
        raise _refused(node, "a storage offset that varies")
    return _computed(b, size, stride, 0 if same_extent(first, start) else first), order


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> Value:
    places, order = _places(b, node, _source(node), size, stride, storage_offset)
    return b.op("Gather", flat(b, transpose(b, x, order)), places, axis=0)


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
    source = _source(node)
    if _order(source) is None:
        raise _refused(node, "a view with gaps or overlaps to write to")
    places, order = _places(b, node, source, size, stride, storage_offset)
    ordered = transpose(b, x, order)
    made = b.op("ScatterElements", *(flat(b, v) for v in (ordered, places, src)), axis=0)
    return transpose(b, reshape(b, made, b.shape_of(ordered)), inverse(order))


@lowers(aten.resize.default)
def resize(b: GraphBuilder, node: fx.Node, x: Value, size: Sequence[Dim], **_: Any) -> Value:
    """Takes the memory as it is: torch may do that at run time where the tensor lies in order."""
    source = _source(node)
    if _order(source) != list(range(source.dim())):
        raise _refused(node, "a view")
    raise NoLoweringError("memory of another size")
