"""Activations."""

from __future__ import annotations

import math

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import FLOATS, axis_of, named_gradient

aten = torch.ops.aten


@lowers(aten.relu.default)
def relu(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    if x.dtype == torch.bool:
        return x
    if x.dtype not in FLOATS:
        return b.op("Max", x, b.constant(0, x.dtype), dtype=x.dtype)
    return b.op("Relu", x, dtype=x.dtype)


@lowers(aten.gelu.default)
def gelu(b: GraphBuilder, node: fx.Node, x: Value, approximate: str = "none") -> Value:
    if b.opset >= 20:
        return b.op("Gelu", x, approximate=approximate, dtype=x.dtype)
    half, one = b.constant(0.5, x.dtype), b.constant(1.0, x.dtype)
    if approximate == "tanh":
        cube = b.op("Mul", b.op("Mul", x, b.op("Mul", x, x)), b.constant(0.044715, x.dtype))
        inner = b.op("Mul", b.op("Add", x, cube), b.constant(math.sqrt(2 / math.pi), x.dtype))
        share = b.op("Tanh", inner)
    else:
        share = b.op("Erf", b.op("Mul", x, b.constant(math.sqrt(0.5), x.dtype)))
    return b.op("Mul", b.op("Mul", x, half), b.op("Add", share, one), dtype=x.dtype)


@lowers(aten.gelu_backward.default)
def gelu_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, approximate: str = "none") -> Value:
    return named_gradient(b, "FastGeluGrad" if approximate == "tanh" else "GeluGrad", dy, x)


@lowers(aten.silu.default)
def silu(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("Mul", x, b.op("Sigmoid", x), dtype=x.dtype)


@lowers(aten.silu_backward.default)
def silu_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value) -> Value:
    return named_gradient(b, "QuickGeluGrad", dy, x, alpha=1.0)


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(b: GraphBuilder, node: fx.Node, dy: Value, y: Value) -> Value:
    return named_gradient(b, "SigmoidGrad", dy, y)


@lowers(aten.tanh_backward.default)
def tanh_backward(b: GraphBuilder, node: fx.Node, dy: Value, y: Value) -> Value:
    return named_gradient(b, "TanhGrad", dy, y)


@lowers(aten.leaky_relu.default)
def leaky_relu(b: GraphBuilder, node: fx.Node, x: Value, slope: float = 0.01) -> Value:
    if common.fits_attribute(b, x, slope):
        return b.op("LeakyRelu", x, alpha=float(slope), dtype=x.dtype)
    return _beside(b, x, b.op("Mul", x, b.constant(slope, b.dtype_of(x))))


def _beside(b: GraphBuilder, x: Value, left: Value) -> Value:
    """x where it is positive, `left` elsewhere: an operator's definition, for factors that a float32 does not hold."""
    positive = b.op("Greater", x, b.constant(0, b.dtype_of(x)))
    return b.op("Where", positive, x, left, dtype=x.dtype)


def _exponential(b: GraphBuilder, x: Value, alpha: float) -> Value:
    """alpha (e^x - 1) left of 0; right of it, where nobody looks, no more than 0."""
    dtype = b.dtype_of(x)
    grown = b.op("Sub", b.op("Exp", b.op("Min", x, b.constant(0, dtype))), b.constant(1, dtype))
    return b.op("Mul", grown, b.constant(alpha, dtype))


@lowers(aten.elu.default)
def elu(
    b: GraphBuilder, node: fx.Node, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1
) -> Value:
    if input_scale != 1:
        raise NoLoweringError("an input scale")
    if common.fits_attribute(b, x, alpha):
        result = b.op("Elu", x, alpha=float(alpha), dtype=x.dtype)  # type: ignore[arg-type]
    else:
        result = _beside(b, x, _exponential(b, x, alpha))  # type: ignore[arg-type]
    return result if scale == 1 else b.op("Mul", result, b.scalar(scale, b.dtype_of(x)), dtype=x.dtype)


@lowers(aten.selu.default)
def selu(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    alpha, gamma = 1.6732632423543772, 1.0507009873554805
    if common.fits_attribute(b, x, alpha):
        return b.op("Selu", x, alpha=alpha, gamma=gamma, dtype=x.dtype)
    return b.op("Mul", _beside(b, x, _exponential(b, x, alpha)), b.constant(gamma, b.dtype_of(x)), dtype=x.dtype)


@lowers(aten.celu.default)
def celu(b: GraphBuilder, node: fx.Node, x: Value, alpha: float = 1.0) -> Value:
    return b.op("Celu", x, alpha=float(alpha), dtype=x.dtype)  # torch's gradient knows alpha as a float32, too


@lowers(aten.softplus.default)
def softplus(b: GraphBuilder, node: fx.Node, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    """ln(1 + e^(beta x)) / beta; x itself beyond the threshold, as torch does."""
    dtype = b.dtype_of(x)
    scaled = x if beta == 1 else b.op("Mul", x, b.scalar(beta, dtype))
    soft = b.op("Softplus", scaled, dtype=dtype)
    soft = soft if beta == 1 else b.op("Div", soft, b.scalar(beta, dtype))
    if threshold >= 20 and dtype != torch.float64:  # type: ignore[operator]
        return soft  # equal there in these types
    return b.op("Where", b.op("Greater", scaled, b.scalar(threshold, dtype)), x, soft, dtype=dtype)


@lowers(aten.log_sigmoid.default)
def log_sigmoid(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("Neg", b.op("Softplus", b.op("Neg", x)), dtype=x.dtype)


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(b: GraphBuilder, node: fx.Node, x: Value) -> tuple[Value, Value]:
    return log_sigmoid(b, node, x), common.filled(b, node.meta["val"][1].shape, 0, b.dtype_of(x))


@lowers(aten.hardtanh.default)
def hardtanh(b: GraphBuilder, node: fx.Node, x: Value, low: Scalar = -1, high: Scalar = 1) -> Value:
    """Clip, whose gradient is 1 at the bounds; torch's is 0 there."""
    dtype = b.dtype_of(x)
    bounds = (b.scalar(low, dtype), b.scalar(high, dtype))
    if dtype not in FLOATS:
        return b.op("Clip", x, *bounds, dtype=dtype)
    inside = b.op("And", b.op("Greater", x, bounds[0]), b.op("Less", x, bounds[1]))
    return b.op("Where", inside, x, b.op("Clip", b.stop_gradient(x), *bounds), dtype=dtype)


@lowers(aten.relu6.default)
def relu6(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    """By way of Relu, whose gradient at 0 is torch's: zeros are common, sixes are not."""
    dtype = b.dtype_of(x)
    return b.op("Clip", relu(b, node, x), None, b.scalar(6, dtype), dtype=dtype)


@lowers(aten.hardsigmoid.default)
def hardsigmoid(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5, dtype=x.dtype)


@lowers(aten.hardswish.default)
def hardswish(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("HardSwish", x, dtype=x.dtype)


@lowers(aten.mish.default)
def mish(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("Mish", x, dtype=x.dtype)


@lowers(aten.threshold.default)
def threshold(b: GraphBuilder, node: fx.Node, x: Value, limit: Scalar, value: Scalar) -> Value:
    dtype = b.dtype_of(x)
    return b.op("Where", b.op("Greater", x, b.scalar(limit, dtype)), x, b.scalar(value, dtype), dtype=dtype)


@lowers(aten.threshold_backward.default)
def threshold_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, limit: Scalar) -> Value:
    if limit != 0 or not b.dtype_of(dy).is_floating_point:
        raise NoLoweringError("another threshold than that of relu")
    return named_gradient(b, "ReluGrad", dy, x)


@lowers(aten.prelu.default, aten._prelu_kernel.default)
def prelu(b: GraphBuilder, node: fx.Node, x: Value, weight: Value) -> Value:
    """The slope of each channel (axis 1)."""
    if weight.rank == 1 and x.rank > 2:
        weight = common.reshape(b, weight, [*b.shape_of(weight), *[1] * (x.rank - 2)])
    elif weight.rank == 1 and x.rank == 0:
        weight = common.reshape(b, weight, [])
    return b.op("PRelu", x, weight, dtype=x.dtype)


@lowers(aten.glu.default)
def glu(b: GraphBuilder, node: fx.Node, x: Value, dim: int = -1) -> Value:
    axis = axis_of(dim, x.rank)
    half = b.shape_of(x)[axis] // 2
    first, second = b.op("Split", x, b.sizes([half, half]), axis=axis, outputs=2)
    return b.op("Mul", first, b.op("Sigmoid", second), dtype=x.dtype)
