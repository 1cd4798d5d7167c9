"""Negative log likelihood as AOT graphs hold it."""

from __future__ import annotations

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import reshape, unsqueeze

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


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    b: GraphBuilder, node: fx.Node, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    dtype = b.dtype_of(x)
    single = x.rank == 1
    if single:
        x, target = unsqueeze(b, x, 0), reshape(b, target, (1,))
    loss = b.op(
        "NegativeLogLikelihoodLoss", x, target, weight, reduction=REDUCTIONS[reduction], ignore_index=ignore_index,
        dtype=dtype, shape=target.shape if reduction == 0 else (),
    )  # fmt: skip
    if single and reduction == 0:
        loss = reshape(b, loss, ())
    if reduction == 0:
        return loss, b.constant(0, dtype)
    counted = label_weights(b, target, weight, ignore_index, dtype)
    return loss, b.op("ReduceSum", counted, keepdims=0, dtype=dtype)
