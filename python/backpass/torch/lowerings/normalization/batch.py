"""Batch and instance normalisation, whole operators in both modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import Gradients, gradients, refuse_complex
from backpass.torch.lowerings.normalization.layer import given, used

aten = torch.ops.aten


def batch_norm_inference(
    b: GraphBuilder, x: Value, weight: Any, bias: Any, mean: Any, variance: Any, eps: float
) -> Value:
    channels = b.shape_of(x)[1:2]
    scale, shift = affine(b, x, weight, bias)
    mean = given(b, mean, channels, 0.0, b.dtype_of(scale) if mean is None else mean.dtype)
    variance = given(b, variance, channels, 1.0, b.dtype_of(mean))
    return b.op("BatchNormalization", x, scale, shift, mean, variance, epsilon=eps)


def affine(b: GraphBuilder, x: Value, weight: Any, bias: Any) -> tuple[Value, Value]:
    refuse_complex(x)
    dtype = b.dtype_of(x) if weight is None else weight.dtype
    channels = b.shape_of(x)[1:2]
    return given(b, weight, channels, 1.0, dtype), given(b, bias, channels, 0.0, dtype)


def batch_norm_training(b: GraphBuilder, x: Value, weight: Any, bias: Any, eps: float) -> tuple[Value, Value, Value]:
    """The result, the batch's mean and its variance (of the population)."""
    scale, shift = affine(b, x, weight, bias)
    zeros = common.filled(b, b.shape_of(x)[1:2], 0.0, b.dtype_of(scale))
    # with momentum 0 the "running" statistics are the batch's
    y, mean, variance = b.op(
        "BatchNormalization", x, scale, shift, zeros, zeros, epsilon=eps, momentum=0.0, training_mode=1, outputs=3
    )
    return y, b.like(mean, zeros), b.like(variance, zeros)


def updated(b: GraphBuilder, x: Value, old: Value, new: Value, momentum: float) -> Value:
    """(1 - momentum) old + momentum new; the old of a batch of nothing."""
    count = elements_per_channel(b, x)
    new = b.cast(new, b.dtype_of(old))
    if isinstance(count, int):
        return b.op("Add", b.op("Mul", old, 1 - momentum), b.op("Mul", new, momentum)) if count > 0 else old
    share = b.op("Mul", b.op("Min", b.scalar(count, b.dtype_of(old)), 1), momentum)
    return b.op("Add", b.op("Mul", old, b.op("Sub", 1, share)), b.op("Mul", new, share))


def elements_per_channel(b: GraphBuilder, x: Value) -> Any:
    shape = b.shape_of(x)
    return math.prod([shape[0], *shape[2:]])


def unbiased(b: GraphBuilder, x: Value, variance: Value) -> Value:
    """torch's running variance is that of a sample: n / (n - 1) times the population's."""
    n = b.scalar(elements_per_channel(b, x), b.dtype_of(variance))
    return b.op("Mul", variance, b.op("Div", n, b.op("Sub", n, 1)))


def inverse_root(b: GraphBuilder, variance: Value, eps: float) -> Value:
    return b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, eps)))


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    weight: Any,
    bias: Any,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    if not training:
        y = batch_norm_inference(b, x, weight, bias, running_mean, running_var, eps)
        nothing = common.filled(b, (0,), 0.0, b.dtype_of(running_mean))
        return y, nothing, nothing, running_mean, running_var
    y, mean, variance = batch_norm_training(b, x, weight, bias, eps)
    b.running_statistics[y] = (running_mean, running_var, momentum)
    rstd = inverse_root(b, variance, eps) if used(node, 2) else variance
    new_mean = updated(b, x, running_mean, mean, momentum)
    new_var = updated(b, x, running_var, unbiased(b, x, variance), momentum)
    return y, mean, rstd, new_mean, new_var


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    b: GraphBuilder, node: fx.Node, x: Value, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Value, ...]:
    y, mean, variance = batch_norm_training(b, x, weight, bias, eps)
    return y, mean, inverse_root(b, variance, eps) if used(node, 2) else variance


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    b: GraphBuilder, node: fx.Node, x: Value, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Value, ...]:
    y = batch_norm_inference(b, x, weight, bias, mean, var, eps)
    nothing = common.filled(b, (0,), 0.0, b.dtype_of(x))
    return y, nothing, nothing


@lowers(aten.batch_norm.default)
def batch_norm(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = True,
) -> Value:
    if not training:
        return batch_norm_inference(b, x, weight, bias, mean, var, eps)
    if mean is not None:
        raise NoLoweringError("statistics that change in place")
    return batch_norm_training(b, x, weight, bias, eps)[0]


@lowers(aten.instance_norm.default)
def instance_norm(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    use_input: bool,
    momentum: float,
    eps: float,
    cudnn: bool = True,
) -> Value:
    if not use_input:
        return batch_norm_inference(b, x, weight, bias, mean, variance, eps)
    if mean is not None:
        raise NoLoweringError("running statistics of instances")
    channels, dtype = b.shape_of(x)[1:2], b.dtype_of(x)
    scale, shift = given(b, weight, channels, 1.0, dtype), given(b, bias, channels, 0.0, dtype)
    return b.op("InstanceNormalization", x, scale, shift, epsilon=eps)


@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, weight: Any, running_mean: Any, running_var: Any,
    mean: Any, rstd: Any, train: bool, eps: float, output_mask: Sequence[bool],
) -> Gradients:  # fmt: skip
    scale, shift = affine(b, x, weight, None)
    if not train:

        def fixed(images: Value, factor: Value, offset: Value) -> Value:
            return batch_norm_inference(b, images, factor, offset, running_mean, running_var, eps)

        return gradients(b, dy, (x, scale, shift), fixed, output_mask)
    given_to = (dy, x, scale, mean, rstd)
    found = b.op("BatchNormalizationGrad", *given_to, epsilon=float(eps), outputs=3, domain="com.microsoft")
    return tuple(g if want else None for g, want in zip(found, output_mask, strict=True))
