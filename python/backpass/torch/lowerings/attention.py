"""scaled_dot_product_attention: one Attention node, or its parts where dropout acts on the probabilities."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.normalization.softmax import safe
from backpass.torch.lowerings.random import dropped
from backpass.torch.symbols import is_one

aten = torch.ops.aten


@lowers(aten.scaled_dot_product_attention.default)
def attention(
    b: GraphBuilder,
    node: fx.Node,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if not all(isinstance(v, int | float | bool | None) for v in (dropout_p, is_causal, scale)):
        raise NoLoweringError("settings that are not constants")
    if attn_mask is not None and b.dtype_of(attn_mask).is_floating_point:
        attn_mask = b.cast(attn_mask, b.dtype_of(query))
    if dropout_p or b.opset < 23 or not whole(b, query, key, value, enable_gqa):
        return by_parts(b, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if scale is not None and b.dtype_of(query) == torch.float64 and ctypes.c_float(scale).value != scale:
        # The attribute is of 32 bits, also of an operator on 64.
        query, scale = b.op("Mul", query, scale), 1.0
    shape = common.meta(node).shape
    q, k, v = (four_axes(b, x) for x in (query, key, value))
    mask = None if attn_mask is None else mask_for(b, attn_mask, query, key)
    attributes: dict[str, Any] = {"is_causal": int(is_causal), "scale": None if scale is None else float(scale)}
    extents = (*b.shape_of(q)[:3], shape[-1])
    result = b.op("Attention", q, k, v, mask, shape=extents, outputs=None, **attributes)
    return common.reshape(b, result, shape)


def whole(b: GraphBuilder, query: Value, key: Value, value: Value, grouped: bool) -> bool:
    """Whether ONNX's Attention can do it: it has one batch axis, and batches and heads do not broadcast."""
    if max(query.rank, key.rank, value.rank) > 4 or not query.rank == key.rank == value.rank:
        return False
    if grouped and query.rank != 4:
        return False
    shapes = [b.shape_of(x)[: -3 if grouped else -2] for x in (query, key, value)]
    fixed = [{d for d in extents if isinstance(d, int)} for extents in zip(*shapes, strict=True)]
    return all(len(found) <= 1 for found in fixed)


def mask_for(b: GraphBuilder, mask: Value, query: Value, key: Value) -> Value:
    """The mask beside [batch, heads, length, size]."""
    keys = b.shape_of(key)[-2]
    if is_one(b.shape_of(mask)[-1]) and not is_one(keys):
        mask = common.expand(b, mask, (*b.shape_of(mask)[:-1], keys))
    if query.rank == 3 and mask.rank == 3:
        return common.unsqueeze(b, mask, 1)
    return mask


def four_axes(b: GraphBuilder, x: Value) -> Value:
    """[batch, heads, length, size]; without an axis of heads there is one head."""
    if x.rank == 4:
        return x
    lead = [1] * (3 - x.rank)
    return common.reshape(b, x, [*lead, *b.shape_of(x)[:-2], 1, *b.shape_of(x)[-2:]])


def by_parts(
    b: GraphBuilder,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
) -> Value:
    """softmax(q k' scale + mask) v with dropout of the probabilities."""
    dtype = b.dtype_of(query)
    if grouped:
        key, value = (repeated(b, x, b.shape_of(query)[-3]) for x in (key, value))
    size = b.shape_of(query)[-1]
    if scale is None and not isinstance(size, int):
        factor: Value | float = b.op("Reciprocal", b.op("Sqrt", b.scalar(size, dtype)))
    else:
        factor = 1 / math.sqrt(size) if scale is None else scale
    order = [*range(key.rank - 2), key.rank - 1, key.rank - 2]
    shape = (*b.shape_of(query)[:-1], b.shape_of(key)[-2])
    scores = b.op("MatMul", b.op("Mul", query, factor), common.transpose(b, key, order), shape=shape)
    if is_causal:
        mask = causal(b, shape[-2], shape[-1])
    return b.op("MatMul", dropped(b, masked_softmax(b, scores, mask), dropout_p)[0], value)


def masked_softmax(b: GraphBuilder, scores: Value, mask: Value | None) -> Value:
    dtype, axis = b.dtype_of(scores), scores.rank - 1
    if mask is None:
        return b.op("Softmax", scores, axis=axis)
    if mask.dtype == torch.bool:
        # Finite, and masked again afterwards: rows without any key are 0, not NaN, and so are their gradients.
        shares = b.op("Softmax", b.op("Where", mask, scores, torch.finfo(dtype).min), axis=axis)
        return b.op("Where", mask, shares, 0)
    return safe(b, b.op("Add", scores, b.cast(mask, dtype)), axis)


def causal(b: GraphBuilder, rows: Dim, columns: Dim) -> Value:
    """True on and below the diagonal that starts at the top left."""
    ones = common.expand(b, b.constant(True, torch.bool), (rows, columns))
    return b.op("Trilu", ones, upper=0, shape=(rows, columns))


def repeated(b: GraphBuilder, x: Value, heads: Dim) -> Value:
    """Each head as often as it is shared."""
    shape = b.shape_of(x)
    if common.same_extent(shape[-3], heads):
        return x
    times = heads // shape[-3]
    wide = common.expand(b, common.unsqueeze(b, x, x.rank - 2), (*shape[:-2], times, *shape[-2:]))
    return common.reshape(b, wide, (*shape[:-3], heads, *shape[-2:]))
