"""Tensors made from sizes and numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings.common import counted, filled, meta, refuse_complex, result_type, unsqueeze
from backpass.torch.lowerings.indexing.gather import slices_at
from backpass.torch.symbols import Symbolic, dims

aten = torch.ops.aten

STORED = 1 << 14  # elements up to which a counted tensor is written down


def _same_number(b: GraphBuilder, node: fx.Node, value: Scalar) -> Value:
    refuse_complex(value, meta(node))
    return filled(b, dims(meta(node).shape), value, result_type(node))


@lowers(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(b: GraphBuilder, node: fx.Node, *given: Any, **_: Any) -> Value:
    return _same_number(b, node, given[-1])


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten._efficientzerotensor.default)
@lowers(aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_permuted.default)
@lowers(aten.new_empty_strided.default, aten.empty_strided.default)
def zeros(b: GraphBuilder, node: fx.Node, *_: Any, **__: Any) -> Value:
    return _same_number(b, node, 0)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: GraphBuilder, node: fx.Node, *_: Any, **__: Any) -> Value:
    return _same_number(b, node, 1)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(b: GraphBuilder, node: fx.Node, value: Scalar, **_: Any) -> Value:
    refuse_complex(value)
    return b.scalar(value, result_type(node))


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(b: GraphBuilder, node: fx.Node, *given: Any, **_: Any) -> Value:
    start, end, step = (0, *given, 1) if len(given) == 1 else (*given, 1)[:3]
    dtype = result_type(node)
    (extent,) = dims(meta(node).shape)
    if not any(isinstance(v, Symbolic) for v in (start, end, step)) and isinstance(extent, int) and extent <= STORED:
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        with unset_fake_temporarily():
            return b.constant(torch.arange(start, end, step, dtype=dtype), hint="arange")
    if all(isinstance(v, int | torch.SymInt) for v in (start, end, step)):
        return b.cast(b.op("Range", b.size(start), b.size(end), b.size(step)), dtype)
    # counted in whole numbers: the number of elements is torch's, whatever the rounding
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    moved = b.op("Mul", b.cast(counted(b, extent), wide), step)
    return b.cast(b.op("Add", moved, start), dtype)


@lowers(aten.eye.default, aten.eye.m)
def eye(b: GraphBuilder, node: fx.Node, *_: Any, **__: Any) -> Value:
    dtype = result_type(node)
    plain = dtype if dtype != torch.bool else torch.float32
    return b.cast(b.op("EyeLike", filled(b, meta(node).shape, 0, plain)), dtype)


def _triangle(upper: int) -> Lowering:
    return lambda b, node, x, diagonal=0: b.op("Trilu", x, b.size(diagonal), upper=upper)


lowers(aten.tril.default)(_triangle(0))
lowers(aten.triu.default)(_triangle(1))


@lowers(aten.one_hot.default)
def one_hot(b: GraphBuilder, node: fx.Node, x: Value, classes: int = -1) -> Value:
    if not isinstance(classes, int) or classes < 0:
        raise NoLoweringError("the number of classes depends on data")
    numbers = b.constant(torch.arange(classes))
    found = slices_at(b, numbers, x, 0)  # the same numbers, or an error that says which is none of the classes
    return b.cast(b.op("Equal", unsqueeze(b, found, x.rank), numbers), torch.int64)
