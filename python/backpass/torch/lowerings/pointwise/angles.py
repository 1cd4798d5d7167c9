"""Signs and angles."""

from __future__ import annotations

import math

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import FLOATS, in_result_type, pointwise
from backpass.torch.lowerings.pointwise.special import values_of

aten = torch.ops.aten


def _is_negative(b: GraphBuilder, x: Value) -> Value:
    """Whether the sign bit is set, that of -0 included; not for NaN."""
    below = b.op("Less", x, 0.0)
    return b.op("Or", below, b.op("And", b.op("Equal", x, 0.0), b.op("Less", b.op("Reciprocal", x), 0.0)))


@lowers(aten.signbit.default)
def signbit(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    dtype = b.dtype_of(x)
    if dtype == torch.bool or not dtype.is_signed:
        raise NoLoweringError("unsigned numbers")
    return _is_negative(b, x) if dtype in FLOATS else b.op("Less", x, 0)


@pointwise(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(b: GraphBuilder, x: Value, y: Value) -> Value:
    size = b.op("Abs", x)
    return b.op("Where", _is_negative(b, y), b.op("Neg", size), size)


@values_of(aten.atan2.default)
@in_result_type
def atan2(b: GraphBuilder, y: Value, x: Value) -> Value:
    """The angle of (x, y). The quotient is at most 1, so that nothing overflows."""
    width, height = b.op("Abs", x), b.op("Abs", y)
    steep = b.op("Greater", height, width)
    small, large = b.op("Min", width, height), b.op("Max", width, height)
    both_endless, at_origin = b.op("Equal", small, math.inf), b.op("Equal", large, 0.0)
    ratio = b.op("Where", both_endless, 1.0, b.op("Div", small, b.op("Where", at_origin, 1.0, large)))
    angle = b.op("Atan", ratio)
    angle = b.op("Where", steep, b.op("Sub", math.pi / 2, angle), angle)
    angle = b.op("Where", _is_negative(b, x), b.op("Sub", math.pi, angle), angle)
    signed = b.op("Where", _is_negative(b, y), b.op("Neg", angle), angle)
    return b.op("Where", b.op("Or", b.op("IsNaN", x), b.op("IsNaN", y)), math.nan, signed)


@pointwise(aten.hypot.default)
def hypot(b: GraphBuilder, x: Value, y: Value) -> Value:
    """Scaled by the larger, so that squares do not overflow."""
    x, y = b.op("Abs", x), b.op("Abs", y)
    large, small = b.op("Max", x, y), b.op("Min", x, y)
    usual = b.op("And", b.op("Greater", large, 0.0), b.op("Less", large, math.inf))
    ratio = b.op("Div", small, b.op("Where", usual, large, 1.0))
    made = b.op("Mul", large, b.op("Sqrt", b.op("Add", 1.0, b.op("Mul", ratio, ratio))))
    return b.op("Where", usual, made, large)


@pointwise(aten.angle.default)
def angle(b: GraphBuilder, x: Value) -> Value:
    """Of real numbers: pi for negative ones, 0 for the others."""
    zero = b.constant(0.0, x.dtype)
    made = b.op("Where", b.op("Less", x, zero), torch.pi, zero)
    return b.op("Where", b.op("IsNaN", x), x, made)
