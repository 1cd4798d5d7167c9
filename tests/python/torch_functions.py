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


def gemm(a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0) -> Any:  # noqa: N803
    y = f32(alpha) * ((a.mT if transA else a) @ (b.mT if transB else b))
    return y if c is None else y + f32(beta) * c


def reshape(x: Any, shape: Any, allowzero: int = 0) -> Any:
    wanted = [int(d) for d in shape]
    return x.reshape([x.shape[i] if d == 0 and not allowzero else d for i, d in enumerate(wanted)])


def flatten(x: Any, axis: int = 1) -> Any:
    rows = int(np.prod(x.shape[:axis]))
    return x.reshape(rows, x.numel() // rows if rows else int(np.prod(x.shape[axis:])))


def squeeze(x: Any, axes: Any = None) -> Any:
    return x.squeeze() if axes is None else x.squeeze(tuple(int(a) for a in axes))


def unsqueeze(x: Any, axes: Any) -> Any:
    rank = x.ndim + len(axes)
    for axis in sorted(int(a) % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def split(x: Any, parts: Any = None, axis: int = 0, split: Any = None, num_outputs: int = 3) -> Any:
    """Older opsets take the number of parts from the node, which has three outputs in op_rows/."""
    given = split if parts is None else parts
    if given is None:
        most = -(-x.shape[axis] // num_outputs)
        given = [most] * (num_outputs - 1) + [x.shape[axis] - most * (num_outputs - 1)]
    return torch.split(x, [int(n) for n in given], axis)


def expand(x: Any, shape: Any) -> Any:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(int(d) for d in shape)))


def gather(x: Any, indices: Any, axis: int = 0) -> Any:
    flat = torch.where(indices < 0, indices + x.shape[axis], indices).reshape(-1).to(torch.int64)
    axis %= x.ndim
    return x.index_select(axis, flat).reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def gather_elements(x: Any, indices: Any, axis: int = 0) -> Any:
    at = indices.to(torch.int64)
    return torch.gather(x, axis, torch.where(at < 0, at + x.shape[axis], at))


def trilu(x: Any, k: Any = None, upper: int = 1) -> Any:
    return (torch.triu if upper else torch.tril)(x, 0 if k is None else int(k))


def depth_to_space(x: Any, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "CRD":
        y = x.reshape(n, depth, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        y = x.reshape(n, b, b, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(n, depth, h * b, w * b)


def over_space(x: Any) -> list[int]:
    return list(range(2, x.ndim))


def standardized(x: Any, axes: Sequence[int] = (0, 2, 3)) -> Any:
    centered = x - x.mean(tuple(axes), True)
    return centered / ((x.square().mean(tuple(axes), True) - x.mean(tuple(axes), True).square()).sqrt() + 1e-9)


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
    "MatMul": torch.matmul,
    "Gemm": gemm,
    "Einsum": lambda *x, equation: torch.einsum(equation, *x),
    "Det": torch.linalg.det,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": lambda x, perm=None: x.permute(perm or list(range(x.ndim))[::-1]),
    "Concat": lambda *x, axis: torch.cat(x, axis),
    "Split": split,
    "Expand": expand,
    "Tile": lambda x, repeats: x.repeat([int(n) for n in repeats]),
    "Gather": gather,
    "GatherElements": gather_elements,
    "Trilu": trilu,
    "DepthToSpace": depth_to_space,
    "GlobalAveragePool": lambda x: x.mean(over_space(x), True),
    "GlobalMaxPool": lambda x: x.amax(over_space(x), True),
    "MeanVarianceNormalization": standardized,
}
