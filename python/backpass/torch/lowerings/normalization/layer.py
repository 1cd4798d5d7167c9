"""Layer, group and root mean square normalisation, whole operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import Gradients, gradients

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
    return _layer_norm(b, x, extents, weight, bias, eps, 1)[0]


def _layer_norm(
    b: GraphBuilder, x: Value, extents: Sequence[Dim], weight: Any, bias: Any, eps: float, outputs: int
) -> tuple[Value, ...]:
    scale = given(b, weight, extents, 1.0, b.dtype_of(x))
    shift = None if bias is None else b.cast(bias, b.dtype_of(x))
    return b.op("LayerNormalization", x, scale, shift, axis=-len(extents), epsilon=eps, outputs=outputs)


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    b: GraphBuilder, node: fx.Node, x: Value, extents: Sequence[Dim], weight: Any, bias: Any, eps: float
) -> tuple[Value, ...]:
    y, mean, rstd = _layer_norm(b, x, extents, weight, bias, eps, 3)
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
        return b.op("RMSNormalization", x, scale, axis=-len(extents), epsilon=eps)
    wide = b.cast(x, torch.float32) if dtype in (torch.float16, torch.bfloat16) else x
    axes = b.constant(list(range(-len(extents), 0)))
    mean = b.op("ReduceMean", b.op("Mul", wide, wide), axes, keepdims=1)
    normal = b.op("Div", wide, b.op("Sqrt", b.op("Add", mean, eps)))
    return b.op("Mul", b.cast(normal, dtype), scale)


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
    y = b.op("GroupNormalization", flat, scale, shift, num_groups=groups, epsilon=eps, shape=flat.shape)
    return y if x.rank > 2 else common.squeeze(b, y, 2)


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, extents: Sequence[Dim], mean: Value, rstd: Value, weight: Any,
    bias: Any, output_mask: Sequence[bool],
) -> Gradients:  # fmt: skip
    scale = given(b, weight, extents, 1.0, b.dtype_of(x))
    count = max((i + 1 for i, want in enumerate(output_mask) if want), default=1)
    found = from_statistics(b, (dy, x, scale, mean, rstd), -len(extents), count)
    return tuple(found[i] if want else None for i, want in enumerate(output_mask))


def from_statistics(b: GraphBuilder, reads: Sequence[Value], axis: int, count: int) -> tuple[Value, ...]:
    """The first gradients of layer normalisation, from dY, X, the scale, the mean and the inverse deviation."""
    return b.op("LayerNormalizationGrad", *reads, axis=axis, outputs=count, domain="com.microsoft")


@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, mean: Value, rstd: Value, weight: Value | None, n: Dim, c: Dim,
    area: Dim, groups: int, output_mask: Sequence[bool],
) -> Gradients:  # fmt: skip
    """A group of channels is a row of layer normalisation; scale and shift come after it."""
    dtype, flat, rows = b.dtype_of(x), (n, c, area), (n * groups, c // groups * area)
    mean, rstd = (common.reshape(b, v, (n * groups, 1)) for v in (mean, rstd))
    x_rows = common.reshape(b, x, rows)
    normal = b.op("Mul", b.op("Sub", x_rows, b.cast(mean, dtype)), b.cast(rstd, dtype), shape=rows)
    scale, shift = (given(b, v, (c,), number, dtype) for v, number in ((weight, 1.0), (None, 0.0)))

    def affine(z: Value, factor: Value, offset: Value) -> Value:
        column = (common.reshape(b, v, (c, 1)) for v in (factor, offset))
        return b.op("Add", b.op("Mul", z, next(column)), next(column))

    parts = (common.reshape(b, normal, flat), scale, shift)
    dz, *parameters = gradients(b, common.reshape(b, dy, flat), parts, affine, output_mask)
    if dz is None:
        return (None, *parameters)
    ones = common.filled(b, rows[1:], 1, dtype)
    dz_rows = common.reshape(b, dz, rows)
    (dx,) = from_statistics(b, (dz_rows, x_rows, ones, mean, rstd), -1, 1)
    return (common.reshape(b, Value(dx, dtype, rows), b.shape_of(x)), *parameters)
