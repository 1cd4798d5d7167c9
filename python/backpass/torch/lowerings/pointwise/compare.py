"""Comparisons, logic on bools and bits, choices between tensors."""

from __future__ import annotations

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings.common import Operand, operand, refuse_complex, result_type
from backpass.torch.lowerings.pointwise.arithmetic import promoted_pair

aten = torch.ops.aten


def _comparison(op: str, negated: bool = False) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
        left, right = promoted_pair(b, x, y)
        if left.dtype == torch.bool and op != "Equal":
            left, right = b.cast(left, torch.int32), b.cast(right, torch.int32)
        result = b.op(op, left, right, dtype=torch.bool)
        return b.op("Not", result, dtype=torch.bool) if negated else result

    return lower


lowers(aten.eq.Tensor, aten.eq.Scalar)(_comparison("Equal"))
lowers(aten.ne.Tensor, aten.ne.Scalar, aten.not_equal.Tensor, aten.not_equal.Scalar)(_comparison("Equal", negated=True))
lowers(aten.lt.Tensor, aten.lt.Scalar, aten.less.Tensor, aten.less.Scalar)(_comparison("Less"))
lowers(aten.le.Tensor, aten.le.Scalar)(_comparison("LessOrEqual"))
lowers(aten.gt.Tensor, aten.gt.Scalar, aten.greater.Tensor, aten.greater.Scalar)(_comparison("Greater"))
lowers(aten.ge.Tensor, aten.ge.Scalar)(_comparison("GreaterOrEqual"))


def as_bool(b: GraphBuilder, x: Operand) -> Value:
    refuse_complex(x)
    return operand(b, x, torch.bool)


def _logical(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
        return b.op(op, as_bool(b, x), as_bool(b, y), dtype=torch.bool)

    return lower


for _target, _op in {aten.logical_and: "And", aten.logical_or: "Or", aten.logical_xor: "Xor"}.items():
    lowers(_target.default)(_logical(_op))


@lowers(aten.logical_not.default)
def logical_not(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("Not", as_bool(b, x), dtype=torch.bool)


def _bitwise(name: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
        dtype = result_type(node)
        op = name if dtype == torch.bool else f"Bitwise{name}"
        return b.op(op, operand(b, x, dtype), operand(b, y, dtype), dtype=dtype)

    return lower


for _target, _op in {aten.bitwise_and: "And", aten.bitwise_or: "Or", aten.bitwise_xor: "Xor"}.items():
    lowers(_target.Tensor, _target.Scalar, _target.Scalar_Tensor)(_bitwise(_op))
for _target, _op in {aten.__and__: "And", aten.__or__: "Or", aten.__xor__: "Xor"}.items():
    lowers(_target.Tensor, _target.Scalar)(_bitwise(_op))


@lowers(aten.bitwise_not.default)
def bitwise_not(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    return b.op("Not" if x.dtype == torch.bool else "BitwiseNot", x, dtype=x.dtype)


@lowers(aten.where.self, aten.where.Scalar, aten.where.ScalarSelf, aten.where.ScalarOther)
def where(b: GraphBuilder, node: fx.Node, condition: Value, x: Operand, y: Operand) -> Value:
    refuse_complex(x, y)
    dtype = result_type(node)
    return b.op("Where", as_bool(b, condition), operand(b, x, dtype), operand(b, y, dtype), dtype=dtype)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: GraphBuilder, node: fx.Node, x: Value, mask: Value, value: Operand) -> Value:
    return where(b, node, mask, value, x)
