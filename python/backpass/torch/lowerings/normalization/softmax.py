"""Softmax and its logarithm."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import axis_of, named_gradient, refuse_complex, result_type

aten = torch.ops.aten


def normalised(b: GraphBuilder, node: fx.Node, op: str, x: Value, axis: int) -> Value:
    refuse_complex(x)
    dtype = result_type(node)
    x = b.cast(x, dtype)
    if x.rank == 0:
        return common.squeeze(b, b.op(op, common.unsqueeze(b, x, 0), axis=0, dtype=dtype, shape=(1,)), 0)
    return b.op(op, x, axis=axis_of(axis, x.rank), dtype=dtype, shape=x.shape)


@lowers(aten.softmax.int, aten._softmax.default)
def softmax(b: GraphBuilder, node: fx.Node, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    return normalised(b, node, "Softmax", x, dim)


@lowers(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(b: GraphBuilder, node: fx.Node, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    return normalised(b, node, "LogSoftmax", x, dim)


@lowers(aten._safe_softmax.default)
def safe_softmax(b: GraphBuilder, node: fx.Node, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    """Rows that are all minus infinity become zeros."""
    return safe(b, b.cast(x, result_type(node)), axis_of(dim, x.rank))


def safe(b: GraphBuilder, x: Value, axis: int) -> Value:
    """Softmax along an axis, 0 where a whole row is minus infinity."""
    dtype, zero = b.dtype_of(x), b.constant(0, x.dtype)
    largest = b.op("ReduceMax", b.stop_gradient(x), b.constant([axis], torch.int64), keepdims=1)
    dead = b.op("Equal", largest, b.constant(-math.inf, dtype))
    shares = b.op("Softmax", b.op("Where", dead, zero, x), axis=axis, dtype=dtype, shape=x.shape)
    return b.op("Where", dead, zero, shares, dtype=dtype, shape=x.shape)


@lowers(aten._softmax_backward_data.default)
def softmax_backward(b: GraphBuilder, node: fx.Node, dy: Value, y: Value, dim: int, *_: Any) -> Value:
    return gradient_along(b, node, "SoftmaxGrad_13", dy, y, dim)


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: GraphBuilder, node: fx.Node, dy: Value, y: Value, dim: int, *_: Any) -> Value:
    return gradient_along(b, node, "LogSoftmaxGrad_13", dy, y, dim)


def gradient_along(b: GraphBuilder, node: fx.Node, op: str, dy: Value, y: Value, dim: int) -> Value:
    """A 0-D tensor counts as a row of one."""
    shape = b.shape_of(dy) or (1,)
    dy, y = common.reshape(b, dy, shape), common.reshape(b, y, shape)
    dx = b.like(named_gradient(b, op, dy, y, axis=axis_of(dim, len(shape))), dy)
    return b.cast(common.reshape(b, dx, common.meta(node).shape), result_type(node))
