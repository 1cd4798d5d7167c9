"""Gradients of convolution, as AOT graphs hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import refuse_complex

aten = torch.ops.aten


def attributes(
    rank: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> dict[str, Any]:
    """ONNX's names; one number stands for all axes."""
    spatial = rank - 2
    if not all(isinstance(v, int) for v in (*stride, *padding, *dilation, *output_padding)):
        raise NoLoweringError("strides or padding that are not constants")

    def full(values: Sequence[int]) -> list[int]:
        return list(values) * spatial if len(values) == 1 else list(values)

    if any(p < 0 for p in padding):
        raise NoLoweringError("negative padding")
    found: dict[str, Any] = {
        "strides": full(stride),
        "pads": full(padding) * 2,
        "dilations": full(dilation),
        "group": groups,
    }
    if transposed:
        found["output_padding"] = full(output_padding)
    return found


@lowers(aten.convolution_backward.default)
def convolution_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, weight: Value, bias_sizes: Any, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    refuse_complex(dy, x, weight)
    found = attributes(x.rank, stride, padding, dilation, transposed, output_padding, groups)
    wanted = [b.fresh() if m else None for m in output_mask]
    op = "ConvTransposeGrad" if transposed else "ConvGrad"
    results = b.op(op, dy, x, weight, outputs=wanted, domain="com.microsoft", **found)
    return tuple(r if m else None for r, m in zip(results, output_mask, strict=True))
