"""Functions of one tensor, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings.common import FLOATS, named, pointwise, refuse_complex
from backpass.torch.lowerings.pointwise.arithmetic import truncated

aten = torch.ops.aten

# ONNX calls these as torch does.
_ALIKE = (
    "exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "erf", "sigmoid", "reciprocal",
)  # fmt: skip
for _name in _ALIKE:
    pointwise(f"aten::{_name}")(named(_name.capitalize()))


def _of_numbers(op: str) -> Callable[..., Value]:
    """What leaves bools as they are."""
    return lambda b, x: x if x.dtype == torch.bool else b.op(op, x)


pointwise(aten.abs.default)(_of_numbers("Abs"))
pointwise(aten.sign.default, aten.sgn.default)(_of_numbers("Sign"))


@pointwise(aten.neg.default)
def negative(b: GraphBuilder, x: Value) -> Value:
    if not b.dtype_of(x).is_signed:  # ONNX negates what has a sign
        return b.op("Sub", 0, x)
    return b.op("Neg", x)


@pointwise(aten.rsqrt.default)
def rsqrt(b: GraphBuilder, x: Value) -> Value:
    return b.op("Reciprocal", b.op("Sqrt", x))


def _rounding(round_: Callable[[GraphBuilder, Value], Value]) -> Lowering:
    return lambda b, node, x: round_(b, x) if x.dtype in FLOATS else x


for _name in ("floor", "ceil", "round"):
    lowers(f"aten::{_name}")(_rounding(named(_name.capitalize())))
lowers(aten.trunc.default, aten.fix.default)(_rounding(truncated))


@pointwise(aten.frac.default)
def frac(b: GraphBuilder, x: Value) -> Value:
    return b.op("Sub", x, truncated(b, x))


@pointwise(aten.square.default)
def square(b: GraphBuilder, x: Value) -> Value:
    return b.op("Mul", x, x)


def _logarithm(base: float) -> Callable[..., Value]:
    return lambda b, x: b.op("Mul", b.op("Log", x), 1 / math.log(base))


pointwise(aten.log2.default)(_logarithm(2))
pointwise(aten.log10.default)(_logarithm(10))


@pointwise(aten.exp2.default)
def exp2(b: GraphBuilder, x: Value) -> Value:
    return b.op("Exp", b.op("Mul", x, math.log(2)))


def _near_zero(b: GraphBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| < 1, x where that holds (else 0), x where it does not (else 1)."""
    near = b.op("Less", b.op("Abs", x), 1)
    return near, b.op("Where", near, x, 0), b.op("Where", near, 1, x)


@pointwise(aten.log1p.default)
def log1p(b: GraphBuilder, x: Value) -> Value:
    """2 atanh(x / (x + 2)) near 0, where 1 + x would lose the digits of x."""
    near, small, large = _near_zero(b, x)
    fine = b.op("Mul", b.op("Atanh", b.op("Div", small, b.op("Add", small, 2))), 2)
    return b.op("Where", near, fine, b.op("Log", b.op("Add", large, 1)))


@pointwise(aten.expm1.default)
def expm1(b: GraphBuilder, x: Value) -> Value:
    """2 t / (1 - t) with t = tanh(x / 2) near 0, where e^x - 1 would lose the digits of x."""
    near, small, large = _near_zero(b, x)
    half = b.op("Tanh", b.op("Div", small, 2))
    fine = b.op("Div", b.op("Mul", half, 2), b.op("Sub", 1, half))
    return b.op("Where", near, fine, b.op("Sub", b.op("Exp", large), 1))


def _float_test(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
        refuse_complex(x)
        # IsInf has no 16-bit floats before opset 20
        return b.op(op, x if x.dtype == torch.float64 else b.cast(x, torch.float32))

    return lower


lowers(aten.isnan.default)(_float_test("IsNaN"))
lowers(aten.isinf.default)(_float_test("IsInf"))


@pointwise(aten.round.decimals)
def round_decimals(b: GraphBuilder, x: Value, *, decimals: int = 0) -> Value:
    if x.dtype not in FLOATS:
        raise NoLoweringError("integers")
    if decimals == 0:
        return b.op("Round", x)
    factor = 10.0 ** abs(decimals)
    first, second = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return b.op(second, b.op("Round", b.op(first, x, factor)), factor)
