"""Operators of ai.onnx as torch computes them, for the derivatives of rows whose oracle is not torch itself.

Attributes of ONNX models are float32, which is why numbers go through f32().
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional


def f32(value: float) -> float:
    return float(np.float32(value))


def clip(x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = (None if bound is None else bound.reshape(()) for bound in (low, high))
    return x if low is None and high is None else torch.clamp(x, low, high)


def elu(x: Any, alpha: float = 1.0, gamma: float = 1.0, inner: float = 1.0) -> Any:
    return torch.where(x > 0, f32(gamma) * x, f32(gamma) * f32(alpha) * torch.expm1(x.clamp(max=0) / f32(inner)))


def selu(x: Any, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Any:
    return elu(x, alpha, gamma)


def hard_sigmoid(x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return torch.clamp(f32(alpha) * x + f32(beta), 0, 1)


def shrink(x: Any, lambd: float = 0.5, bias: float = 0.0) -> Any:
    return torch.where(x < -f32(lambd), x + f32(bias), torch.where(x > f32(lambd), x - f32(bias), 0.0))


def running(function: Callable[..., Any], start: float) -> Callable[..., Any]:
    def apply(x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> Any:
        a = int(axis) % max(1, x.ndim)
        x = x.flip(a) if reverse else x
        if exclusive:
            x = torch.cat([torch.full_like(x.narrow(a, 0, min(1, x.shape[a])), start), x], a).narrow(a, 0, x.shape[a])
        y = function(x, a)
        return y.flip(a) if reverse else y

    return apply


def reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        given = [] if axes is None else [int(a) for a in axes]
        if not given and noop_with_empty_axes:
            return function(x.unsqueeze(0), [0], False)
        return function(x, given or list(range(x.ndim)), bool(keepdims)) if x.ndim else function(x[None], [0], False)

    return apply


def product(x: Any, dims: Sequence[int], keep: bool) -> Any:
    dims = sorted(d % x.ndim for d in dims)
    for d in dims:
        x = torch.prod(x, d, keepdim=True)
    return x if keep else x.squeeze(tuple(dims))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Neg": torch.neg,
    "Abs": torch.abs,
    "Reciprocal": torch.reciprocal,
    "Sum": lambda *x: sum(x[1:], x[0]),
    "Mean": lambda *x: sum(x[1:], x[0]) / len(x),
    "Max": lambda *x: functools.reduce(torch.maximum, x),
    "Min": lambda *x: functools.reduce(torch.minimum, x),
    "Mod": lambda a, b, fmod=0: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "Where": torch.where,
    "Identity": lambda x: x * 1,
    "Sqrt": torch.sqrt,
    "Exp": torch.exp,
    "Log": torch.log,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Tan": torch.tan,
    "Asin": torch.asin,
    "Acos": torch.acos,
    "Atan": torch.atan,
    "Sinh": torch.sinh,
    "Cosh": torch.cosh,
    "Tanh": torch.tanh,
    "Asinh": torch.asinh,
    "Acosh": torch.acosh,
    "Atanh": torch.atanh,
    "Clip": clip,
    "Relu": torch.relu,
    "LeakyRelu": lambda x, alpha=0.01: functional.leaky_relu(x, f32(alpha)),
    "PRelu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "ThresholdedRelu": lambda x, alpha=1.0: functional.threshold(x, f32(alpha), 0.0),
    "Sigmoid": torch.sigmoid,
    "Elu": elu,
    "Selu": selu,
    "Celu": lambda x, alpha=1.0: elu(x, alpha, inner=alpha),
    "HardSigmoid": hard_sigmoid,
    "Shrink": shrink,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "LogSoftmax": lambda x, axis=-1: torch.log_softmax(x, axis),
    "CumSum": running(torch.cumsum, 0.0),
    "CumProd": running(torch.cumprod, 1.0),
    "ReduceSum": reduced(torch.sum),
    "ReduceMean": reduced(torch.mean),
    "ReduceMax": reduced(torch.amax),
    "ReduceMin": reduced(torch.amin),
    "ReduceProd": reduced(product),
    "ReduceL1": reduced(lambda x, d, k: x.abs().sum(d, k)),
    "ReduceL2": reduced(lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k)),
    "ReduceSumSquare": reduced(lambda x, d, k: x.square().sum(d, k)),
    "ReduceLogSum": reduced(lambda x, d, k: x.sum(d, k).log()),
    "ReduceLogSumExp": reduced(torch.logsumexp),
}
