"""Activations."""

from __future__ import annotations

import math

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import FLOATS, axis_of, named, named_gradient, pointwise

aten = torch.ops.aten


@lowers(aten.relu.default)
def relu(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    if x.dtype == torch.bool:
        return x
    return b.op("Relu", x) if x.dtype in FLOATS else b.op("Max", x, 0)


@lowers(aten.gelu.default)
def gelu(b: GraphBuilder, node: fx.Node, x: Value, approximate: str = "none") -> Value:
    if b.opset >= 20:
        return b.op("Gelu", x, approximate=approximate)
    if approximate == "tanh":
        cube = b.op("Mul", b.op("Mul", x, b.op("Mul", x, x)), 0.044715)
        share = b.op("Tanh", b.op("Mul", b.op("Add", x, cube), math.sqrt(2 / math.pi)))
    else:
        share = b.op("Erf", b.op("Mul", x, math.sqrt(0.5)))
    return b.op("Mul", b.op("Mul", x, 0.5), b.op("Add", share, 1.0))


@lowers(aten.gelu_backward.default)
def gelu_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, approximate: str = "none") -> Value:
    return named_gradient(b, "FastGeluGrad" if approximate == "tanh" else "GeluGrad", dy, x)


@pointwise(aten.silu.default)
def silu(b: GraphBuilder, x: Value) -> Value:
    return b.op("Mul", x, b.op("Sigmoid", x))


lowers(aten.silu_backward.default)(lambda b, node, dy, x: named_gradient(b, "QuickGeluGrad", dy, x, alpha=1.0))
lowers(aten.sigmoid_backward.default)(lambda b, node, dy, y: named_gradient(b, "SigmoidGrad", dy, y))
lowers(aten.tanh_backward.default)(lambda b, node, dy, y: named_gradient(b, "TanhGrad", dy, y))
pointwise(aten.hardsigmoid.default)(named("HardSigmoid", alpha=1 / 6, beta=0.5))
pointwise(aten.hardswish.default)(named("HardSwish"))
pointwise(aten.mish.default)(named("Mish"))


@lowers(aten.leaky_relu.default)
def leaky_relu(b: GraphBuilder, node: fx.Node, x: Value, slope: float = 0.01) -> Value:
    if common.fits_attribute(b, x, slope):
        return b.op("LeakyRelu", x, alpha=float(slope))
    return _beside(b, x, b.op("Mul", x, slope))


def _beside(b: GraphBuilder, x: Value, left: Value) -> Value:
    """x where it is positive, `left` elsewhere: an operator's definition, for factors that a float32 does not hold."""
    return b.op("Where", b.op("Greater", x, 0), x, left)


def _exponential(b: GraphBuilder, x: Value, alpha: float) -> Value:
    """alpha (e^x - 1) left of 0; right of it, where nobody looks, no more than 0."""
    return b.op("Mul", b.op("Sub", b.op("Exp", b.op("Min", x, 0)), 1), alpha)


@lowers(aten.elu.default)
def elu(
    b: GraphBuilder, node: fx.Node, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1
) -> Value:
    if input_scale != 1:
        raise NoLoweringError("an input scale")
    if common.fits_attribute(b, x, alpha):
        result = b.op("Elu", x, alpha=float(alpha))  # type: ignore[arg-type]
    else:
        result = _beside(b, x, _exponential(b, x, alpha))  # type: ignore[arg-type]
    return result if scale == 1 else b.op("Mul", result, scale)


@lowers(aten.selu.default)
def selu(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    alpha, gamma = 1.6732632423543772, 1.0507009873554805
    if common.fits_attribute(b, x, alpha):
        return b.op("Selu", x, alpha=alpha, gamma=gamma)
    return b.op("Mul", _beside(b, x, _exponential(b, x, alpha)), gamma)


@lowers(aten.celu.default)
def celu(b: GraphBuilder, node: fx.Node, x: Value, alpha: float = 1.0) -> Value:
    return b.op("Celu", x, alpha=float(alpha))  # torch's gradient knows alpha as a float32, too


@lowers(aten.softplus.default)
def softplus(b: GraphBuilder, node: fx.Node, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    """ln(1 + e^(beta x)) / beta; x itself beyond the threshold, as torch does."""
    scaled = x if beta == 1 else b.op("Mul", x, beta)
    soft = b.op("Softplus", scaled)
    soft = soft if beta == 1 else b.op("Div", soft, beta)
    if threshold >= 20 and x.dtype != torch.float64:  # type: ignore[operator]
        return soft  # equal there in these types
    return b.op("Where", b.op("Greater", scaled, threshold), x, soft)


@lowers(aten.log_sigmoid.default)
def log_sigmoid(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("Neg", b.op("Softplus", b.op("Neg", x)))


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(b: GraphBuilder, node: fx.Node, x: Value) -> tuple[Value, Value]:
    return log_sigmoid(b, node, x), common.filled(b, node.meta["val"][1].shape, 0, b.dtype_of(x))


@lowers(aten.hardtanh.default)
def hardtanh(b: GraphBuilder, node: fx.Node, x: Value, low: Scalar = -1, high: Scalar = 1) -> Value:
    """Clip, whose gradient is 1 at the bounds; torch's is 0 there, and Relu's at 0, too."""
    if x.dtype not in FLOATS or not b.stop_gradient_kept:
        return b.op("Clip", x, low, high)
    above = relu(b, node, x) if low == 0 else _limited(b, "LessOrEqual", x, low)
    return _limited(b, "GreaterOrEqual", above, high)


def _limited(b: GraphBuilder, beyond: str, x: Value, bound: Scalar) -> Value:
    """The bound, where x is that or beyond it; torch compares 16-bit floats with a bound that is not rounded."""
    wide = x if x.dtype == torch.float64 else b.cast(x, torch.float32)
    return b.op("Where", b.op(beyond, wide, bound), bound, x)


@lowers(aten.relu6.default)
def relu6(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return hardtanh(b, node, x, 0, 6)


@lowers(aten.threshold.default)
def threshold(b: GraphBuilder, node: fx.Node, x: Value, limit: Scalar, value: Scalar) -> Value:
    return b.op("Where", b.op("LessOrEqual", x, limit), value, x)  # NaN stays


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
    return b.op("PRelu", x, weight)


@lowers(aten.glu.default)
def glu(b: GraphBuilder, node: fx.Node, x: Value, dim: int = -1) -> Value:
    axis = axis_of(dim, x.rank)
    half = b.shape_of(x)[axis] // 2
    first, second = b.op("Split", x, b.sizes([half, half]), axis=axis, outputs=2)
    return b.op("Mul", first, b.op("Sigmoid", second))
