"""Layer, group and root mean square normalisation, whole operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common

aten = torch.ops.aten


def given(b: GraphBuilder, x: Value | None, shape: Sequence[Dim], number: float, dtype: torch.dtype) -> Value:
    """The weight, or a constant in its place."""
    if x is not None:
        return b.cast(x, dtype)
    return common.filled(b, shape, number, dtype)


def used(node: fx.Node, index: int) -> bool:
    """Whether anything reads this result of the operator."""
    return any(user.args[1] == index and user.users for user in node.users)


@lowers(aten.layer_norm.default)
def layer_norm(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    extents: Sequence[Dim],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Value:
    dtype = b.dtype_of(x)
    scale = given(b, weight, extents, 1.0, dtype)
    shift = None if bias is None else b.cast(bias, dtype)
    return b.op("LayerNormalization", x, scale, shift, axis=-len(extents), epsilon=eps, dtype=dtype)


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    b: GraphBuilder, node: fx.Node, x: Value, extents: Sequence[Dim], weight: Any, bias: Any, eps: float
) -> tuple[Value, ...]:
    dtype = b.dtype_of(x)
    scale = given(b, weight, extents, 1.0, dtype)
    shift = None if bias is None else b.cast(bias, dtype)
    y, mean, rstd = b.op("LayerNormalization", x, scale, shift, axis=-len(extents), epsilon=eps, outputs=3)
    # ONNX gives the statistics in float32
    stats = node.meta["val"][1].dtype
    if stats == torch.float64:
        raise NoLoweringError("statistics in float64")
    return y, b.cast(Value(mean, torch.float32), stats), b.cast(Value(rstd, torch.float32), stats)


@lowers(aten.rms_norm.default)
def rms_norm(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    extents: Sequence[Dim],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    dtype = b.dtype_of(x)
    if eps is None:
        eps = torch.finfo(torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype).eps
    scale = given(b, weight, extents, 1.0, dtype)
    if b.opset >= 23:
        return b.op("RMSNormalization", x, scale, axis=-len(extents), epsilon=eps, dtype=dtype)
    wide = b.cast(x, torch.float32) if dtype in (torch.float16, torch.bfloat16) else x
    axes = b.constant(list(range(-len(extents), 0)), torch.int64)
    mean = b.op("ReduceMean", b.op("Mul", wide, wide), axes, keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(eps, wide.dtype)))
    normal = b.cast(b.op("Div", wide, root, dtype=wide.dtype), dtype)
    return b.op("Mul", normal, scale, dtype=dtype)


@lowers(aten.group_norm.default)
def group_norm(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Value:
    if b.opset < 21:
        raise NoLoweringError("GroupNormalization with a weight per channel came with opset 21")
    dtype, shape = b.dtype_of(x), b.shape_of(x)
    flat = x if x.rank > 2 else common.unsqueeze(b, x, 2)
    scale, shift = given(b, weight, shape[1:2], 1.0, dtype), given(b, bias, shape[1:2], 0.0, dtype)
    y = b.op("GroupNormalization", flat, scale, shift, num_groups=groups, epsilon=eps, dtype=dtype, shape=flat.shape)
    return y if x.rank > 2 else common.squeeze(b, y, 2)
