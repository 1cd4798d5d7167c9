"""Tensors made from sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import SYMBOLIC, axis_of, filled, meta, refuse_complex, result_type, unsqueeze
from backpass.torch.symbols import dims

aten = torch.ops.aten

STORED = 1 << 14  # elements up to which a counted tensor is written down


def _same_number(b: GraphBuilder, node: fx.Node, value: Scalar) -> Value:
    refuse_complex(value, meta(node))
    return filled(b, dims(meta(node).shape), value, result_type(node))


@lowers(aten.full.default)
def full(b: GraphBuilder, node: fx.Node, size: Sequence[Dim], value: Scalar, **_: Any) -> Value:
    return _same_number(b, node, value)


@lowers(aten.full_like.default)
def full_like(b: GraphBuilder, node: fx.Node, x: Value, value: Scalar, **_: Any) -> Value:
    return _same_number(b, node, value)


@lowers(aten.new_full.default)
def new_full(b: GraphBuilder, node: fx.Node, x: Value, size: Sequence[Dim], value: Scalar, **_: Any) -> Value:
    return _same_number(b, node, value)


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


@lowers(aten.arange.default)
def arange(b: GraphBuilder, node: fx.Node, end: Scalar, **_: Any) -> Value:
    return counted(b, node, 0, end, 1)


@lowers(aten.arange.start, aten.arange.start_step)
def arange_start(b: GraphBuilder, node: fx.Node, start: Scalar, end: Scalar, step: Scalar = 1, **_: Any) -> Value:
    return counted(b, node, start, end, step)


def counted(b: GraphBuilder, node: fx.Node, start: Any, end: Any, step: Any) -> Value:
    dtype = result_type(node)
    (extent,) = dims(meta(node).shape)
    if not any(isinstance(v, SYMBOLIC) for v in (start, end, step)) and isinstance(extent, int) and extent <= STORED:
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        with unset_fake_temporarily():
            return b.constant(torch.arange(start, end, step, dtype=dtype), hint="arange")
    if all(isinstance(v, int | torch.SymInt) for v in (start, end, step)):
        whole = b.op("Range", b.size(start), b.size(end), b.size(step), dtype=torch.int64, shape=(extent,))
        return b.cast(whole, dtype)
    # counted in whole numbers: the number of elements is torch's, whatever the rounding
    place = b.op("Range", b.size(0), b.size(extent), b.size(1), dtype=torch.int64, shape=(extent,))
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    moved = b.op("Mul", b.cast(place, wide), b.scalar(step, wide))
    return b.cast(b.op("Add", moved, b.scalar(start, wide), dtype=wide, shape=(extent,)), dtype)


@lowers(aten.eye.default, aten.eye.m)
def eye(b: GraphBuilder, node: fx.Node, *_: Any, **__: Any) -> Value:
    dtype = result_type(node)
    plain = dtype if dtype != torch.bool else torch.float32
    return b.cast(b.op("EyeLike", filled(b, meta(node).shape, 0, plain), dtype=plain), dtype)


@lowers(aten.tril.default)
def tril(b: GraphBuilder, node: fx.Node, x: Value, diagonal: int = 0) -> Value:
    return b.op("Trilu", x, b.size(diagonal), upper=0, dtype=x.dtype)


@lowers(aten.triu.default)
def triu(b: GraphBuilder, node: fx.Node, x: Value, diagonal: int = 0) -> Value:
    return b.op("Trilu", x, b.size(diagonal), upper=1, dtype=x.dtype)


@lowers(aten.one_hot.default)
def one_hot(b: GraphBuilder, node: fx.Node, x: Value, classes: int = -1) -> Value:
    if not isinstance(classes, int) or classes < 0:
        raise NoLoweringError("the number of classes depends on data")
    count = b.constant(torch.arange(classes), torch.int64)
    same = b.op("Equal", unsqueeze(b, x, axis_of(-1, x.rank + 1)), count, dtype=torch.bool)
    return b.cast(same, torch.int64)
