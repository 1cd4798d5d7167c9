"""Sums, products, quotients, powers: torch's type promotion, ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import FLOATS, Operand, named, operand, pointwise, refuse_complex, result_type

aten = torch.ops.aten


def binary(b: GraphBuilder, node: fx.Node, op: str, x: Operand, y: Operand) -> Value:
    """An operator that computes in the element type of its result."""
    refuse_complex(x, y)
    dtype = result_type(node)
    return b.op(op, operand(b, x, dtype), operand(b, y, dtype))


def scaled(b: GraphBuilder, node: fx.Node, y: Operand, alpha: Scalar) -> Operand:
    """alpha * y in the element type of the result."""
    if not isinstance(alpha, torch.SymInt | torch.SymFloat) and alpha == 1:
        return y
    return binary(b, node, "Mul", y, alpha)


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    if result_type(node) == torch.bool:
        return binary(b, node, "Or", x, y if alpha else False)
    return binary(b, node, "Add", x, scaled(b, node, y, alpha))


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return binary(b, node, "Sub", x, scaled(b, node, y, alpha))


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return sub(b, node, y, x, alpha)


def _or_logic(op: str, logic: str) -> Callable[..., Value]:
    """Bools have an operator of their own."""
    return lambda b, x, y: b.op(logic if x.dtype == torch.bool else op, x, y)


minimum, maximum = _or_logic("Min", "And"), _or_logic("Max", "Or")
pointwise(aten.mul.Tensor, aten.mul.Scalar)(_or_logic("Mul", "And"))
pointwise(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar)(named("Div"))
pointwise(aten.fmod.Tensor, aten.fmod.Scalar)(named("Mod", fmod=1))  # with the sign of x
pointwise(aten.minimum.default)(minimum)
pointwise(aten.maximum.default)(maximum)


@pointwise(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: GraphBuilder, x: Value, y: Value, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(b, x, y)
    quotient = b.op("Div", x, y)
    return truncated(b, quotient) if rounding_mode and x.dtype in FLOATS else quotient


def truncated(b: GraphBuilder, x: Value) -> Value:
    """Towards zero: sign(x) floor(|x|)."""
    floor = b.op("Floor", b.op("Abs", x))
    return b.op("Mul", b.op("Sign", x), floor)


@pointwise(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(b: GraphBuilder, x: Value, y: Value) -> Value:
    if x.dtype in FLOATS:
        return _floored(b, x, y)
    if b.dtype_of(x).is_signed:
        x = b.op("Sub", x, b.op("Mod", x, y))  # ONNX's Div of integers cuts off towards zero
    return b.op("Div", x, y)


def _floored(b: GraphBuilder, x: Value, y: Value) -> Value:
    """From the remainder, as Python and torch do: 1 // 0.1 is 9, as 0.1 is a little more than a tenth."""
    rest = b.op("Mod", x, y, fmod=1)
    quotient = b.op("Div", b.op("Sub", x, rest), y)  # almost an integer
    quotient = b.op("Where", _wrong_sign(b, rest, y), b.op("Sub", quotient, 1), quotient)
    floor = b.op("Floor", quotient)
    far = b.op("Greater", b.op("Sub", quotient, floor), 0.5)
    floor = b.op("Where", far, b.op("Add", floor, 1), floor)
    return b.op("Where", b.op("Equal", y, 0), b.op("Floor", b.op("Div", x, y)), floor)


def _wrong_sign(b: GraphBuilder, rest: Value, y: Value) -> Value:
    """Whether a remainder that is not 0 has another sign than the divisor."""
    differ = b.op("Xor", b.op("Less", rest, 0), b.op("Less", y, 0))
    return b.op("And", differ, b.op("Not", b.op("Equal", rest, 0)))


@pointwise(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(b: GraphBuilder, x: Value, y: Value) -> Value:
    """With the sign of y."""
    if x.dtype not in FLOATS:
        return b.op("Mod", x, y)
    rest = b.op("Mod", x, y, fmod=1)
    return b.op("Where", _wrong_sign(b, rest, y), b.op("Add", rest, y), rest)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    refuse_complex(x, y)
    dtype = result_type(node)
    base = operand(b, x, dtype)
    if isinstance(y, int | float) and not isinstance(y, bool):
        if y == 1:
            return base
        if y == 2:
            return b.op("Mul", base, base)
        if y == 0.5 and dtype in FLOATS:
            return b.op("Sqrt", base)
    wide = dtype if dtype in (*FLOATS, torch.int32, torch.int64) else torch.int64
    return b.cast(b.op("Pow", b.cast(base, wide), operand(b, y, wide)), dtype)


def _number_of_two(op: str, otherwise: Callable[..., Value]) -> Callable[..., Value]:
    """The first where the comparison holds or the second is no number; equal ones send the gradient to the first."""

    def formula(b: GraphBuilder, x: Value, y: Value) -> Value:
        if x.dtype not in FLOATS:
            return otherwise(b, x, y)
        return b.op("Where", b.op("Or", b.op(op, x, y), b.op("IsNaN", y)), x, y)

    return formula


pointwise(aten.fmin.default)(_number_of_two("LessOrEqual", minimum))
pointwise(aten.fmax.default)(_number_of_two("GreaterOrEqual", maximum))


@lowers(aten.addcmul.default)
def addcmul(b: GraphBuilder, node: fx.Node, x: Value, y: Value, z: Value, value: Scalar = 1) -> Value:
    return add(b, node, x, binary(b, node, "Mul", y, z), value)


@lowers(aten.addcdiv.default)
def addcdiv(b: GraphBuilder, node: fx.Node, x: Value, y: Value, z: Value, value: Scalar = 1) -> Value:
    return add(b, node, x, binary(b, node, "Div", y, z), value)


@pointwise(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: GraphBuilder, start: Value, end: Value, weight: Value) -> Value:
    return b.op("Add", start, b.op("Mul", weight, b.op("Sub", end, start)))


@lowers(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_min.Tensor, aten.clip.default)
def clamp(b: GraphBuilder, node: fx.Node, x: Value, low: Any = None, high: Any = None, **kw: Any) -> Value:
    low, high = kw.get("min", low), kw.get("max", high)
    dtype = result_type(node)
    x = b.cast(x, dtype)
    if dtype == torch.bool:
        raise NoLoweringError("clamp of bool")
    if all(v is None or isinstance(v, int | float) for v in (low, high)) and (None in (low, high) or low <= high):
        return b.op("Clip", x, low, high)
    if low is not None:
        x = _bounded(b, "Less", x, operand(b, low, dtype))
    if high is not None:
        x = _bounded(b, "Greater", x, operand(b, high, dtype))
    return x


def _bounded(b: GraphBuilder, beyond: str, x: Value, bound: Value) -> Value:
    """The bound beyond it. An element that equals it is the element: the gradient is its own, as torch's is."""
    out = b.op(beyond, x, bound)
    if x.dtype in FLOATS:
        out = b.op("Or", out, b.op("IsNaN", bound))
    return b.op("Where", out, bound, x)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: GraphBuilder, node: fx.Node, x: Value, high: Operand) -> Value:
    return clamp(b, node, x, None, high)
