"""Special functions by rational and polynomial approximations, good for float32: computed in float64, the
approximations themselves are off by about 1e-7 (Abramowitz and Stegun, chapters 7 and 9; Giles for erfinv; Lanczos)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import Operand, operand, refuse_complex, result_type
from backpass.torch.lowerings.pointwise.unary import log1p

aten = torch.ops.aten

# Approximations are for values: differentiated, their branches would give NaN where another branch holds. Graphs that
# the engine differentiates call torch for these operators; graphs that torch differentiated take them from here.
VALUES_ONLY: dict[Any, Callable[..., Any]] = {}


def values_of(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `lowers`, for graphs that nobody differentiates any more."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        VALUES_ONLY.update(dict.fromkeys(targets, function))
        return function

    return put


WIDE = torch.float64


class Formula:
    """Arithmetic on float64 values."""

    def __init__(self, b: GraphBuilder) -> None:
        self.b = b

    def number(self, value: float) -> Value:
        return self.b.constant(value, WIDE)

    def op(self, name: str, *operands: Value | float) -> Value:
        values = [v if isinstance(v, Value) else self.number(v) for v in operands]
        return self.b.op(name, *values, dtype=WIDE)

    def where(self, condition: Value, x: Value | float, y: Value | float) -> Value:
        return self.op("Where", condition, x, y)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Lowest power first."""
        result: Value = self.number(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.op("Add", self.op("Mul", result, x), c)
        return result


def single(function: Callable[[Formula, Value], Value]) -> Callable[..., Value]:
    """A lowering that computes in float64 and is only good enough for narrower results."""

    def lower(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
        refuse_complex(x)
        dtype = result_type(node)
        if dtype == WIDE:
            raise NoLoweringError("float64: the approximation has single precision")
        return b.cast(function(Formula(b), b.cast(x, WIDE)), dtype)

    return lower


# ---- error function
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
)  # fmt: skip


def _erfc_of_positive(f: Formula, x: Value, square: Value | float) -> Value:
    t = f.op("Reciprocal", f.op("Add", f.op("Mul", x, 0.5), 1.0))
    return f.op("Mul", t, f.op("Exp", f.op("Sub", f.polynomial(t, _ERFC), square)))


@values_of(aten.erfc.default)
@single
def erfc(f: Formula, x: Value) -> Value:
    tail = _erfc_of_positive(f, f.op("Abs", x), f.op("Mul", x, x))
    return f.where(f.op("Less", x, 0.0), f.op("Sub", 2.0, tail), tail)


@values_of(aten.special_erfcx.default)
@single
def erfcx(f: Formula, x: Value) -> Value:
    tail = _erfc_of_positive(f, f.op("Abs", x), 0.0)
    other = f.op("Sub", f.op("Mul", f.op("Exp", f.op("Mul", x, x)), 2.0), tail)
    return f.where(f.op("Less", x, 0.0), other, tail)


_ERFINV_NEAR = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
    3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
_ERFINV_FAR = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
    0.000100950558, -0.000200214257,
)  # fmt: skip


@values_of(aten.erfinv.default)
@single
def erfinv(f: Formula, x: Value) -> Value:
    inside = f.op("Mul", f.op("Sub", 1.0, x), f.op("Add", 1.0, x))
    w = f.op("Neg", f.op("Log", inside))  # NaN outside of [-1, 1]
    near = f.polynomial(f.op("Sub", w, 2.5), _ERFINV_NEAR)
    far = f.polynomial(f.op("Sub", f.op("Sqrt", f.op("Max", w, 5.0)), 3.0), _ERFINV_FAR)
    result = f.op("Mul", f.where(f.op("Less", w, 5.0), near, far), x)
    end = f.op("Equal", f.op("Abs", x), 1.0)
    return f.where(end, f.op("Mul", x, math.inf), f.where(f.op("IsNaN", w), math.nan, result))


# ---- gamma function
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _lgamma_from_half(f: Formula, x: Value) -> Value:
    z = f.op("Sub", x, 1.0)
    series: Value = f.number(_LANCZOS[0])
    for i, c in enumerate(_LANCZOS[1:], 1):
        series = f.op("Add", series, f.op("Div", c, f.op("Add", z, float(i))))
    t = f.op("Add", z, 7.5)
    power = f.op("Sub", f.op("Mul", f.op("Add", z, 0.5), f.op("Log", t)), t)
    return f.op("Add", f.op("Add", power, f.op("Log", series)), 0.5 * math.log(2 * math.pi))


@values_of(aten.lgamma.default)
@single
def lgamma(f: Formula, x: Value) -> Value:
    small = f.op("Less", x, 0.5)
    right = _lgamma_from_half(f, f.where(small, f.op("Sub", 1.0, x), x))
    left = f.op("Sub", math.log(math.pi), f.op("Log", f.op("Abs", f.op("Sin", f.op("Mul", _turn(f, x), math.pi)))))
    pole = f.op("And", f.op("LessOrEqual", x, 0.0), f.op("Equal", f.op("Floor", x), x))
    result = f.where(small, f.op("Sub", left, right), right)
    endless = f.op("Equal", f.op("Abs", x), math.inf)
    return f.where(f.op("Or", pole, endless), math.inf, result)


def _turn(f: Formula, x: Value) -> Value:
    """x less its nearest integer: sine and tangent of pi x keep their digits."""
    return f.op("Sub", x, f.op("Round", x))


_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
SHIFT = 8


def _digamma_of_positive(f: Formula, x: Value) -> Value:
    total = f.number(0.0)
    for k in range(SHIFT):
        total = f.op("Add", total, f.op("Reciprocal", f.op("Add", x, float(k)) if k else x))
    z = f.op("Add", x, float(SHIFT))
    inverse = f.op("Reciprocal", f.op("Mul", z, z))
    series = f.op("Mul", inverse, f.polynomial(inverse, _DIGAMMA))
    return f.op("Sub", f.op("Add", f.op("Sub", f.op("Log", z), f.op("Div", 0.5, z)), series), total)


def _digamma(f: Formula, x: Value) -> Value:
    negative = f.op("Less", x, 0.0)
    right = _digamma_of_positive(f, f.where(negative, f.op("Sub", 1.0, x), x))
    cotangent = f.op("Div", math.pi, f.op("Tan", f.op("Mul", _turn(f, x), math.pi)))
    pole = f.op("And", negative, f.op("Equal", f.op("Floor", x), x))
    result = f.where(negative, f.op("Sub", right, cotangent), right)
    at_zero = f.op("Neg", f.op("Reciprocal", x))  # with the sign of the zero
    return f.where(f.op("Equal", x, 0.0), at_zero, f.where(pole, math.nan, result))


values_of(aten.digamma.default)(single(_digamma))

_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _trigamma(f: Formula, x: Value) -> Value:
    small = f.op("Less", x, 0.5)
    y = f.where(small, f.op("Sub", 1.0, x), x)
    total = f.number(0.0)
    for k in range(SHIFT):
        shifted = f.op("Add", y, float(k)) if k else y
        total = f.op("Add", total, f.op("Reciprocal", f.op("Mul", shifted, shifted)))
    z = f.op("Add", y, float(SHIFT))
    inverse = f.op("Reciprocal", z)
    square = f.op("Mul", inverse, inverse)
    series = f.op("Mul", f.op("Mul", square, inverse), f.polynomial(square, _TRIGAMMA))
    right = f.op("Add", total, f.op("Add", f.op("Add", inverse, f.op("Mul", square, 0.5)), series))
    sine = f.op("Sin", f.op("Mul", _turn(f, x), math.pi))
    mirror = f.op("Div", math.pi**2, f.op("Mul", sine, sine))
    return f.where(small, f.op("Sub", mirror, right), right)


@values_of(aten.polygamma.default)
def polygamma(b: GraphBuilder, node: fx.Node, n: int, x: Value) -> Value:
    if n > 1:
        raise NoLoweringError(f"derivative {n} of digamma")
    return single(_trigamma if n else _digamma)(b, node, x)


@lowers(aten.sinc.default)
def sinc(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    """sin(pi x) / (pi x); 1 at 0, where it is flat."""
    refuse_complex(x)
    dtype = result_type(node)
    x, one = b.cast(x, dtype), b.constant(1.0, dtype)
    middle = b.op("Equal", x, b.constant(0.0, dtype))
    angle = b.op("Where", middle, one, b.op("Mul", x, b.constant(math.pi, dtype)))
    return b.op("Where", middle, one, b.op("Div", b.op("Sin", angle), angle), dtype=dtype)


@lowers(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    dtype = result_type(node)
    return _product_with_log(b, operand(b, x, dtype), operand(b, y, dtype), 0.0, lambda v: b.op("Log", v))


@lowers(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def xlog1py(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
    dtype = result_type(node)
    return _product_with_log(b, operand(b, x, dtype), operand(b, y, dtype), -1.0, lambda v: log1p(b, node, v))


def _product_with_log(b: GraphBuilder, x: Value, y: Value, pole: float, log: Callable[[Value], Value]) -> Value:
    """x log y, but 0 where x is 0 and the logarithm endless or none at all, which sends no gradient back."""
    refuse_complex(x, y)
    dtype, zero = b.dtype_of(x), b.constant(0, x.dtype)
    endless = b.op("Or", b.op("LessOrEqual", y, b.constant(pole, dtype)), b.op("Equal", y, b.constant(math.inf, dtype)))
    nothing = b.op("And", b.op("Equal", x, zero), endless)
    product = b.op("Mul", x, log(b.op("Where", nothing, b.constant(pole + 1, dtype), y, dtype=dtype)))
    return b.op("Where", nothing, zero, product, dtype=dtype)
