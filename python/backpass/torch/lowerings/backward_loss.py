"""Gradient of the negative log likelihood, as AOT graphs hold it."""

from __future__ import annotations

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import filled, reshape, unsqueeze

aten = torch.ops.aten

REDUCTIONS = ("none", "mean", "sum")


def label_weights(b: GraphBuilder, target: Value, weight: Value | None, ignore_index: Dim, dtype: torch.dtype) -> Value:
    """What each label counts: its class's weight (or 1), 0 for the ignored one."""
    kind = b.dtype_of(target)
    ignored = b.op("Equal", target, b.scalar(ignore_index, kind))
    zero = b.constant(0, dtype)
    if weight is None:
        result: Value = b.op("Where", ignored, zero, b.constant(1, dtype), dtype=dtype, shape=target.shape)
        return result
    safe = b.op("Where", ignored, b.constant(0, kind), target)
    return b.op("Where", ignored, zero, b.op("Gather", weight, safe, axis=0), dtype=dtype, shape=target.shape)


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: GraphBuilder,
    node: fx.Node,
    dy: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    dtype, shape = b.dtype_of(x), b.shape_of(x)
    if len(shape) == 1:
        x, target, dy = unsqueeze(b, x, 0), reshape(b, target, (1,)), reshape(b, dy, (1,))
    factor = b.op("Mul", label_weights(b, target, weight, ignore_index, dtype), dy)
    if REDUCTIONS[reduction] == "mean":
        factor = b.op("Div", factor, total_weight)
    kind = b.dtype_of(target)
    ignored = b.op("Equal", target, b.constant(ignore_index, kind))
    safe = b.op("Where", ignored, b.constant(0, kind), target, dtype=kind, shape=target.shape)
    # not by its weight of 0: where all are ignored, that is divided by 0
    kept = b.op("Where", ignored, b.constant(0, dtype), b.op("Neg", factor), dtype=dtype, shape=target.shape)
    updates = unsqueeze(b, kept, 1)
    zeros = filled(b, b.shape_of(x), 0, dtype)
    dx = b.op("ScatterElements", zeros, unsqueeze(b, safe, 1), updates, axis=1, dtype=dtype, shape=x.shape)
    return reshape(b, dx, shape)
