"""Losses: whole operators where ONNX has them."""

from __future__ import annotations

import math
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
    left, right = pair(b, node, x, y)
    shape = common.broadcast(b.shape_of(left), b.shape_of(right))
    return b.op("Sub", left, right, dtype=left.dtype, shape=shape)


@lowers(aten.mse_loss.default)
def mse_loss(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1) -> Value:
    gap = difference(b, node, x, y)
    return finished(b, b.op("Mul", gap, gap, dtype=gap.dtype, shape=gap.shape), reduction)


@lowers(aten.l1_loss.default)
def l1_loss(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1) -> Value:
    gap = difference(b, node, x, y)
    return finished(b, b.op("Abs", gap, dtype=gap.dtype, shape=gap.shape), reduction)


@lowers(aten.smooth_l1_loss.default)
def smooth_l1_loss(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    if beta == 0:
        return l1_loss(b, node, x, y, reduction)
    gap = difference(b, node, x, y)
    far = b.op("Abs", gap)
    square = b.op("Mul", b.op("Mul", gap, gap), b.constant(0.5 / beta, gap.dtype))
    line = b.op("Sub", far, b.constant(0.5 * beta, gap.dtype))
    loss = b.op("Where", b.op("Less", far, b.constant(beta, gap.dtype)), square, line)
    return finished(b, b.like(loss, gap), reduction)


@lowers(aten.huber_loss.default)
def huber_loss(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1, delta: float = 1.0) -> Value:
    gap = difference(b, node, x, y)
    far, half = b.op("Abs", gap), b.constant(0.5, gap.dtype)
    square = b.op("Mul", b.op("Mul", gap, gap), half)
    line = b.op("Mul", b.op("Sub", far, b.constant(0.5 * delta, gap.dtype)), b.constant(delta, gap.dtype))
    near = b.op("LessOrEqual", far, b.constant(delta, gap.dtype))
    return finished(b, b.like(b.op("Where", near, square, line), gap), reduction)


def weighted(b: GraphBuilder, loss: Value, weight: Value | None) -> Value:
    return loss if weight is None else b.like(b.op("Mul", loss, b.cast(weight, b.dtype_of(loss))), loss)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    b: GraphBuilder, node: fx.Node, x: Value, y: Value, weight: Value | None = None, reduction: int = 1
) -> Value:
    """Logarithms are cut off at -100, as torch's are, and so is the slope: finite where a probability is 0 or 1."""
    x, y = pair(b, node, x, y)
    one, floor, held = b.constant(1, x.dtype), b.constant(-100, x.dtype), b.stop_gradient(x)
    right = b.op("Mul", y, b.op("Max", b.op("Log", held), floor))
    wrong = b.op("Mul", b.op("Sub", one, y), b.op("Max", b.op("Log", b.op("Sub", one, held)), floor))
    spread = b.op("Max", b.op("Mul", b.op("Sub", one, held), held), b.constant(1e-12, x.dtype))
    slope = b.op("Div", b.op("Sub", held, b.stop_gradient(y)), spread)
    through = b.op("Mul", slope, b.op("Sub", x, held))  # 0, with this slope
    loss = b.like(b.op("Sub", through, b.op("Add", right, wrong)), x)
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
    one = b.constant(1, x.dtype)
    soft = b.op("Softplus", b.op("Neg", x))
    if pos_weight is not None:
        more = b.op("Mul", b.op("Sub", b.cast(pos_weight, b.dtype_of(x)), one), y)
        soft = b.op("Mul", soft, b.op("Add", more, one))
    loss = b.like(b.op("Add", b.op("Mul", b.op("Sub", one, y), x), soft), x)
    return finished(b, weighted(b, loss, weight), reduction)


@lowers(aten.kl_div.default)
def kl_div(b: GraphBuilder, node: fx.Node, x: Value, y: Value, reduction: int = 1, log_target: bool = False) -> Value:
    x, y = pair(b, node, x, y)
    if log_target:
        loss = b.op("Mul", b.op("Exp", y), b.op("Sub", y, x))
    else:
        # y log y is 0 at 0: the logarithm is taken of 1 there
        positive = b.op("Greater", y, b.constant(0, x.dtype))
        log = b.op("Log", b.op("Where", positive, y, b.constant(1, x.dtype)))
        loss = b.op("Mul", y, b.op("Sub", log, x))
    return finished(b, b.like(loss, x), reduction)


def classes_second(b: GraphBuilder, x: Value, target: Value) -> tuple[Value, Value, bool]:
    """Scores as [N, C, ...] and targets as [N, ...]; whether an axis was added."""
    if x.rank != 1:
        return x, target, False
    return common.unsqueeze(b, x, 0), common.unsqueeze(b, target, 0), True


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
    scores, labels, added = classes_second(b, x, target)
    loss = b.op(
        "NegativeLogLikelihoodLoss",
        scores,
        labels,
        weight,
        ignore_index=ignore_index,
        reduction=REDUCTIONS[reduction],
        dtype=x.dtype,
    )
    return common.squeeze(b, loss, 0) if added and reduction == 0 else loss


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
    scores, labels, added = classes_second(b, x, target)
    whole: dict[str, Any] = {"ignore_index": ignore_index, "dtype": x.dtype}
    if label_smoothing == 0:
        mode = REDUCTIONS[reduction]
        loss = b.op("SoftmaxCrossEntropyLoss", scores, labels, weight, reduction=mode, **whole)
        return common.squeeze(b, loss, 0) if added and reduction == 0 else loss
    loss = smoothed(b, scores, labels, weight, reduction, ignore_index, label_smoothing)
    return common.squeeze(b, loss, 0) if added and reduction == 0 else loss


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
    dtype = b.dtype_of(x)
    log = b.op("LogSoftmax", x, axis=1, dtype=dtype, shape=x.shape)
    labels: dict[str, Any] = {"ignore_index": ignore_index, "reduction": REDUCTIONS[0]}
    hard = Value(b.op("NegativeLogLikelihoodLoss", log, target, weight, **labels), dtype, target.shape)
    each = log if weight is None else b.like(b.op("Mul", log, channel(b, weight, x.rank)), log)
    soft = b.op("Neg", reduced(b, "ReduceSum", each, 1))
    ignored = b.op("Equal", target, b.constant(ignore_index, target.dtype))
    soft = Value(b.op("Where", ignored, b.constant(0, dtype), soft), dtype, target.shape)
    count = b.scalar(b.shape_of(x)[1], dtype)
    share = b.op("Div", b.constant(smoothing, dtype), count)
    loss = b.op("Add", b.op("Mul", hard, b.constant(1 - smoothing, dtype)), b.op("Mul", soft, share))
    loss = Value(loss, dtype, target.shape)
    if reduction != 1:
        return finished(b, loss, reduction)
    return b.op("Div", reduced(b, "ReduceSum", loss), mass(b, target, weight, ignored, dtype), dtype=dtype, shape=())


def mass(b: GraphBuilder, target: Value, weight: Value | None, ignored: Value, dtype: torch.dtype) -> Value:
    """The weights of all labels that count."""
    zero, one = b.constant(0, dtype), b.constant(1, dtype)
    each: Value = one
    if weight is not None:
        label = b.op("Where", ignored, b.constant(0, target.dtype), target)
        each = b.op("Gather", weight, label, axis=0)
    kept = b.op("Where", ignored, zero, each)
    return reduced(b, "ReduceSum", Value(kept, dtype, target.shape))


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
        share = b.op("Div", b.constant(smoothing, dtype), b.scalar(b.shape_of(x)[axis], dtype))
        target = b.like(b.op("Add", b.op("Mul", target, b.constant(1 - smoothing, dtype)), share), x)
    log = b.op("LogSoftmax", x, axis=axis, dtype=dtype, shape=x.shape)
    each = b.like(b.op("Mul", log, target), log)
    if weight is not None:
        each = b.like(b.op("Mul", each, channel(b, weight, x.rank)), log)
    loss = reduced(b, "ReduceSum", each, axis)
    loss = b.like(b.op("Neg", loss), loss)
    if reduction != 1:
        return finished(b, loss, reduction)
    count = math.prod([d for i, d in enumerate(b.shape_of(x)) if i != axis])
    return b.op("Div", reduced(b, "ReduceSum", loss), b.scalar(count, dtype), dtype=dtype, shape=())


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    b: GraphBuilder, node: fx.Node, x: Value, target: Value, weight: Any, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """The loss and the sum of the weights that its mean was divided by."""
    loss = nll_loss(b, node, x, target, weight, reduction, ignore_index)
    dtype = b.dtype_of(x)
    if reduction == 0:
        return loss, common.filled(b, (), 0.0, dtype)
    ignored = b.op("Equal", target, b.constant(ignore_index, target.dtype))
    return loss, mass(b, target, weight, ignored, dtype)


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, target: Value, weight: Value | None, reduction: int,
    ignore_index: int, total_weight: Value,
) -> Value | None:  # fmt: skip
    dtype, is_mean = b.dtype_of(x), REDUCTIONS[reduction] == "mean"

    def forward(scores: Value) -> Value:
        loss = nll_loss(b, node, scores, target, weight, 0 if is_mean else reduction, ignore_index)
        if not is_mean:
            return loss
        # by the weight that torch saved: where that is 0, only labels that count have a gradient of NaN
        ignored = b.op("Equal", target, b.constant(ignore_index, target.dtype))
        kept = b.op("Where", ignored, b.constant(0, dtype), loss, dtype=dtype, shape=target.shape)
        return b.op("Div", reduced(b, "ReduceSum", kept), total_weight)

    return gradients(b, dy, [x], forward)[0]
