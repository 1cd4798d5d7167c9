"""Functions of one tensor, element by element."""

from __future__ import annotations

import math

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings.common import FLOATS, refuse_complex, result_type
from backpass.torch.lowerings.pointwise.arithmetic import truncated

aten = torch.ops.aten


def _same_name(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
        refuse_complex(x)
        dtype = result_type(node)
        return b.op(op, b.cast(x, dtype), dtype=dtype)

    return lower


for _target, _op in {
    aten.exp: "Exp",
    aten.log: "Log",
    aten.sqrt: "Sqrt",
    aten.sin: "Sin",
    aten.cos: "Cos",
    aten.tan: "Tan",
    aten.asin: "Asin",
    aten.acos: "Acos",
    aten.atan: "Atan",
    aten.sinh: "Sinh",
    aten.cosh: "Cosh",
    aten.tanh: "Tanh",
    aten.asinh: "Asinh",
    aten.acosh: "Acosh",
    aten.atanh: "Atanh",
    aten.erf: "Erf",
    aten.sigmoid: "Sigmoid",
    aten.reciprocal: "Reciprocal",
}.items():
    lowers(_target.default)(_same_name(_op))


@lowers(aten.neg.default)
def negative(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    refuse_complex(x)
    if not b.dtype_of(x).is_signed:  # ONNX negates what has a sign
        return b.op("Sub", b.constant(0, x.dtype), x, dtype=x.dtype)
    return b.op("Neg", x, dtype=x.dtype)


@lowers(aten.abs.default)
def absolute(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    refuse_complex(x)
    if x.dtype == torch.bool:
        return x
    return b.op("Abs", x, dtype=x.dtype)


@lowers(aten.rsqrt.default)
def rsqrt(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    refuse_complex(x)
    dtype = result_type(node)
    return b.op("Reciprocal", b.op("Sqrt", b.cast(x, dtype)), dtype=dtype)


def _rounding(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
        if x.dtype not in FLOATS:
            return x
        return b.op(op, x, dtype=x.dtype)

    return lower


for _target, _op in {aten.floor: "Floor", aten.ceil: "Ceil", aten.round: "Round"}.items():
    lowers(_target.default)(_rounding(_op))


@lowers(aten.trunc.default, aten.fix.default)
def trunc(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return truncated(b, x) if x.dtype in FLOATS else x


@lowers(aten.frac.default)
def frac(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("Sub", x, truncated(b, x), dtype=x.dtype)


@lowers(aten.sign.default, aten.sgn.default)
def sign(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    refuse_complex(x)
    if x.dtype == torch.bool:
        return x
    return b.op("Sign", x, dtype=x.dtype)


@lowers(aten.square.default)
def square(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    refuse_complex(x)
    dtype = result_type(node)
    x = b.cast(x, dtype)
    return b.op("Mul", x, x, dtype=dtype)


def _logarithm(base: float) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
        refuse_complex(x)
        dtype = result_type(node)
        factor = b.constant(1 / math.log(base), dtype)
        return b.op("Mul", b.op("Log", b.cast(x, dtype)), factor, dtype=dtype)

    return lower


lowers(aten.log2.default)(_logarithm(2))
lowers(aten.log10.default)(_logarithm(10))


@lowers(aten.exp2.default)
def exp2(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    dtype = result_type(node)
    return b.op("Exp", b.op("Mul", b.cast(x, dtype), b.constant(math.log(2), dtype)), dtype=dtype)


def _near_zero(b: GraphBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| < 1, x where that holds (else 0), x where it does not (else 1)."""
    one = b.constant(1, x.dtype)
    near = b.op("Less", b.op("Abs", x), one)
    return near, b.op("Where", near, x, b.constant(0, x.dtype)), b.op("Where", near, one, x)


@lowers(aten.log1p.default)
def log1p(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    """2 atanh(x / (x + 2)) near 0, where 1 + x would lose the digits of x."""
    refuse_complex(x)
    dtype = result_type(node)
    near, small, large = _near_zero(b, b.cast(x, dtype))
    ratio = b.op("Div", small, b.op("Add", small, b.constant(2, dtype)))
    fine = b.op("Mul", b.op("Atanh", ratio), b.constant(2, dtype))
    return b.op("Where", near, fine, b.op("Log", b.op("Add", large, b.constant(1, dtype))), dtype=dtype)


@lowers(aten.expm1.default)
def expm1(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    """2 t / (1 - t) with t = tanh(x / 2) near 0, where e^x - 1 would lose the digits of x."""
    refuse_complex(x)
    dtype = result_type(node)
    near, small, large = _near_zero(b, b.cast(x, dtype))
    one, two = b.constant(1, dtype), b.constant(2, dtype)
    half = b.op("Tanh", b.op("Div", small, two))
    fine = b.op("Div", b.op("Mul", half, two), b.op("Sub", one, half))
    return b.op("Where", near, fine, b.op("Sub", b.op("Exp", large), one), dtype=dtype)


@lowers(aten.isnan.default)
def isnan(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return _float_test(b, "IsNaN", x)


@lowers(aten.isinf.default)
def isinf(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return _float_test(b, "IsInf", x)


def _float_test(b: GraphBuilder, op: str, x: Value) -> Value:
    refuse_complex(x)
    if x.dtype not in FLOATS:
        x = b.cast(x, torch.float32)
    elif x.dtype != torch.float64:
        x = b.cast(x, torch.float32)  # IsInf has no 16-bit floats before opset 20
    return b.op(op, x, dtype=torch.bool)


@lowers(aten.round.decimals)
def round_decimals(b: GraphBuilder, node: fx.Node, x: Value, *, decimals: int = 0) -> Value:
    dtype = b.dtype_of(x)
    if dtype not in FLOATS:
        raise NoLoweringError("integers")
    if decimals == 0:
        return b.op("Round", x, dtype=dtype)
    factor = b.constant(10.0 ** abs(decimals), dtype)
    first, second = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return b.op(second, b.op("Round", b.op(first, x, factor)), factor, dtype=dtype)
