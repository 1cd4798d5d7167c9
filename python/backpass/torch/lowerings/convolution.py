"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import Gradients, refuse_complex

aten = torch.ops.aten
Numbers = int | Sequence[int]


def each(value: Numbers, axes: int) -> list[int]:
    """One number per spatial axis."""
    listed = [value] if isinstance(value, int) else [int(v) for v in value]
    return listed * axes if len(listed) == 1 else listed


def settings(stride: Numbers, pads: Sequence[int], dilation: Numbers, groups: int) -> dict[str, Any]:
    """ONNX's names; there are two pads per spatial axis."""
    axes = len(pads) // 2
    how = {"strides": each(stride, axes), "pads": list(pads), "dilations": each(dilation, axes)}
    return {**how, "group": groups}


def convolved(b: GraphBuilder, op: str, x: Value, weight: Value, bias: Value | None, **how: Any) -> Value:
    """Conv or ConvTranspose; a batch axis is put in where there is none."""
    refuse_complex(x, weight)
    single = x.rank == weight.rank - 1
    images = common.unsqueeze(b, x, 0) if single else x
    y = b.op(op, images, weight, bias, kernel_shape=_kernel(b, weight), outputs=None, **how)
    return common.squeeze(b, y, 0) if single else y


def _kernel(b: GraphBuilder, weight: Value) -> list[int] | None:
    extents = b.shape_of(weight)[2:]
    return [int(d) for d in extents] if all(isinstance(d, int) for d in extents) else None


@lowers(aten.conv1d, aten.conv2d, aten.conv3d)
def conv(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Value:
    pads = named_pads(b, weight, padding, dilation) if isinstance(padding, str) else each(padding, weight.rank - 2) * 2
    return convolved(b, "Conv", x, weight, bias, **settings(stride, pads, dilation, groups))


def named_pads(b: GraphBuilder, weight: Value, padding: str, dilation: Numbers) -> list[int]:
    kernel = _kernel(b, weight)
    if kernel is None:
        raise NoLoweringError("a kernel of unknown extents")
    total = [0] * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(each(dilation, len(kernel)), kernel, strict=True)]
    return [*(t // 2 for t in total), *(t - t // 2 for t in total)]


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
    pads = each(padding, weight.rank - 2)
    how = {**settings(stride, pads * 2, dilation, groups), "output_padding": each(output_padding, len(pads))}
    return convolved(b, "ConvTranspose", x, weight, bias, **how)


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
        return conv_transpose(b, node, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, node, x, weight, bias, stride, padding, dilation, groups)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, weight: Value, bias_sizes: Any, stride: Numbers,
    padding: Numbers, dilation: Numbers, is_transposed: bool, output_padding: Numbers, groups: int,
    output_mask: Sequence[bool],
) -> Gradients:  # fmt: skip
    refuse_complex(dy, x, weight)
    pads = each(padding, weight.rank - 2)
    if any(p < 0 for p in pads):
        raise NoLoweringError("negative padding")
    how = settings(stride, pads * 2, dilation, groups)
    if is_transposed:
        how["output_padding"] = each(output_padding, len(pads))
    op = "ConvTransposeGrad" if is_transposed else "ConvGrad"
    outputs = [b.fresh() if want else None for want in output_mask]
    results = b.op(op, dy, x, weight, outputs=outputs, domain="com.microsoft", **how)
    return tuple(r if want else None for r, want in zip(results, output_mask, strict=True))
