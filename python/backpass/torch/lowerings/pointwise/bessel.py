"""Bessel functions by the polynomials of Abramowitz and Stegun, 9.4 and 9.8: good for float32."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.lowerings.pointwise.special import polynomial, single, values_of

aten = torch.ops.aten

_I0_NEAR = (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813)
_I0_FAR = (
    0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537, -0.01647633, 0.00392377,
)  # fmt: skip
_I1_NEAR = (0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411)
_I1_FAR = (
    0.39894228, -0.03988024, -0.00362018, 0.00163801, -0.01031555, 0.02282967, -0.02895312, 0.01787654, -0.00420059,
)  # fmt: skip
_K0_NEAR = (-0.57721566, 0.42278420, 0.23069756, 0.03488590, 0.00262698, 0.00010750, 0.00000740)
_K0_FAR = (1.25331414, -0.07832358, 0.02189568, -0.01062446, 0.00587872, -0.00251540, 0.00053208)
_K1_NEAR = (1.0, 0.15443144, -0.67278579, -0.18156897, -0.01919402, -0.00110404, -0.00004686)
_K1_FAR = (1.25331414, 0.23498619, -0.03655620, 0.01504268, -0.00780353, 0.00325614, -0.00068245)
_J0_NEAR = (1.0, -2.2499997, 1.2656208, -0.3163866, 0.0444479, -0.0039444, 0.0002100)
_J1_NEAR = (0.5, -0.56249985, 0.21093573, -0.03954289, 0.00443319, -0.00031761, 0.00001109)
_Y0_NEAR = (0.36746691, 0.60559366, -0.74350384, 0.25300117, -0.04261214, 0.00427916, -0.00024846)
_Y1_NEAR = (-0.6366198, 0.2212091, 2.1682709, -1.3164827, 0.3123951, -0.0400976, 0.0027873)
_SIZE_0 = (0.79788456, -0.00000077, -0.00552740, -0.00009512, 0.00137237, -0.00072805, 0.00014476)
_TURN_0 = (-0.78539816, -0.04166397, -0.00003954, 0.00262573, -0.00054125, -0.00029333, 0.00013558)
_SIZE_1 = (0.79788456, 0.00000156, 0.01659667, 0.00017105, -0.00249511, 0.00113653, -0.00020033)
_TURN_1 = (-2.35619449, 0.12499612, 0.00005650, -0.00637879, 0.00074348, 0.00079824, -0.00029166)


def _squared(b: GraphBuilder, x: Value, scale: float) -> Value:
    t = b.op("Mul", x, 1 / scale)
    return b.op("Mul", t, t)


def _decaying(b: GraphBuilder, x: Value, scale: float, coefficients: Sequence[float]) -> Value:
    return b.op("Div", polynomial(b, b.op("Div", scale, x), coefficients), b.op("Sqrt", x))


def _modified(b: GraphBuilder, x: Value, order: int, scaled: bool) -> Value:
    """I0 or I1, or what is left of it without exp(|x|)."""
    size = b.op("Abs", x)
    near = polynomial(b, _squared(b, x, 3.75), _I1_NEAR if order else _I0_NEAR)
    near = b.op("Mul", near, size) if order else near
    far_argument = b.op("Max", size, 3.75)
    far = _decaying(b, far_argument, 3.75, _I1_FAR if order else _I0_FAR)
    if scaled:
        near = b.op("Mul", near, b.op("Exp", b.op("Neg", size)))
    else:
        far = b.op("Mul", far, b.op("Exp", far_argument))
    result = b.op("Where", b.op("Less", size, 3.75), near, far)
    return b.op("Mul", result, b.op("Sign", x)) if order else result


def _second_kind(b: GraphBuilder, x: Value, order: int, scaled: bool) -> Value:
    """K0 or K1, or what is left of it without exp(-x)."""
    logarithm = b.op("Log", b.op("Mul", x, 0.5))
    series = polynomial(b, _squared(b, x, 2.0), _K1_NEAR if order else _K0_NEAR)
    product = b.op("Mul", logarithm, _modified(b, x, order, False))
    near = b.op("Add", product, b.op("Div", series, x)) if order else b.op("Sub", series, product)
    far_argument = b.op("Max", x, 2.0)
    far = _decaying(b, far_argument, 2.0, _K1_FAR if order else _K0_FAR)
    if scaled:
        near = b.op("Mul", near, b.op("Exp", x))
    else:
        far = b.op("Mul", far, b.op("Exp", b.op("Neg", far_argument)))
    result = b.op("Where", b.op("LessOrEqual", x, 2.0), near, far)
    return _right_half(b, x, result, math.inf)


def _right_half(b: GraphBuilder, x: Value, result: Value, at_zero: float) -> Value:
    inside = b.op("Where", b.op("Equal", x, 0.0), at_zero, result)
    return b.op("Where", b.op("Less", x, 0.0), math.nan, inside)


def _far(b: GraphBuilder, size: Value, order: int, wave: str) -> Value:
    argument = b.op("Max", size, 3.0)
    angle = b.op("Add", argument, polynomial(b, b.op("Div", 3.0, argument), _TURN_1 if order else _TURN_0))
    return b.op("Mul", _decaying(b, argument, 3.0, _SIZE_1 if order else _SIZE_0), b.op(wave, angle))


def _first(b: GraphBuilder, x: Value, order: int) -> Value:
    """J0 or J1."""
    size = b.op("Abs", x)
    near = polynomial(b, _squared(b, x, 3.0), _J1_NEAR if order else _J0_NEAR)
    near = b.op("Mul", near, size) if order else near
    result = b.op("Where", b.op("LessOrEqual", size, 3.0), near, _far(b, size, order, "Cos"))
    return b.op("Mul", result, b.op("Sign", x)) if order else result


def _second(b: GraphBuilder, x: Value, order: int) -> Value:
    """Y0 or Y1."""
    logarithm = b.op("Mul", b.op("Log", b.op("Mul", x, 0.5)), 2 / math.pi)
    series = polynomial(b, _squared(b, x, 3.0), _Y1_NEAR if order else _Y0_NEAR)
    series = b.op("Div", series, x) if order else series
    near = b.op("Add", b.op("Mul", logarithm, _first(b, x, order)), series)
    result = b.op("Where", b.op("LessOrEqual", x, 3.0), near, _far(b, x, order, "Sin"))
    return _right_half(b, x, result, -math.inf)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "special_modified_bessel_i{}": functools.partial(_modified, scaled=False),
    "special_i{}e": functools.partial(_modified, scaled=True),
    "special_modified_bessel_k{}": functools.partial(_second_kind, scaled=False),
    "special_scaled_modified_bessel_k{}": functools.partial(_second_kind, scaled=True),
    "special_bessel_j{}": _first,
    "special_bessel_y{}": _second,
}
_ALIASES = {"special_modified_bessel_i0": "i0", "special_modified_bessel_i1": "special_i1"}

for _name, _function in _FUNCTIONS.items():
    for _order in (0, 1):
        _full = _name.format(_order)
        for _target in {_full, _ALIASES.get(_full, _full)}:
            values_of(getattr(aten, _target).default)(single(functools.partial(_function, order=_order)))
