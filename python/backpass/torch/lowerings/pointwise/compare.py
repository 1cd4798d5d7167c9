"""Comparisons, logic on bools and bits, choices between tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings.common import Operand, operand, pointwise, promoted, refuse_complex, result_type

aten = torch.ops.aten


def _comparison(op: str, negated: bool = False) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Operand, y: Operand) -> Value:
        refuse_complex(x, y)
        dtype = promoted(x, y)
        left, right = operand(b, x, dtype), operand(b, y, dtype)
        if dtype == torch.bool and op != "Equal":
            left, right = b.cast(left, torch.int32), b.cast(right, torch.int32)
        result = b.op(op, left, right)
        return b.op("Not", result) if negated else result

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
    return lambda b, node, *operands: b.op(op, *(as_bool(b, v) for v in operands))


for _op in ("And", "Or", "Xor", "Not"):
    lowers(f"aten::logical_{_op.lower()}")(_logical(_op))


def _bitwise(op: str) -> Callable[..., Value]:
    return lambda b, *operands: b.op(op if operands[0].dtype == torch.bool else f"Bitwise{op}", *operands)


pointwise(aten.bitwise_and, aten.__and__.Tensor, aten.__and__.Scalar)(_bitwise("And"))
pointwise(aten.bitwise_or, aten.__or__.Tensor, aten.__or__.Scalar)(_bitwise("Or"))
pointwise(aten.bitwise_xor, aten.__xor__.Tensor, aten.__xor__.Scalar)(_bitwise("Xor"))
pointwise(aten.bitwise_not)(_bitwise("Not"))


@lowers(aten.where.self, aten.where.Scalar, aten.where.ScalarSelf, aten.where.ScalarOther)
def where(b: GraphBuilder, node: fx.Node, condition: Value, x: Operand, y: Operand) -> Value:
    refuse_complex(x, y)
    dtype = result_type(node)
    return b.op("Where", as_bool(b, condition), operand(b, x, dtype), operand(b, y, dtype))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: GraphBuilder, node: fx.Node, x: Value, mask: Value, value: Operand) -> Value:
    return where(b, node, mask, value, x)
