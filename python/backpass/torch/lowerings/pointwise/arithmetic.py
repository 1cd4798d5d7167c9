"""Sums, products, quotients, powers: torch's type promotion, ONNX's operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import FLOATS, Operand, operand, promoted, refuse_complex, result_type

aten = torch.ops.aten


def binary(b: GraphBuilder, node: fx.Node, op: str, x: Operand, y: Operand) -> Value:
    """An operator that computes in the element type of its result."""
    refuse_complex(x, y)
    dtype = result_type(node)
    return b.op(op, operand(b, x, dtype), operand(b, y, dtype), dtype=dtype)


def scaled(b: GraphBuilder, node: fx.Node, y: Operand, alpha: Scalar) -> Operand:
    """alpha * y in the element type of the result."""
    if not isinstance(alpha, torch.SymInt | torch.SymFloat) and alpha == 1:
        return y
    dtype = result_type(node)
    return b.op("Mul", operand(b, y, dtype), b.scalar(alpha, dtype), dtype=dtype)


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
    return binary(b, node, "Sub", y, scaled(b, node, x, alpha))


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    return binary(b, node, "And" if result_type(node) == torch.bool else "Mul", x, y)


@lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar)
def div(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    return binary(b, node, "Div", x, y)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return div(b, node, x, y)
    if rounding_mode == "floor":
        return floor_divide(b, node, x, y)
    dtype = result_type(node)
    quotient = binary(b, node, "Div", x, y)
    return truncated(b, quotient) if dtype in FLOATS else quotient


def truncated(b: GraphBuilder, x: Value) -> Value:
    """Towards zero: sign(x) floor(|x|)."""
    floor = b.op("Floor", b.op("Abs", x))
    return b.op("Mul", b.op("Sign", x), floor, dtype=x.dtype)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    refuse_complex(x, y)
    dtype = result_type(node)
    above, below = operand(b, x, dtype), operand(b, y, dtype)
    if dtype in FLOATS:
        return _floored(b, above, below)
    if dtype.is_signed:
        above = b.op("Sub", above, b.op("Mod", above, below))  # ONNX's Div of integers cuts off towards zero
    return b.op("Div", above, below, dtype=dtype)


def _floored(b: GraphBuilder, x: Value, y: Value) -> Value:
    """From the remainder, as Python and torch do: 1 // 0.1 is 9, as 0.1 is a little more than a tenth."""
    zero, one = b.constant(0, x.dtype), b.constant(1, x.dtype)
    rest = b.op("Mod", x, y, fmod=1)
    quotient = b.op("Div", b.op("Sub", x, rest), y)  # almost an integer
    moved = b.op("And", b.op("Xor", b.op("Less", rest, zero), b.op("Less", y, zero)), _differ(b, rest, zero))
    quotient = b.op("Where", moved, b.op("Sub", quotient, one), quotient)
    floor = b.op("Floor", quotient)
    far = b.op("Greater", b.op("Sub", quotient, floor), b.constant(0.5, x.dtype))
    floor = b.op("Where", far, b.op("Add", floor, one), floor)
    return b.op("Where", b.op("Equal", y, zero), b.op("Floor", b.op("Div", x, y)), floor, dtype=x.dtype)


def _differ(b: GraphBuilder, x: Value, y: Value) -> Value:
    return b.op("Not", b.op("Equal", x, y), dtype=torch.bool)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    """With the sign of y."""
    refuse_complex(x, y)
    dtype = result_type(node)
    x, y = operand(b, x, dtype), operand(b, y, dtype)
    if dtype not in FLOATS:
        return b.op("Mod", x, y, dtype=dtype)
    rest = b.op("Mod", x, y, fmod=1)
    zero = b.constant(0, dtype)
    wrong_sign = b.op("Xor", b.op("Less", rest, zero), b.op("Less", y, zero))
    moved = b.op("And", wrong_sign, _differ(b, rest, zero))
    return b.op("Where", moved, b.op("Add", rest, y), rest, dtype=dtype)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    """With the sign of x."""
    refuse_complex(x, y)
    dtype = result_type(node)
    return b.op("Mod", operand(b, x, dtype), operand(b, y, dtype), fmod=1, dtype=dtype)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    refuse_complex(x, y)
    dtype = result_type(node)
    base = operand(b, x, dtype)
    if isinstance(y, int | float) and not isinstance(y, bool):
        if y == 1:
            return base
        if y == 2:
            return b.op("Mul", base, base, dtype=dtype)
        if y == 0.5 and dtype in FLOATS:
            return b.op("Sqrt", base, dtype=dtype)
    if dtype not in (*FLOATS, torch.int32, torch.int64):
        wide = b.op("Pow", b.cast(base, torch.int64), operand(b, y, torch.int64), dtype=torch.int64)
        return b.cast(wide, dtype)
    return b.op("Pow", base, operand(b, y, dtype), dtype=dtype)


@lowers(aten.minimum.default)
def minimum(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    return binary(b, node, "And" if result_type(node) == torch.bool else "Min", x, y)


@lowers(aten.maximum.default)
def maximum(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    return binary(b, node, "Or" if result_type(node) == torch.bool else "Max", x, y)


@lowers(aten.fmin.default)
def fmin(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    return _number_of_two(b, node, "LessOrEqual", x, y) if result_type(node) in FLOATS else minimum(b, node, x, y)


@lowers(aten.fmax.default)
def fmax(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    return _number_of_two(b, node, "GreaterOrEqual", x, y) if result_type(node) in FLOATS else maximum(b, node, x, y)


def _number_of_two(b: GraphBuilder, node: fx.Node, op: str, x: Operand, y: Operand) -> Value:
    """The first where the comparison holds or the second is no number; equal ones send the gradient to the first."""
    dtype = result_type(node)
    x, y = operand(b, x, dtype), operand(b, y, dtype)
    return b.op("Where", b.op("Or", b.op(op, x, y), b.op("IsNaN", y)), x, y, dtype=dtype)


@lowers(aten.addcmul.default)
def addcmul(b: GraphBuilder, node: fx.Node, x: Value, y: Value, z: Value, value: Scalar = 1) -> Value:
    product = binary(b, node, "Mul", y, z)
    return binary(b, node, "Add", x, scaled(b, node, product, value))


@lowers(aten.addcdiv.default)
def addcdiv(b: GraphBuilder, node: fx.Node, x: Value, y: Value, z: Value, value: Scalar = 1) -> Value:
    quotient = binary(b, node, "Div", y, z)
    return binary(b, node, "Add", x, scaled(b, node, quotient, value))


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: GraphBuilder, node: fx.Node, start: Value, end: Value, weight: Operand) -> Value:
    step = binary(b, node, "Mul", weight, binary(b, node, "Sub", end, start))
    return binary(b, node, "Add", start, step)


@lowers(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_min.Tensor, aten.clip.default)
def clamp(b: GraphBuilder, node: fx.Node, x: Value, low: Any = None, high: Any = None, **kw: Any) -> Value:
    low, high = kw.get("min", low), kw.get("max", high)
    dtype = result_type(node)
    x = b.cast(x, dtype)
    if dtype == torch.bool:
        raise NoLoweringError("clamp of bool")
    if all(v is None or isinstance(v, int | float) for v in (low, high)) and (None in (low, high) or low <= high):
        pair = [None if v is None else operand(b, v, dtype) for v in (low, high)]
        return b.op("Clip", x, *pair, dtype=dtype)
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
    return b.op("Where", out, bound, x, dtype=x.dtype)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: GraphBuilder, node: fx.Node, x: Value, high: Operand) -> Value:
    return clamp(b, node, x, None, high)


def promoted_pair(b: GraphBuilder, x: Operand, y: Operand) -> tuple[Value, Value]:
    """Both operands in the element type torch compares them in."""
    refuse_complex(x, y)
    dtype = promoted(x, y)
    return operand(b, x, dtype), operand(b, y, dtype)
