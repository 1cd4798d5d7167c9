"""Gradients of activations and of dropout, as AOT graphs hold them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import axis_of, refuse_complex, reshape, result_type

aten = torch.ops.aten
MICROSOFT = "com.microsoft"


def _gradient(b: GraphBuilder, op: str, dy: Value, other: Value, **attributes: Any) -> Value:
    refuse_complex(dy, other)
    dtype = b.dtype_of(dy)
    result: Value = b.op(op, dy, b.cast(other, dtype), domain=MICROSOFT, dtype=dtype, **attributes)
    return result


@lowers(aten.gelu_backward.default)
def gelu_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, approximate: str = "none") -> Value:
    return _gradient(b, "FastGeluGrad" if approximate == "tanh" else "GeluGrad", dy, x)


@lowers(aten.silu_backward.default)
def silu_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value) -> Value:
    return _gradient(b, "QuickGeluGrad", dy, x, alpha=1.0)


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(b: GraphBuilder, node: fx.Node, dy: Value, y: Value) -> Value:
    return _gradient(b, "SigmoidGrad", dy, y)


@lowers(aten.tanh_backward.default)
def tanh_backward(b: GraphBuilder, node: fx.Node, dy: Value, y: Value) -> Value:
    return _gradient(b, "TanhGrad", dy, y)


@lowers(aten.threshold_backward.default)
def threshold_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, threshold: Scalar) -> Value:
    dtype = b.dtype_of(dy)
    if threshold == 0 and dtype.is_floating_point:
        return _gradient(b, "ReluGrad", dy, x)
    below = b.op("LessOrEqual", x, b.scalar(threshold, b.dtype_of(x)))
    result: Value = b.op("Where", below, b.constant(0, dtype), dy, dtype=dtype)
    return result


@lowers(aten._softmax_backward_data.default)
def softmax_backward(b: GraphBuilder, node: fx.Node, dy: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    return _along(b, node, "SoftmaxGrad_13", dy, y, dim)


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, y: Value, dim: int, input_dtype: torch.dtype
) -> Value:
    return _along(b, node, "LogSoftmaxGrad_13", dy, y, dim)


def _along(b: GraphBuilder, node: fx.Node, op: str, dy: Value, y: Value, dim: int) -> Value:
    """A 0-D tensor counts as a row of one."""
    shape = b.shape_of(dy)
    if not shape:
        dy, y = reshape(b, dy, (1,)), reshape(b, y, (1,))
    dx = _gradient(b, op, dy, y, axis=axis_of(dim, len(shape)))
    return b.cast(dx if shape else reshape(b, Value(dx, dy.dtype, (1,)), ()), result_type(node))


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(b: GraphBuilder, node: fx.Node, dy: Value, mask: Value, scale: Scalar) -> Value:
    dtype = b.dtype_of(dy)
    kept = b.op("Mul", dy, b.scalar(scale, dtype))
    result: Value = b.op("Where", b.cast(mask, torch.bool), kept, b.constant(0, dtype), dtype=dtype)
    return result
