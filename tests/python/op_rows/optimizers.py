"""Steps of optimizers, accumulation and clipping of gradients. Oracles in numpy: onnxruntime's inference package has
none of these."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_case import FLOATS, Row, case, data

MS = "com.microsoft"
RATE, STEP = np.array([0.1], np.float32), np.array([3], np.int64)
SEQUENCES = [[data(3, 4), data(3, 4)] for _ in range(3)] + [[data(3, 4, low=0.1, high=1) for _ in range(2)]]

ADAM, SECOND = (RATE, STEP, (3, 4)), ((3, 4), data(3, 4, low=0.1, high=1))
HALF = data(3, 4, dtype="float16")
LAMB = ((3, 4), (3, 4), *SECOND, HALF)
LAMB_16 = (data(7), data(7, dtype="float16"), data(7), data(7, low=0.1, high=1), data(7, dtype="float16"))


def adamw(rate: Any, step: Any, weights: Any, gradients: Any, m1: Any, m2: Any, **attrs: Any) -> list[Any]:
    lr, t, out = float(rate[0]), int(step[0]), [np.array([True]), [], [], []]
    for w, g, m, v in zip(weights, gradients, m1, m2, strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        if attrs["adam_mode"] == 0:
            w = w * (1 - lr * attrs["weight_decay"])
            w = w - lr * m / ((1 - 0.9**t) * (np.sqrt(v / (1 - 0.999**t)) + 1e-8))
        else:
            w = w - lr * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
            w = w * (1 - lr * attrs["weight_decay"])
        for k, value in enumerate((w, m, v)):
            out[k + 1].append(value.astype(np.float32))
    return out


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


def adam_scaled(*inputs: Any, **attrs: Any) -> list[Any]:
    """With 16-bit weights, loss scale, norm and signal. Gradients come scaled, and so does their norm."""
    rate, step, w, g, m, v, _, loss_scale, norm, signal = inputs
    if not signal:
        return [step, m, v, w, np.zeros_like(w), w.astype(np.float16)]
    g = g.astype(np.float32) / loss_scale
    clip = min(1.0, attrs["max_norm_clip"] * float(loss_scale) / float(norm))
    results = adam(rate, step, w, g * clip, m, v, weight_decay_mode=0, **{"lambda": 0.0})
    return [*results[:4], results[4].astype(inputs[3].dtype), results[3].astype(np.float16)]


def lamb(signal: Any, loss_scale: Any, norm: Any, rate: Any, step: Any, *tensors: Any, **attrs: Any) -> list[Any]:
    loss_scale, norm = (1.0, 0.1) if signal is None else (loss_scale, norm)
    t, out = int(step[0]), [step + 1]
    for i in range(0, len(tensors), 5):
        w, g, m, v = (x.astype(np.float64) for x in tensors[i : i + 4])
        number = i // 5
        g = g / float(loss_scale) * min(1.0, attrs["max_norm_clip"][number] * float(loss_scale) / float(norm))
        alpha, beta, decay = attrs["alpha"][number], 0.999, attrs["lambda"][number]
        m, v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
        d = decay * w + m / (1 - alpha**t) / (np.sqrt(v / (1 - beta**t)) + 1e-6)
        ratio = np.clip(np.linalg.norm(w) / np.linalg.norm(d), attrs["ratio_min"], np.inf)
        new = w - float(rate[0]) * ratio * d
        kinds = [np.float32, tensors[i + 1].dtype, np.float32, np.float32, np.float16]
        out += [x.astype(kind) for x, kind in zip((new, new - w, m, v, new), kinds, strict=True)]
    return out


def accumulate(total: Any, value: Any, signal: Any = True) -> Any:
    return total + value if np.all(signal) else total


def accumulate_v2(total: Any, value: Any, overwrite: Any = False) -> Any:
    return np.array([True]), value if np.all(overwrite) else total + value


ROWS = [
    Row(
        "AdamWOptimizer",
        [case(np.array([0.1], np.float32), np.array([3]), *SEQUENCES)],
        attrs=[{"adam_mode": 0, "weight_decay": 0.1}, {"adam_mode": 1, "weight_decay": 0.1}],
        domain=MS,
        outputs=4,
        oracle=adamw,
    ),
    Row(
        "SGDOptimizerV2",
        [case(np.array([0.1], np.float32), *SEQUENCES[:2])],
        domain=MS,
        outputs=2,
        oracle=lambda lr, w, g: [np.array([True]), [a - lr[0] * b for a, b in zip(w, g, strict=True)]],
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
        "AdamOptimizer",
        [
            case(*ADAM, (3, 4), *SECOND, HALF, np.float32(8), np.float32(4), np.array([True])),
            case(*ADAM, data(3, 4, dtype="float16"), *SECOND, HALF, np.float32(8), np.float32(40), np.array([True])),
            case(*ADAM, (3, 4), *SECOND, HALF, np.float32(8), np.float32(40), np.array([False])),
        ],
        attrs={"max_norm_clip": 2.0},
        domain=MS,
        outputs=6,
        oracle=adam_scaled,
        name="AdamOptimizer-scaled",
    ),
    Row(
        "LambOptimizer",
        [
            case(np.array([True]), np.float32(4), np.float32(20), RATE, STEP, *LAMB, *LAMB_16),
            case(None, None, None, RATE, STEP, *LAMB, *LAMB_16),
        ],
        attrs={"alpha": [0.9, 0.8], "lambda": [0.1, 0.0], "max_norm_clip": [1.0, 9.0], "ratio_min": 0.1},
        domain=MS,
        outputs=11,
        oracle=lamb,
    ),
    Row(
        "InplaceClipGradNorm",
        [case([data(3, 4), data(3, 4)])],
        attrs=[{"max_norm": 1.0}, {"max_norm": 100.0}],
        domain=MS,
        oracle=clipped,
    ),
    Row("PassThrough", [case((2, 3), (4,))], domain=MS, outputs=2, oracle=lambda *x: list(x)),
    Row("Group", [case((2, 3), (4,))], domain=MS, oracle=lambda *_: np.array([True])),
    Row(
        "ZeroGradient", [case((2, 3), np.array([True]))], dtypes=FLOATS, domain=MS, oracle=lambda x, _: np.zeros_like(x)
    ),
    Row(
        "InPlaceAccumulator",
        [
            case((2, 3), (2, 3)),
            case((5,), (5,), np.array([True])),
            case((5,), (5,), np.array([False])),
            case((3,), data(3, dtype="float16")),
        ],
        dtypes=FLOATS,
        domain=MS,
        oracle=accumulate,
    ),
    Row(
        "InPlaceAccumulatorV2",
        [case((2, 3), (2, 3)), case((5,), (5,), np.array([True])), case((5,), (5,), np.array([False]))],
        dtypes=FLOATS,
        domain=MS,
        outputs=2,
        oracle=accumulate_v2,
    ),
]
