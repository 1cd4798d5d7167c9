"""Random numbers by the engine's generator: other draws than torch's, of the same distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch
from onnx import helper
from torch import fx

from backpass.torch.builder import ONNX_TYPES, Dim, GraphBuilder, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import meta, result_type
from backpass.torch.symbols import dims

aten = torch.ops.aten


def drawn(b: GraphBuilder, op: str, shape: Sequence[Dim], dtype: torch.dtype, **settings: Any) -> Value:
    """RandomUniform or RandomNormal of any shape."""
    shape = dims(shape)
    if all(isinstance(d, int) for d in shape):
        return _fixed(b, op, shape, dtype, settings)
    like = common.filled(b, shape, 0, dtype)
    return b.op(f"{op}Like", like, shape=shape, outputs=None, **settings)


def _fixed(b: GraphBuilder, op: str, shape: Sequence[Dim], dtype: torch.dtype, settings: dict[str, float]) -> Value:
    """The attributes `shape` and `dtype` are put in by hand: to the builder they describe the result."""
    made = b.op(op, dtype=dtype, shape=shape)
    extents = helper.make_attribute("shape", [int(d) for d in shape], attr_type=onnx.AttributeProto.INTS)
    attributes = {"dtype": ONNX_TYPES[dtype], **settings}
    b.nodes[-1].attribute.extend([extents, *(helper.make_attribute(*each) for each in attributes.items())])
    return made


@lowers(aten.rand.default, aten.rand_like.default)
def rand(b: GraphBuilder, node: fx.Node, *_: Any, **__: Any) -> Value:
    return drawn(b, "RandomUniform", meta(node).shape, result_type(node))


@lowers(aten.randn.default, aten.randn_like.default)
def randn(b: GraphBuilder, node: fx.Node, *_: Any, **__: Any) -> Value:
    return drawn(b, "RandomNormal", meta(node).shape, result_type(node))


@lowers(aten.uniform.default)
def uniform(b: GraphBuilder, node: fx.Node, x: Value, low: float = 0.0, high: float = 1.0, **_: Any) -> Value:
    return drawn(b, "RandomUniform", meta(node).shape, result_type(node), low=float(low), high=float(high))


@lowers(aten.normal_functional.default, aten.normal.float_float)
def normal(b: GraphBuilder, node: fx.Node, x: Any, mean: float = 0.0, std: float = 1.0, *_: Any, **__: Any) -> Value:
    if not isinstance(x, Value):
        mean, std = x, mean
    return drawn(b, "RandomNormal", meta(node).shape, result_type(node), mean=float(mean), scale=float(std))


@lowers(aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype)
def randint(b: GraphBuilder, node: fx.Node, *given: Any, **_: Any) -> Value:
    """Uniform among low, ..., high - 1; among the arguments there is also a tensor to be like, or a size."""
    *lowest, highest = (v for v in given if not isinstance(v, Value | Sequence))
    low, high = (b.scalar(v, torch.float64) for v in (lowest[0] if lowest else 0, highest))
    share = drawn(b, "RandomUniform", meta(node).shape, torch.float64)
    places = b.op("Floor", b.op("Mul", share, b.op("Sub", high, low)))
    return b.cast(b.op("Add", places, low), result_type(node))


@lowers(aten.bernoulli.default, aten.bernoulli.p)
def bernoulli(b: GraphBuilder, node: fx.Node, x: Value, p: Scalar | None = None, **_: Any) -> Value:
    share = drawn(b, "RandomUniform", meta(node).shape, b.dtype_of(x) if p is None else torch.float32)
    return b.cast(b.op("Less", share, x if p is None else p), result_type(node))


def dropped(b: GraphBuilder, x: Value, p: float) -> tuple[Value, Value | None]:
    """Dropout in training, and the mask of what was kept unless that is all or nothing."""
    if p == 0:
        return x, None
    if p == 1:
        return b.op("Mul", x, 0), None
    rate, training = b.constant(float(p), torch.float32), b.constant(True)
    y, mask = b.op("Dropout", x, rate, training, shape=x.shape, outputs=2)
    return y, Value(mask, torch.bool, x.shape)


@lowers(aten.native_dropout.default)
def native_dropout(b: GraphBuilder, node: fx.Node, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    rate = p if train is None or train else 0.0
    y, mask = dropped(b, x, rate)
    return y, common.filled(b, b.shape_of(x), rate == 0, torch.bool) if mask is None else mask


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(b: GraphBuilder, node: fx.Node, dy: Value, mask: Value, scale: Scalar) -> Value | None:
    kept = b.cast(mask, torch.bool)
    # linear: at which x does not matter
    return common.gradients(b, dy, [dy], lambda x: b.op("Where", kept, b.op("Mul", x, scale), 0))[0]


@lowers(aten.dropout.default)
def dropout(b: GraphBuilder, node: fx.Node, x: Value, p: float, train: bool) -> Value:
    return dropped(b, x, p)[0] if train else x
