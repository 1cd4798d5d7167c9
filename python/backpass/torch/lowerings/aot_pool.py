"""Pooling with the indices its gradient reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.backward_pool import adaptive_average, product
from backpass.torch.lowerings.common import meta, reshape

aten = torch.ops.aten


def _max_pool(
    b: GraphBuilder, node: fx.Node, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, spatial: int,
) -> tuple[Value, Value]:  # fmt: skip
    """ONNX counts indices through the whole tensor, torch within a plane."""
    shape = b.shape_of(x)
    x = x if len(shape) == spatial + 2 else reshape(b, x, (1, *shape))
    full = [list(v) * spatial if len(v) == 1 else list(v) for v in (kernel, stride or kernel, padding, dilation)]
    y, at = b.op(
        "MaxPool", x, kernel_shape=full[0], strides=full[1], pads=full[2] * 2, dilations=full[3],
        ceil_mode=int(ceil_mode), outputs=2,
    )  # fmt: skip
    within = b.op("Mod", at, b.size(product(shape[-spatial:])))
    pooled = (*b.shape_of(x)[:2], *meta(node, 0).shape[-spatial:])
    made = reshape(b, Value(y, x.dtype, pooled), meta(node, 0).shape)
    return made, reshape(b, Value(within, torch.int64, pooled), meta(node, 0).shape)


@lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    b: GraphBuilder, node: fx.Node, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    return _max_pool(b, node, x, kernel, stride, padding, dilation, ceil_mode, 2)


@lowers(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(
    b: GraphBuilder, node: fx.Node, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    return _max_pool(b, node, x, kernel, stride, padding, dilation, ceil_mode, 3)


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
