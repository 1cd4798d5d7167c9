"""Arithmetic of ORT's training graphs (domain com.microsoft): gradients of normalisation, finite checks, optimizers of
one tensor. Oracles in numpy and torch: onnxruntime's inference package has none of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from op_case import FLOATS, Row, case, const, data
from op_oracle import from_torch

MS = "com.microsoft"
RNG = np.random.default_rng(11)
IMAGE = RNG.standard_normal((4, 3, 5)).astype(np.float32)
STATISTICS = [IMAGE.mean((0, 2)), (1 / np.sqrt(IMAGE.var((0, 2)) + 1e-5)).astype(np.float32)]
CHANNEL = [(3,), (3,), (3,), data(3, low=0.5, high=2)]
EPSILON = float(np.float32(1e-5))


def batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, momentum: float, **_: Any) -> list[Any]:
    m, v = x.mean((0, 2)), x.var((0, 2))
    inverse = 1 / np.sqrt(v + EPSILON)
    y = (x - m[:, None]) * inverse[:, None] * scale[:, None] + bias[:, None]
    running = [old * momentum + new * (1 - momentum) for old, new in ((mean, m), (variance, v))]
    return [r.astype(np.float32) for r in (y, *running, m, inverse)]


def batch_norm_grad(dy: Any, x: Any, scale: Any, mean: Any, inverse: Any) -> list[Any]:
    x, scale = x.clone().requires_grad_(), scale.clone().requires_grad_()
    bias = torch.zeros_like(scale, requires_grad=True)
    y = torch.nn.functional.batch_norm(x, None, None, scale, bias, True, 0.1, EPSILON)
    return list(torch.autograd.grad(y, [x, scale, bias], dy))


def simplified_grad(dy: Any, x: Any, scale: Any, inverse: Any, axis: int = -1) -> list[Any]:
    x, scale = x.clone().requires_grad_(), scale.clone().requires_grad_()
    y = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + EPSILON) * scale
    return list(torch.autograd.grad(y, [x, scale], dy))


def invertible_grad(dy: Any, y: Any, scale: Any, bias: Any, inverse: Any, axis: int = -1) -> list[Any]:
    z, g = (y - bias) / scale, dy * scale
    dx = (g - g.mean(-1, keepdims=True) - z * (g * z).mean(-1, keepdims=True)) * inverse
    lead = tuple(range(dy.ndim - 1))
    return [r.astype(np.float32) for r in (dx, (dy * z).sum(lead), dy.sum(lead))]


def dropout_grad(dy: Any, mask: Any, ratio: Any = 0.5, training: Any = True) -> Any:
    return np.where(mask, dy / (1 - np.asarray(ratio)), 0).astype(dy.dtype) if training else dy


def clipped(items: list[Any], max_norm: float) -> list[Any]:
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in items))
    return [[(g * min(1, max_norm / (norm + 1e-6))).astype(np.float32) for g in items]]


def adam(rate: Any, step: Any, w: Any, g: Any, m: Any, v: Any, weight_decay_mode: int, **attrs: Any) -> list[Any]:
    t, lr, decay = int(step[0]), float(rate[0]), attrs["lambda"]
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    first, second = 1 - 0.9**t, 1 - 0.999**t
    if weight_decay_mode == 0:
        new = w - lr * (m / first / (np.sqrt(v / second) + 1e-6) + decay * w)
    else:
        new = (w - lr * np.sqrt(second) / first * m / (np.sqrt(v) + 1e-6)) * (1 - lr * decay)
    return [np.array([t + 1]), *[r.astype(np.float32) for r in (m, v, new, new - w)]]


X = RNG.standard_normal((3, 4, 6)).astype(np.float32)
INVERSE_ROOT = 1 / np.sqrt((X**2).mean(-1, keepdims=True) + EPSILON)
INVERSE_DEVIATION = 1 / np.sqrt(X.var(-1, keepdims=True) + EPSILON)
MASK = RNG.random((3, 5)) < 0.6
RATE, STEP = np.array([0.1], np.float32), np.array([3], np.int64)
ODD = np.array([[1, np.inf, -np.inf], [np.nan, 0, -2]], np.float32)

ROWS = [
    Row(
        "BatchNormInternal",
        [case((4, 3, 5), *CHANNEL)],
        attrs={"momentum": 0.8},
        domain=MS,
        outputs=5,
        oracle=batch_norm,
        grad=[0, 1, 2, 3, 4],
        torch=False,
    ),
    Row(
        "BatchNormalizationGrad",
        [
            case(
                (4, 3, 5),
                IMAGE,
                (3,),
                IMAGE.mean((0, 2)),
                (1 / np.sqrt(IMAGE.var((0, 2)) + EPSILON)).astype(np.float32),
            )
        ],
        domain=MS,
        outputs=3,
        oracle=from_torch(batch_norm_grad),
        tol=1e-4,
    ),
    Row(
        "SimplifiedLayerNormalizationGrad",
        [case((3, 4, 6), X, (6,), INVERSE_ROOT)],
        domain=MS,
        outputs=2,
        oracle=from_torch(simplified_grad),
        tol=1e-4,
    ),
    Row(
        "InvertibleLayerNormalizationGrad",
        [case((3, 4, 6), (3, 4, 6), data(6, low=0.5, high=2), (6,), INVERSE_DEVIATION)],
        domain=MS,
        outputs=3,
        oracle=invertible_grad,
        tol=1e-4,
    ),
    Row(
        "DropoutGrad",
        [
            case((3, 5), MASK),
            case((3, 5), MASK, const(0.3, "row")),
            case((3, 5), MASK, const(0.3, "row"), const(False)),
        ],
        dtypes=FLOATS,
        domain=MS,
        oracle=dropout_grad,
    ),
    Row("BiasDropout", [case((2, 3, 4), (4,), (2, 3, 4))], domain=MS, oracle=lambda x, b, r: x + b + r),
    Row("FakeQuantGrad", [case((3, 5), MASK)], dtypes=FLOATS, domain=MS, oracle=lambda dy, mask: dy * mask),
    Row("IsFinite", [case(ODD), case((2, 3))], domain=MS, oracle=lambda x: np.isfinite(x)),
    Row(
        "IsAllFinite",
        [case((2,), (3, 0)), case((2,), ODD), case(ODD[1:], (2,), isinf_only=1), case(ODD[1:], isnan_only=1)],
        domain=MS,
        oracle=lambda *x, isinf_only=0, isnan_only=0: np.array(
            not any(((not isnan_only) & np.isinf(v) | (not isinf_only) & np.isnan(v)).any() for v in x)
        ),
    ),
    Row(
        "MixedPrecisionScale",
        [case(np.array(0.5, np.float32), (2, 3), (4,))],
        attrs={"to": 10},
        domain=MS,
        outputs=2,
        oracle=lambda s, *x, to: [(v * s).astype(np.float16) for v in x],
    ),
    Row("SGDOptimizer", [case(RATE, (3, 4), (3, 4))], domain=MS, outputs=2, oracle=lambda r, w, g: [w - r * g, -r * g]),
    Row(
        "AdamOptimizer",
        [case(RATE, STEP, (3, 4), (3, 4), (3, 4), data(3, 4, low=0.1, high=1))],
        attrs=[{"weight_decay_mode": 0, "lambda": 0.1}, {"weight_decay_mode": 1, "lambda": 0.1}],
        domain=MS,
        outputs=5,
        oracle=adam,
    ),
    Row(
        "InplaceClipGradNorm",
        [case([data(3, 4), data(3, 4)])],
        attrs=[{"max_norm": 1.0}, {"max_norm": 100.0}],
        domain=MS,
        oracle=clipped,
    ),
]
