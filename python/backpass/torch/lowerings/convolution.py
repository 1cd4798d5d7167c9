"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import refuse_complex

aten = torch.ops.aten
Numbers = int | Sequence[int]


def each(value: Numbers, axes: int) -> list[int]:
    """One number per spatial axis."""
    listed = [value] if isinstance(value, int) else [int(v) for v in value]
    return listed * axes if len(listed) == 1 else listed


def convolved(
    b: GraphBuilder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    pads: Sequence[int],
    dilation: Numbers,
    groups: int,
) -> Value:
    refuse_complex(x, weight)
    axes = weight.rank - 2
    single = x.rank == axes + 1
    y = b.op(
        "Conv",
        common.unsqueeze(b, x, 0) if single else x,
        weight,
        bias,
        strides=each(stride, axes),
        pads=list(pads),
        dilations=each(dilation, axes),
        group=groups,
        kernel_shape=_kernel(b, weight),
        dtype=x.dtype,
    )
    return common.squeeze(b, y, 0) if single else y


def _kernel(b: GraphBuilder, weight: Value) -> list[int] | None:
    extents = b.shape_of(weight)[2:]
    return [int(d) for d in extents] if all(isinstance(d, int) for d in extents) else None


@lowers(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def conv(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Value:
    pads = each(padding, weight.rank - 2)
    return convolved(b, x, weight, bias, stride, [*pads, *pads], dilation, groups)


@lowers(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)
def conv_named_padding(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Numbers = 1,
    padding: str = "valid",
    dilation: Numbers = 1,
    groups: int = 1,
) -> Value:
    axes = weight.rank - 2
    kernel = _kernel(b, weight)
    if kernel is None:
        raise NoLoweringError("a kernel of unknown extents")
    total = [0] * axes
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(each(dilation, axes), kernel, strict=True)]
    pads = [*(t // 2 for t in total), *(t - t // 2 for t in total)]
    return convolved(b, x, weight, bias, stride, pads, dilation, groups)


def transposed(
    b: GraphBuilder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Numbers,
    output_padding: Numbers,
    groups: int,
    dilation: Numbers,
) -> Value:
    refuse_complex(x, weight)
    axes = weight.rank - 2
    single = x.rank == axes + 1
    pads = each(padding, axes)
    y = b.op(
        "ConvTranspose",
        common.unsqueeze(b, x, 0) if single else x,
        weight,
        bias,
        strides=each(stride, axes),
        pads=[*pads, *pads],
        dilations=each(dilation, axes),
        output_padding=each(output_padding, axes),
        group=groups,
        kernel_shape=_kernel(b, weight),
        dtype=x.dtype,
    )
    return common.squeeze(b, y, 0) if single else y


@lowers(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def conv_transpose(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> Value:
    return transposed(b, x, weight, bias, stride, padding, output_padding, groups, dilation)


@lowers(aten.convolution.default)
def convolution(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    is_transposed: bool,
    output_padding: Numbers,
    groups: int,
    *_: Any,
) -> Value:
    if is_transposed:
        return transposed(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, node, x, weight, bias, stride, padding, dilation, groups)
