"""Gradients of layer, batch and group normalisation, as AOT graphs hold them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import filled, reshape

aten = torch.ops.aten
MICROSOFT = "com.microsoft"

Gradients = tuple[Value | None, ...]


def _wanted(gradients: Sequence[Value | None], mask: Sequence[bool]) -> Gradients:
    return tuple(g if wanted else None for g, wanted in zip(gradients, mask, strict=True))


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    b: GraphBuilder,
    node: fx.Node,
    dy: Value,
    x: Value,
    normalized_shape: Sequence[Dim],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> Gradients:
    scale = filled(b, normalized_shape, 1, b.dtype_of(x)) if weight is None else weight
    gradients = b.op(
        "LayerNormalizationGrad", dy, x, scale, mean, rstd, axis=-len(normalized_shape), outputs=3, domain=MICROSOFT
    )
    return _wanted(gradients, output_mask)


@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    b: GraphBuilder,
    node: fx.Node,
    dy: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Gradients:
    channels = (b.shape_of(x)[1],)
    scale = filled(b, channels, 1, b.dtype_of(x)) if weight is None else weight
    if train:
        gradients = b.op(
            "BatchNormalizationGrad", dy, x, scale, save_mean, save_invstd, epsilon=float(eps), outputs=3,
            domain=MICROSOFT,
        )  # fmt: skip
        return _wanted(gradients, output_mask)
    return _wanted(_fixed_statistics(b, dy, x, scale, running_mean, running_var, eps), output_mask)


def _fixed_statistics(
    b: GraphBuilder, dy: Value, x: Value, scale: Value, mean: Value | None, variance: Value | None, eps: float
) -> Gradients:
    assert mean is not None
    assert variance is not None
    dtype = b.dtype_of(x)
    per_channel = (-1, *([1] * (x.rank - 2)))
    inverse = b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, b.constant(eps, variance.dtype))))
    mean, inverse, scale = (b.op("Reshape", v, b.sizes(per_channel)) for v in (mean, inverse, scale))
    axes = b.constant([0, *range(2, x.rank)], torch.int64)
    normalized = b.op("Mul", b.op("Sub", x, mean), inverse)
    return (
        b.op("Mul", dy, b.op("Mul", scale, inverse), dtype=dtype),
        b.op("ReduceSum", b.op("Mul", dy, normalized), axes, keepdims=0, dtype=dtype),
        b.op("ReduceSum", dy, axes, keepdims=0, dtype=dtype),
    )


@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    b: GraphBuilder,
    node: fx.Node,
    dy: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    n: Dim,
    c: Dim,
    area: Dim,
    group: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """A group of channels is a row of layer normalisation, whose scale is applied to dY beforehand."""
    dtype = b.dtype_of(x)
    flat, rows = (n, c, area), (n * group, c // group * area)
    dy3 = reshape(b, dy, flat)
    scaled = dy3 if weight is None else b.op("Mul", dy3, b.op("Reshape", weight, b.sizes((-1, 1))), shape=flat)
    mean, rstd = reshape(b, mean, (n * group, 1)), reshape(b, rstd, (n * group, 1))
    x_rows = reshape(b, x, rows)
    ones = filled(b, (rows[1],), 1, dtype)
    scaled_rows = reshape(b, Value(scaled, dtype, flat), rows)
    dx = b.op("LayerNormalizationGrad", scaled_rows, x_rows, ones, mean, rstd, axis=-1, domain=MICROSOFT)
    normalized = b.op("Mul", b.op("Sub", x_rows, mean), rstd, dtype=dtype, shape=rows)
    axes = b.constant([0, 2], torch.int64)
    gradients = (
        reshape(b, Value(dx, dtype, rows), b.shape_of(x)),
        b.op("ReduceSum", b.op("Mul", dy3, reshape(b, normalized, flat)), axes, keepdims=0, dtype=dtype),
        b.op("ReduceSum", dy3, axes, keepdims=0, dtype=dtype),
    )
    return _wanted(gradients, output_mask)
