"""Special functions by rational and polynomial approximations, good for float32: computed in float64, the
approximations themselves are off by about 1e-7 (Abramowitz and Stegun, chapters 7 and 9; Giles for erfinv; Lanczos)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.lowerings.common import named, pointwise, refuse_complex, result_type
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


def polynomial(b: GraphBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """Lowest power first."""
    result = b.constant(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        result = b.op("Add", b.op("Mul", result, x), c)
    return result


def single(function: Callable[[GraphBuilder, Value], Value]) -> Callable[..., Value]:
    """A lowering that computes in float64 and is only good enough for narrower results."""

    def lower(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
        refuse_complex(x)
        dtype = result_type(node)
        if dtype == WIDE:
            raise NoLoweringError("float64: the approximation has single precision")
        return b.cast(function(b, b.cast(x, WIDE)), dtype)

    return lower


# ---- error function
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
)  # fmt: skip


def _erfc_of_positive(b: GraphBuilder, x: Value, square: Value | float) -> Value:
    t = b.op("Reciprocal", b.op("Add", b.op("Mul", x, 0.5), 1.0))
    return b.op("Mul", t, b.op("Exp", b.op("Sub", polynomial(b, t, _ERFC), square)))


@values_of(aten.erfc.default)
@single
def erfc(b: GraphBuilder, x: Value) -> Value:
    tail = _erfc_of_positive(b, b.op("Abs", x), b.op("Mul", x, x))
    return b.op("Where", b.op("Less", x, 0.0), b.op("Sub", 2.0, tail), tail)


@values_of(aten.special_erfcx.default)
@single
def erfcx(b: GraphBuilder, x: Value) -> Value:
    tail = _erfc_of_positive(b, b.op("Abs", x), 0.0)
    other = b.op("Sub", b.op("Mul", b.op("Exp", b.op("Mul", x, x)), 2.0), tail)
    return b.op("Where", b.op("Less", x, 0.0), other, tail)


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
def erfinv(b: GraphBuilder, x: Value) -> Value:
    inside = b.op("Mul", b.op("Sub", 1.0, x), b.op("Add", 1.0, x))
    w = b.op("Neg", b.op("Log", inside))  # NaN outside of [-1, 1]
    near = polynomial(b, b.op("Sub", w, 2.5), _ERFINV_NEAR)
    far = polynomial(b, b.op("Sub", b.op("Sqrt", b.op("Max", w, 5.0)), 3.0), _ERFINV_FAR)
    result = b.op("Mul", b.op("Where", b.op("Less", w, 5.0), near, far), x)
    end = b.op("Equal", b.op("Abs", x), 1.0)
    return b.op("Where", end, b.op("Mul", x, math.inf), b.op("Where", b.op("IsNaN", w), math.nan, result))


# ---- gamma function
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _lgamma_from_half(b: GraphBuilder, x: Value) -> Value:
    z = b.op("Sub", x, 1.0)
    series: Value = b.constant(_LANCZOS[0], WIDE)
    for i, c in enumerate(_LANCZOS[1:], 1):
        series = b.op("Add", series, b.op("Div", c, b.op("Add", z, float(i))))
    t = b.op("Add", z, 7.5)
    power = b.op("Sub", b.op("Mul", b.op("Add", z, 0.5), b.op("Log", t)), t)
    return b.op("Add", b.op("Add", power, b.op("Log", series)), 0.5 * math.log(2 * math.pi))


@values_of(aten.lgamma.default)
@single
def lgamma(b: GraphBuilder, x: Value) -> Value:
    small = b.op("Less", x, 0.5)
    right = _lgamma_from_half(b, b.op("Where", small, b.op("Sub", 1.0, x), x))
    left = b.op("Sub", math.log(math.pi), b.op("Log", b.op("Abs", b.op("Sin", b.op("Mul", _turn(b, x), math.pi)))))
    pole = b.op("And", b.op("LessOrEqual", x, 0.0), b.op("Equal", b.op("Floor", x), x))
    result = b.op("Where", small, b.op("Sub", left, right), right)
    endless = b.op("Equal", b.op("Abs", x), math.inf)
    return b.op("Where", b.op("Or", pole, endless), math.inf, result)


def _turn(b: GraphBuilder, x: Value) -> Value:
    """x less its nearest integer: sine and tangent of pi x keep their digits."""
    return b.op("Sub", x, b.op("Round", x))


_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
SHIFT = 8


def _digamma_of_positive(b: GraphBuilder, x: Value) -> Value:
    total = b.constant(0.0, WIDE)
    for k in range(SHIFT):
        total = b.op("Add", total, b.op("Reciprocal", b.op("Add", x, float(k)) if k else x))
    z = b.op("Add", x, float(SHIFT))
    inverse = b.op("Reciprocal", b.op("Mul", z, z))
    series = b.op("Mul", inverse, polynomial(b, inverse, _DIGAMMA))
    return b.op("Sub", b.op("Add", b.op("Sub", b.op("Log", z), b.op("Div", 0.5, z)), series), total)


def _digamma(b: GraphBuilder, x: Value) -> Value:
    negative = b.op("Less", x, 0.0)
    right = _digamma_of_positive(b, b.op("Where", negative, b.op("Sub", 1.0, x), x))
    cotangent = b.op("Div", math.pi, b.op("Tan", b.op("Mul", _turn(b, x), math.pi)))
    pole = b.op("And", negative, b.op("Equal", b.op("Floor", x), x))
    result = b.op("Where", negative, b.op("Sub", right, cotangent), right)
    at_zero = b.op("Neg", b.op("Reciprocal", x))  # with the sign of the zero
    return b.op("Where", b.op("Equal", x, 0.0), at_zero, b.op("Where", pole, math.nan, result))


values_of(aten.digamma.default)(single(_digamma))

_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _trigamma(b: GraphBuilder, x: Value) -> Value:
    small = b.op("Less", x, 0.5)
    y = b.op("Where", small, b.op("Sub", 1.0, x), x)
    total = b.constant(0.0, WIDE)
    for k in range(SHIFT):
        shifted = b.op("Add", y, float(k)) if k else y
        total = b.op("Add", total, b.op("Reciprocal", b.op("Mul", shifted, shifted)))
    z = b.op("Add", y, float(SHIFT))
    inverse = b.op("Reciprocal", z)
    square = b.op("Mul", inverse, inverse)
    series = b.op("Mul", b.op("Mul", square, inverse), polynomial(b, square, _TRIGAMMA))
    right = b.op("Add", total, b.op("Add", b.op("Add", inverse, b.op("Mul", square, 0.5)), series))
    sine = b.op("Sin", b.op("Mul", _turn(b, x), math.pi))
    mirror = b.op("Div", math.pi**2, b.op("Mul", sine, sine))
    return b.op("Where", small, b.op("Sub", mirror, right), right)


@values_of(aten.polygamma.default)
def polygamma(b: GraphBuilder, node: fx.Node, n: int, x: Value) -> Value:
    if n > 1:
        raise NoLoweringError(f"derivative {n} of digamma")
    return single(_trigamma if n else _digamma)(b, node, x)


@pointwise(aten.sinc.default)
def sinc(b: GraphBuilder, x: Value) -> Value:
    """sin(pi x) / (pi x); 1 at 0, where it is flat."""
    middle = b.op("Equal", x, 0.0)
    angle = b.op("Where", middle, 1.0, b.op("Mul", x, math.pi))
    return b.op("Where", middle, 1.0, b.op("Div", b.op("Sin", angle), angle))


def _product_with_log(pole: float, log: Callable[[GraphBuilder, Value], Value]) -> Callable[..., Value]:
    """x log y, but 0 where x is 0 and the logarithm endless or none at all, which sends no gradient back."""

    def formula(b: GraphBuilder, x: Value, y: Value) -> Value:
        endless = b.op("Or", b.op("LessOrEqual", y, pole), b.op("Equal", y, math.inf))
        nothing = b.op("And", b.op("Equal", x, 0), endless)
        product = b.op("Mul", x, log(b, b.op("Where", nothing, pole + 1, y)))
        return b.op("Where", nothing, 0, product)

    return formula


pointwise(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)(_product_with_log(0.0, named("Log")))
pointwise(aten.special_xlog1py)(_product_with_log(-1.0, log1p))
