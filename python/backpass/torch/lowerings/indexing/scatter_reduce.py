"""Scattering with every reduction, and into diagonals."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import axis_of, expand, inverse, refuse_complex, reshape, transpose
from backpass.torch.lowerings.indexing.scatter import REDUCTIONS, scattered
from backpass.torch.lowerings.movement.shape import on_diagonal
from backpass.torch.lowerings.pointwise.arithmetic import floor_divide

aten = torch.ops.aten


def neutral(reduce: str, dtype: torch.dtype) -> Any:
    """What changes nothing."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if reduce == "amax" else info.max


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    dtype = b.dtype_of(x)
    if dtype == torch.bool:
        raise NoLoweringError("bool")
    start = x
    if not include_self:
        blank = expand(b, b.constant(neutral(reduce, dtype), dtype), b.shape_of(index))
        start = scattered(b, x, dim, index, blank)
    total = scattered(b, start, dim, index, src, REDUCTIONS[reduce])
    if reduce != "mean":
        return total
    ones = expand(b, b.constant(1, dtype), b.shape_of(index))
    first = expand(b, b.constant(1 if include_self else 0, dtype), b.shape_of(x))
    counts = b.op("Max", scattered(b, first, dim, index, ones, "add"), 1)
    return b.op("Div", total, counts) if dtype.is_floating_point else floor_divide(b, total, counts)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    b: GraphBuilder, node: fx.Node, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    refuse_complex(x)
    extents = b.shape_of(src)
    flat, order, places = on_diagonal(b, x, offset, dim1, dim2, extents[-1])
    made = scattered(b, flat, -1, expand(b, places, extents), src)
    return transpose(b, reshape(b, made, [b.shape_of(x)[i] for i in order]), inverse(order))


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
