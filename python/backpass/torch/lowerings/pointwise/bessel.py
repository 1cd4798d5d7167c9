"""Bessel functions by the polynomials of Abramowitz and Stegun, 9.4 and 9.8: good for float32."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from backpass.torch.builder import Value
from backpass.torch.lowerings.pointwise.special import Formula, single, values_of

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


def _squared(f: Formula, x: Value, scale: float) -> Value:
    t = f.op("Mul", x, 1 / scale)
    return f.op("Mul", t, t)


def _modified(f: Formula, x: Value, order: int, scaled: bool) -> Value:
    """I0 or I1, or what is left of it without exp(|x|)."""
    size = f.op("Abs", x)
    near = f.polynomial(_squared(f, x, 3.75), _I1_NEAR if order else _I0_NEAR)
    near = f.op("Mul", near, size) if order else near
    far_argument = f.op("Max", size, 3.75)
    far = f.polynomial(f.op("Div", 3.75, far_argument), _I1_FAR if order else _I0_FAR)
    far = f.op("Div", far, f.op("Sqrt", far_argument))
    if scaled:
        near = f.op("Mul", near, f.op("Exp", f.op("Neg", size)))
    else:
        far = f.op("Mul", far, f.op("Exp", far_argument))
    result = f.where(f.op("Less", size, 3.75), near, far)
    return f.op("Mul", result, f.op("Sign", x)) if order else result


def _second_kind(f: Formula, x: Value, order: int, scaled: bool) -> Value:
    """K0 or K1, or what is left of it without exp(-x)."""
    logarithm = f.op("Log", f.op("Mul", x, 0.5))
    series = f.polynomial(_squared(f, x, 2.0), _K1_NEAR if order else _K0_NEAR)
    product = f.op("Mul", logarithm, _modified(f, x, order, False))
    near = f.op("Add", product, f.op("Div", series, x)) if order else f.op("Sub", series, product)
    far_argument = f.op("Max", x, 2.0)
    far = f.polynomial(f.op("Div", 2.0, far_argument), _K1_FAR if order else _K0_FAR)
    far = f.op("Div", far, f.op("Sqrt", far_argument))
    if scaled:
        near = f.op("Mul", near, f.op("Exp", x))
    else:
        far = f.op("Mul", far, f.op("Exp", f.op("Neg", far_argument)))
    result = f.where(f.op("LessOrEqual", x, 2.0), near, far)
    return _right_half(f, x, result, math.inf)


def _right_half(f: Formula, x: Value, result: Value, at_zero: float) -> Value:
    inside = f.where(f.op("Equal", x, 0.0), at_zero, result)
    return f.where(f.op("Less", x, 0.0), math.nan, inside)


def _far(f: Formula, size: Value, order: int, wave: str) -> Value:
    argument = f.op("Max", size, 3.0)
    t = f.op("Div", 3.0, argument)
    height = f.op("Div", f.polynomial(t, _SIZE_1 if order else _SIZE_0), f.op("Sqrt", argument))
    angle = f.op("Add", argument, f.polynomial(t, _TURN_1 if order else _TURN_0))
    return f.op("Mul", height, f.op(wave, angle))


def _first(f: Formula, x: Value, order: int) -> Value:
    """J0 or J1."""
    size = f.op("Abs", x)
    near = f.polynomial(_squared(f, x, 3.0), _J1_NEAR if order else _J0_NEAR)
    near = f.op("Mul", near, size) if order else near
    result = f.where(f.op("LessOrEqual", size, 3.0), near, _far(f, size, order, "Cos"))
    return f.op("Mul", result, f.op("Sign", x)) if order else result


def _second(f: Formula, x: Value, order: int) -> Value:
    """Y0 or Y1."""
    logarithm = f.op("Mul", f.op("Log", f.op("Mul", x, 0.5)), 2 / math.pi)
    series = f.polynomial(_squared(f, x, 3.0), _Y1_NEAR if order else _Y0_NEAR)
    series = f.op("Div", series, x) if order else series
    near = f.op("Add", f.op("Mul", logarithm, _first(f, x, order)), series)
    result = f.where(f.op("LessOrEqual", x, 3.0), near, _far(f, x, order, "Sin"))
    return _right_half(f, x, result, -math.inf)


_FUNCTIONS: list[tuple[Callable[..., Value], dict[str, bool], Sequence[Sequence[Any]]]] = [
    (
        _modified,
        {"scaled": False},
        [(aten.i0, aten.special_modified_bessel_i0), (aten.special_i1, aten.special_modified_bessel_i1)],
    ),
    (_modified, {"scaled": True}, [(aten.special_i0e,), (aten.special_i1e,)]),
    (_second_kind, {"scaled": False}, [(aten.special_modified_bessel_k0,), (aten.special_modified_bessel_k1,)]),
    (
        _second_kind,
        {"scaled": True},
        [(aten.special_scaled_modified_bessel_k0,), (aten.special_scaled_modified_bessel_k1,)],
    ),
    (_first, {}, [(aten.special_bessel_j0,), (aten.special_bessel_j1,)]),
    (_second, {}, [(aten.special_bessel_y0,), (aten.special_bessel_y1,)]),
]

for _function, _settings, _orders in _FUNCTIONS:
    for _order, _targets in enumerate(_orders):
        for _target in _targets:
            values_of(_target.default)(single(functools.partial(_function, order=_order, **_settings)))
