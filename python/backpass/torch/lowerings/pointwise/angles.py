"""Signs and angles."""

from __future__ import annotations

import math

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import FLOATS, Operand, meta, operand, refuse_complex, result_type
from backpass.torch.lowerings.pointwise.special import values_of

aten = torch.ops.aten


def _is_negative(b: GraphBuilder, x: Value, dtype: torch.dtype) -> Value:
    """Whether the sign bit is set, that of -0 included; not for NaN."""
    zero = b.constant(0.0, dtype)
    below = b.op("Less", x, zero)
    inverse_below = b.op("And", b.op("Equal", x, zero), b.op("Less", b.op("Reciprocal", x), zero))
    return b.op("Or", below, inverse_below, dtype=torch.bool)


@lowers(aten.signbit.default)
def signbit(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    dtype = b.dtype_of(x)
    if dtype == torch.bool or not dtype.is_signed:
        raise NoLoweringError("unsigned numbers")
    if dtype not in FLOATS:
        return b.op("Less", x, b.constant(0, dtype), dtype=torch.bool)
    return _is_negative(b, x, dtype)


@lowers(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    refuse_complex(x, y)
    dtype = result_type(node)
    size = b.op("Abs", operand(b, x, dtype))
    return b.op("Where", _is_negative(b, operand(b, y, dtype), dtype), b.op("Neg", size), size, dtype=dtype)


@values_of(aten.atan2.default)
def atan2(b: GraphBuilder, node: fx.Node, y: Value, x: Value) -> Value:
    """The angle of (x, y). The quotient is at most 1, so that nothing overflows."""
    refuse_complex(x, y)
    dtype = result_type(node)
    y, x = operand(b, y, dtype), operand(b, x, dtype)
    steep = b.op("Greater", b.op("Abs", y), b.op("Abs", x))
    small = b.op("Min", b.op("Abs", x), b.op("Abs", y))
    large = b.op("Max", b.op("Abs", x), b.op("Abs", y))
    one = b.constant(1.0, dtype)
    both_endless = b.op("Equal", small, b.constant(math.inf, dtype))
    at_origin = b.op("Equal", large, b.constant(0.0, dtype))
    ratio = b.op("Where", both_endless, one, b.op("Div", small, b.op("Where", at_origin, one, large)))
    angle = b.op("Atan", ratio)
    angle = b.op("Where", steep, b.op("Sub", b.constant(math.pi / 2, dtype), angle), angle)
    left = _is_negative(b, x, dtype)
    angle = b.op("Where", left, b.op("Sub", b.constant(math.pi, dtype), angle), angle)
    signed = b.op("Where", _is_negative(b, y, dtype), b.op("Neg", angle), angle)
    broken = b.op("Or", b.op("IsNaN", x), b.op("IsNaN", y))
    return b.op("Where", broken, b.constant(math.nan, dtype), signed, dtype=dtype)


@lowers(aten.hypot.default)
def hypot(b: GraphBuilder, node: fx.Node, x: Value, y: Value) -> Value:
    """Scaled by the larger, so that squares do not overflow."""
    dtype = result_type(node)
    x, y = b.op("Abs", operand(b, x, dtype)), b.op("Abs", operand(b, y, dtype))
    large, small = b.op("Max", x, y), b.op("Min", x, y)
    usual = b.op(
        "And", b.op("Greater", large, b.constant(0.0, dtype)), b.op("Less", large, b.constant(math.inf, dtype))
    )
    ratio = b.op("Div", small, b.op("Where", usual, large, b.constant(1.0, dtype)))
    one = b.constant(1.0, dtype)
    made = b.op("Mul", large, b.op("Sqrt", b.op("Add", one, b.op("Mul", ratio, ratio))))
    return b.op("Where", usual, made, large, dtype=dtype)


@lowers(aten.angle.default)
def angle(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    """Of real numbers: pi for negative ones, 0 for the others."""
    refuse_complex(x)
    dtype = meta(node).dtype
    x = b.cast(x, dtype)
    zero = b.constant(0.0, dtype)
    made = b.op("Where", b.op("Less", x, zero), b.constant(torch.pi, dtype), zero)
    return b.op("Where", b.op("IsNaN", x), x, made, dtype=dtype)
