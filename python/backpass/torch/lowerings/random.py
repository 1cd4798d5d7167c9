"""Random numbers by the engine's generator: other draws than torch's, of the same distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
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
    return Value(b.op(f"{op}Like", like, outputs=None, **settings), dtype, shape)


def _fixed(b: GraphBuilder, op: str, shape: Sequence[Dim], dtype: torch.dtype, settings: dict[str, float]) -> Value:
    (name,) = b.op(op, outputs=1)
    node = b.nodes[-1]
    from onnx import helper

    node.attribute.append(helper.make_attribute("shape", [int(d) for d in shape], attr_type=7))
    node.attribute.append(helper.make_attribute("dtype", ONNX_TYPES[dtype]))
    node.attribute.extend(helper.make_attribute(key, value) for key, value in settings.items())
    return Value(name, dtype, shape)


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


def _whole(b: GraphBuilder, node: fx.Node, low: Scalar, high: Scalar) -> Value:
    """Uniform among low, ..., high - 1."""
    dtype = torch.float64
    width = b.op("Sub", b.scalar(high, dtype), b.scalar(low, dtype))
    share = drawn(b, "RandomUniform", meta(node).shape, dtype)
    places = b.op("Floor", b.op("Mul", share, width))
    return b.cast(Value(b.op("Add", places, b.scalar(low, dtype)), dtype), result_type(node))


@lowers(aten.randint.default)
def randint(b: GraphBuilder, node: fx.Node, high: Scalar, size: Any, **_: Any) -> Value:
    return _whole(b, node, 0, high)


@lowers(aten.randint.low)
def randint_low(b: GraphBuilder, node: fx.Node, low: Scalar, high: Scalar, size: Any, **_: Any) -> Value:
    return _whole(b, node, low, high)


@lowers(aten.randint_like.default)
def randint_like(b: GraphBuilder, node: fx.Node, x: Value, high: Scalar, **_: Any) -> Value:
    return _whole(b, node, 0, high)


@lowers(aten.randint_like.low_dtype)
def randint_like_low(b: GraphBuilder, node: fx.Node, x: Value, low: Scalar, high: Scalar, **_: Any) -> Value:
    return _whole(b, node, low, high)


@lowers(aten.bernoulli.default)
def bernoulli(b: GraphBuilder, node: fx.Node, x: Value, **_: Any) -> Value:
    share = drawn(b, "RandomUniform", meta(node).shape, b.dtype_of(x))
    return b.cast(b.op("Less", share, x, dtype=torch.bool), result_type(node))


@lowers(aten.bernoulli.p)
def bernoulli_p(b: GraphBuilder, node: fx.Node, x: Value, p: Scalar, **_: Any) -> Value:
    share = drawn(b, "RandomUniform", meta(node).shape, torch.float32)
    return b.cast(b.op("Less", share, b.scalar(p, torch.float32), dtype=torch.bool), result_type(node))


def dropped(b: GraphBuilder, x: Value, p: float) -> tuple[Value, Value | None]:
    """Dropout in training, and the mask of what was kept unless that is all or nothing."""
    shape = b.shape_of(x)
    if p == 0:
        return x, None
    if p == 1:
        return b.like(b.op("Mul", x, b.constant(0, x.dtype)), x), None
    y, mask = b.op("Dropout", x, b.constant(float(p), torch.float32), b.constant(True, torch.bool), outputs=2)
    return b.like(y, x), Value(mask, torch.bool, shape)


@lowers(aten.native_dropout.default)
def native_dropout(b: GraphBuilder, node: fx.Node, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    rate = p if train is None or train else 0.0
    y, mask = dropped(b, x, rate)
    return y, common.filled(b, b.shape_of(x), rate == 0, torch.bool) if mask is None else mask


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(b: GraphBuilder, node: fx.Node, dy: Value, mask: Value, scale: Scalar) -> Value | None:
    dtype, kept = b.dtype_of(dy), b.cast(mask, torch.bool)

    def scaled(x: Value) -> Value:
        return b.op("Where", kept, b.op("Mul", x, b.scalar(scale, dtype)), b.constant(0, dtype))

    return common.gradients(b, dy, [dy], scaled)[0]  # linear: at which x does not matter


@lowers(aten.dropout.default)
def dropout(b: GraphBuilder, node: fx.Node, x: Value, p: float, train: bool) -> Value:
    return dropped(b, x, p)[0] if train else x
