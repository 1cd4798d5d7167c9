"""Losses: whole operators where ONNX has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import Operand, gradients, operand, refuse_complex, result_type
from backpass.torch.lowerings.reductions import reduced

aten = torch.ops.aten

REDUCTIONS = ("none", "mean", "sum")


def finished(b: GraphBuilder, loss: Value, reduction: int) -> Value:
    """The losses of the elements, their mean or sum."""
    if reduction == 0:
        return loss
    return reduced(b, "ReduceMean" if reduction == 1 else "ReduceSum", loss)


def pair(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> tuple[Value, Value]:
    refuse_complex(x, y)
    dtype = result_type(node)
    return operand(b, x, dtype), operand(b, y, dtype)


def difference(b: GraphBuilder, node: fx.Node, x: Value, y: Value) -> Value:
    return b.op("Sub", *pair(b, node, x, y))


@lowers(aten.mse_loss.default)
def mse_loss(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1) -> Value:
    gap = difference(b, node, x, y)
    return finished(b, b.op("Mul", gap, gap), reduction)


@lowers(aten.l1_loss.default)
def l1_loss(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1) -> Value:
    return finished(b, b.op("Abs", difference(b, node, x, y)), reduction)


@lowers(aten.smooth_l1_loss.default)
def smooth_l1_loss(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    if beta == 0:
        return l1_loss(b, node, x, y, reduction)
    gap = difference(b, node, x, y)
    far = b.op("Abs", gap)
    square = b.op("Mul", b.op("Mul", gap, gap), 0.5 / beta)
    loss = b.op("Where", b.op("Less", far, beta), square, b.op("Sub", far, 0.5 * beta))
    return finished(b, loss, reduction)


@lowers(aten.huber_loss.default)
def huber_loss(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1, delta: float = 1.0) -> Value:
    gap = difference(b, node, x, y)
    far = b.op("Abs", gap)
    square = b.op("Mul", b.op("Mul", gap, gap), 0.5)
    line = b.op("Mul", b.op("Sub", far, 0.5 * delta), delta)
    return finished(b, b.op("Where", b.op("LessOrEqual", far, delta), square, line), reduction)


def weighted(b: GraphBuilder, loss: Value, weight: Value | None) -> Value:
    return loss if weight is None else b.op("Mul", loss, b.cast(weight, b.dtype_of(loss)))


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    b: GraphBuilder, node: fx.Node, x: Value, y: Value, weight: Value | None = None, reduction: int = 1
) -> Value:
    """Logarithms are cut off at -100, as torch's are, and so is the slope: finite where a probability is 0 or 1."""
    x, y = pair(b, node, x, y)
    held = b.stop_gradient(x)
    right = b.op("Mul", y, b.op("Max", b.op("Log", held), -100))
    wrong = b.op("Mul", b.op("Sub", 1, y), b.op("Max", b.op("Log", b.op("Sub", 1, held)), -100))
    spread = b.op("Max", b.op("Mul", b.op("Sub", 1, held), held), 1e-12)
    slope = b.op("Div", b.op("Sub", held, b.stop_gradient(y)), spread)
    through = b.op("Mul", slope, b.op("Sub", x, held))  # 0, with this slope
    loss = b.op("Sub", through, b.op("Add", right, wrong))
    return finished(b, weighted(b, loss, weight), reduction)


@lowers(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    y: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = 1,
) -> Value:
    """(1 - y) x + w softplus(-x), with w = 1 + (pos_weight - 1) y."""
    x, y = pair(b, node, x, y)
    soft = b.op("Softplus", b.op("Neg", x))
    if pos_weight is not None:
        more = b.op("Mul", b.op("Sub", b.cast(pos_weight, b.dtype_of(x)), 1), y)
        soft = b.op("Mul", soft, b.op("Add", more, 1))
    loss = b.op("Add", b.op("Mul", b.op("Sub", 1, y), x), soft)
    return finished(b, weighted(b, loss, weight), reduction)


@lowers(aten.kl_div.default)
def kl_div(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1, log_target: bool = False) -> Value:
    x, y = pair(b, node, x, y)
    if log_target:
        loss = b.op("Mul", b.op("Exp", y), b.op("Sub", y, x))
    else:
        # y log y is 0 at 0: the logarithm is taken of 1 there
        log = b.op("Log", b.op("Where", b.op("Greater", y, 0), y, 1))
        loss = b.op("Mul", y, b.op("Sub", log, x))
    return finished(b, loss, reduction)


def labelled(b: GraphBuilder, x: Value, target: Value, reduction: int, loss: Callable[[Value, Value], Value]) -> Value:
    """The loss, which is made for scores as [N, C, ...] and labels as [N, ...]."""
    if x.rank != 1:
        return loss(x, target)
    found = loss(common.unsqueeze(b, x, 0), common.unsqueeze(b, target, 0))
    return common.squeeze(b, found, 0) if reduction == 0 else found


@lowers(aten.nll_loss.default, aten.nll_loss_nd.default, aten.nll_loss2d.default)
def nll_loss(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> Value:
    how: dict[str, Any] = {"ignore_index": ignore_index, "reduction": REDUCTIONS[reduction]}
    return labelled(b, x, target, reduction, lambda *v: b.op("NegativeLogLikelihoodLoss", *v, weight, **how))


@lowers(aten.cross_entropy_loss.default)
def cross_entropy_loss(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Value:
    refuse_complex(x)
    if b.dtype_of(target).is_floating_point:
        return probability_cross_entropy(b, x, target, weight, reduction, label_smoothing)

    def loss(scores: Value, labels: Value) -> Value:
        if label_smoothing:
            return smoothed(b, scores, labels, weight, reduction, ignore_index, label_smoothing)
        how: dict[str, Any] = {"ignore_index": ignore_index, "reduction": REDUCTIONS[reduction]}
        return b.op("SoftmaxCrossEntropyLoss", scores, labels, weight, outputs=None, **how)

    return labelled(b, x, target, reduction, loss)


def smoothed(
    b: GraphBuilder,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> Value:
    """(1 - s) of the loss of the label and s / C of that of each class, both without ignored elements."""
    log = b.op("LogSoftmax", x, axis=1)
    labels: dict[str, Any] = {"ignore_index": ignore_index, "reduction": REDUCTIONS[0], "shape": target.shape}
    hard = b.op("NegativeLogLikelihoodLoss", log, target, weight, outputs=None, **labels)
    each = log if weight is None else b.op("Mul", log, channel(b, weight, x.rank))
    ignored = b.op("Equal", target, ignore_index)
    soft = b.op("Where", ignored, 0, b.op("Neg", reduced(b, "ReduceSum", each, 1)))
    share = b.op("Div", smoothing, b.scalar(b.shape_of(x)[1], b.dtype_of(x)))
    loss = b.op("Add", b.op("Mul", hard, 1 - smoothing), b.op("Mul", soft, share))
    if reduction != 1:
        return finished(b, loss, reduction)
    return b.op("Div", reduced(b, "ReduceSum", loss), mass(b, target, weight, ignored, b.dtype_of(x)))


def mass(b: GraphBuilder, target: Value, weight: Value | None, ignored: Value, dtype: torch.dtype) -> Value:
    """The weights of all labels that count."""
    each = b.constant(1, dtype)
    if weight is not None:
        each = b.op("Gather", weight, b.op("Where", ignored, 0, target), axis=0, dtype=dtype)
    return reduced(b, "ReduceSum", b.op("Where", ignored, 0, each, shape=target.shape))


def channel(b: GraphBuilder, weight: Value, rank: int) -> Value:
    """A weight per class, for scores of this rank."""
    return common.reshape(b, weight, [*b.shape_of(weight), *[1] * max(rank - 2, 0)])


def probability_cross_entropy(
    b: GraphBuilder, x: Value, target: Value, weight: Value | None, reduction: int, smoothing: float
) -> Value:
    """Targets are a distribution over classes."""
    dtype, axis = b.dtype_of(x), 0 if x.rank == 1 else 1
    target = b.cast(target, dtype)
    if smoothing:
        share = b.op("Div", smoothing, b.scalar(b.shape_of(x)[axis], dtype))
        target = b.op("Add", b.op("Mul", target, 1 - smoothing), share)
    each = b.op("Mul", b.op("LogSoftmax", x, axis=axis), target)
    if weight is not None:
        each = b.op("Mul", each, channel(b, weight, x.rank))
    loss = b.op("Neg", reduced(b, "ReduceSum", each, axis))
    if reduction != 1:
        return finished(b, loss, reduction)
    count = math.prod([d for i, d in enumerate(b.shape_of(x)) if i != axis])
    return b.op("Div", reduced(b, "ReduceSum", loss), count)


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    b: GraphBuilder, node: fx.Node, x: Value, target: Value, weight: Any, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """The loss and the sum of the weights that its mean was divided by."""
    loss = nll_loss(b, node, x, target, weight, reduction, ignore_index)
    dtype = b.dtype_of(x)
    if reduction == 0:
        return loss, common.filled(b, (), 0.0, dtype)
    return loss, mass(b, target, weight, b.op("Equal", target, ignore_index), dtype)


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, target: Value, weight: Value | None, reduction: int,
    ignore_index: int, total_weight: Value,
) -> Value | None:  # fmt: skip
    is_mean = REDUCTIONS[reduction] == "mean"

    def forward(scores: Value) -> Value:
        loss = nll_loss(b, node, scores, target, weight, 0 if is_mean else reduction, ignore_index)
        if not is_mean:
            return loss
        # by the weight that torch saved: where that is 0, only labels that count have a gradient of NaN
        kept = b.op("Where", b.op("Equal", target, ignore_index), 0, loss, shape=target.shape)
        return b.op("Div", reduced(b, "ReduceSum", kept), total_weight)

    return gradients(b, dy, [x], forward)[0]
