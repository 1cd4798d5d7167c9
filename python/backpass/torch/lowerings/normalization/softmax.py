"""Softmax and its logarithm."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import axis_of, named_gradient, refuse_complex, result_type

aten = torch.ops.aten


def _normalised(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, dim: int, *_: Any, **__: Any) -> Value:
        refuse_complex(x)
        x = b.cast(x, result_type(node))
        if x.rank == 0:
            return common.squeeze(b, b.op(op, common.unsqueeze(b, x, 0), axis=0), 0)
        return b.op(op, x, axis=axis_of(dim, x.rank))

    return lower


lowers(aten.softmax.int, aten._softmax.default)(_normalised("Softmax"))
lowers(aten.log_softmax.int, aten._log_softmax.default)(_normalised("LogSoftmax"))


@lowers(aten._safe_softmax.default)
def safe_softmax(b: GraphBuilder, node: fx.Node, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    """Rows that are all minus infinity become zeros."""
    return safe(b, b.cast(x, result_type(node)), axis_of(dim, x.rank))


def safe(b: GraphBuilder, x: Value, axis: int) -> Value:
    """Softmax along an axis, 0 where a whole row is minus infinity."""
    largest = b.op("ReduceMax", b.stop_gradient(x), b.constant([axis]), keepdims=1)
    dead = b.op("Equal", largest, -math.inf)
    shares = b.op("Softmax", b.op("Where", dead, 0, x, shape=x.shape), axis=axis)
    return b.op("Where", dead, 0, shares, shape=x.shape)


def _gradient(op: str) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, dy: Value, y: Value, dim: int, *_: Any) -> Value:
        """A 0-D tensor counts as a row of one."""
        shape = b.shape_of(dy) or (1,)
        dy, y = common.reshape(b, dy, shape), common.reshape(b, y, shape)
        dx = b.like(named_gradient(b, op, dy, y, axis=axis_of(dim, len(shape))), dy)
        return b.cast(common.reshape(b, dx, common.meta(node).shape), result_type(node))

    return lower


lowers(aten._softmax_backward_data.default)(_gradient("SoftmaxGrad_13"))
lowers(aten._log_softmax_backward_data.default)(_gradient("LogSoftmaxGrad_13"))
