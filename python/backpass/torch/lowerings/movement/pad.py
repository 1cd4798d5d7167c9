"""Padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import gradients

aten = torch.ops.aten


@lowers(aten.pad.default)
def pad(
    b: GraphBuilder, node: fx.Node, x: Value, pads: Sequence[Dim], mode: str = "constant", value: Scalar | None = None
) -> Value:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode == "circular" and b.opset < 19:
        raise NoLoweringError("Pad wraps since opset 19")
    if all(isinstance(p, int) and p == 0 for p in pads):
        return x
    before, after = list(pads[0::2])[::-1], list(pads[1::2])[::-1]
    axes = b.constant(list(range(x.rank - len(before), x.rank)))
    number = None if value is None or mode != "constant" else b.scalar(value, b.dtype_of(x))
    return b.op("Pad", x, b.sizes([*before, *after]), number, axes, mode=modes[mode])


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(b: GraphBuilder, node: fx.Node, x: Value, pads: Sequence[Dim], value: Scalar = 0) -> Value:
    return pad(b, node, x, pads, "constant", value)


@lowers(aten.replication_pad1d_backward.default, aten.replication_pad2d_backward.default)
@lowers(aten.replication_pad3d_backward.default)
def replication_pad_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, pads: Sequence[int]) -> Value | None:
    return gradients(b, dy, [x], lambda v: with_edges(b, v, pads))[0]


def with_edges(b: GraphBuilder, x: Value, pads: Sequence[int]) -> Value:
    """Unlike Pad's, edges may be repeated of which nothing is left."""
    shape = b.shape_of(x)
    for axis, before, after in zip(range(x.rank - 1, -1, -1), pads[0::2], pads[1::2], strict=False):
        extent = shape[axis]
        if not isinstance(extent, int):
            raise NoLoweringError("an extent that is not a constant")
        places = np.clip(np.arange(-before, extent + after), 0, extent - 1)
        x = b.op("Gather", x, b.constant(places), axis=axis)
    return x
