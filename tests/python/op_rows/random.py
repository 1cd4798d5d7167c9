"""Dropout, and random numbers with a certain outcome."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_case import FLOATS, Row, case, const, data

MASK = np.array([[1, 0, 0, 0, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]], bool)
LONG_MASK = np.random.default_rng(3).random((7, 11)) < 0.5
DROPOUT = [
    (2, 3, 5),
    (0,),
    (),
    case((4, 3), const(0.0, "row"), const(True)),
    case((4, 3), const(0.7, "row"), const(False)),
]
CERTAIN = data(3, 4, make=lambda rng, shape: np.eye(3, 4) * 1000)


def identity_and_mask(x: np.ndarray, *_: Any) -> list[np.ndarray]:
    return [x, np.ones(x.shape, bool)]


def dropout_grad(dy: Any, mask: Any, ratio: Any = 0.5, training: Any = True) -> Any:
    return np.where(mask, dy / (1 - np.asarray(ratio)), 0).astype(dy.dtype) if training else dy


def packed(mask: np.ndarray) -> np.ndarray:
    bits = np.zeros((-(-mask.size // 32), 32), np.uint32)
    bits.reshape(-1)[: mask.size] = mask.ravel()
    return (bits << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)


def softmax_dropout(x: Any, bias: Any, _: Any, **attrs: Any) -> list[Any]:
    powers = np.exp(x + bias)
    y = (powers / powers.sum(-1, keepdims=True)).astype(x.dtype)
    return [y, np.ones(x.shape, bool), y]


def softmax_dropout_grad(dy: Any, mask: Any, y: Any, ratio: Any, **attrs: Any) -> Any:
    flow = dropout_grad(dy, mask, ratio)
    return (y * (flow - (flow * y).sum(-1, keepdims=True))).astype(dy.dtype)


ROWS = [
    Row("Dropout", DROPOUT, dtypes=FLOATS, outputs=2, oracle=identity_and_mask, opset=(28, 13, 12), grad=[0]),
    Row("Dropout", [(2, 3), (0,)], outputs=2, oracle=identity_and_mask, opset=10, name="Dropout-attributes"),
    Row("Dropout", [(2, 3), (0,)], attrs={"ratio": 0.3}, opset=7, oracle=lambda x, **_: x, name="Dropout-7"),
    # Random numbers that leave no choice.
    Row(
        "RandomNormal",
        [case(shape=[2, 3], mean=2.0, scale=0.0)],
        oracle=lambda **_: np.full((2, 3), 2, np.float32),
        opset=(28, 7),
    ),
    Row(
        "RandomUniform",
        [case(shape=[4], low=3.0, high=3.0, dtype=11)],
        oracle=lambda **_: np.full(4, 3.0),
        opset=(28, 7),
    ),
    Row(
        "RandomNormalLike",
        [case((2, 3), mean=2.0, scale=0.0)],
        dtypes=FLOATS,
        oracle=lambda x, **_: np.full_like(x, 2),
        opset=(28, 7),
    ),
    Row(
        "RandomUniformLike",
        [case((2, 3), low=3.0, high=3.0)],
        dtypes=FLOATS,
        oracle=lambda x, **_: np.full_like(x, 3),
        opset=(28, 7),
    ),
    Row(
        "Bernoulli",
        [data(2, 3, dtype="float32", low=0, high=0.0), (0,)],
        attrs={"dtype": 6},
        oracle=lambda x, **_: x.astype(np.int32),
        opset=(28, 15),
    ),
    Row(
        "Multinomial",
        [case(CERTAIN, sample_size=2)],
        dtypes=FLOATS,
        oracle=lambda x, **_: np.repeat(np.arange(3, dtype=np.int32)[:, None], 2, 1),
        opset=(28, 7),
    ),
    Row(
        "DropoutGrad",
        [
            case((3, 5), MASK),
            case((3, 5), MASK, const(0.3, "row")),
            case((3, 5), MASK, const(0.3, "row"), const(False)),
        ],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=dropout_grad,
    ),
    Row("BiasDropout", [case((2, 3, 4), (4,), (2, 3, 4))], domain="com.microsoft", oracle=lambda x, b, r: x + b + r),
    Row(
        "BitmaskDropout",
        [(5, 13), (32,), (0,), case((4, 3), const(0.0, "row"), const(True))],
        dtypes=FLOATS,
        domain="com.microsoft",
        outputs=2,
        oracle=lambda x, *_: [x, packed(np.ones(x.size, bool))],
        grad=[0],
    ),
    Row(
        "BitmaskBiasDropout",
        [case((2, 3, 4), (4,), (2, 3, 4))],
        domain="com.microsoft",
        outputs=2,
        oracle=lambda x, b, r: [x + b + r, packed(np.ones(x.size, bool))],
    ),
    Row(
        "BitmaskDropoutGrad",
        [case((3, 5), packed(MASK)), case((7, 11), packed(LONG_MASK), const(0.3, "row"), const(True))],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=lambda dy, mask, ratio=0.5, _=True: dropout_grad(dy, {15: MASK, 77: LONG_MASK}[dy.size], ratio),
    ),
    Row("PackBits", [MASK, LONG_MASK, np.zeros((0, 3), bool)], dtypes=("bool",), domain="backpass", oracle=packed),
    Row(
        "UnpackBits",
        [case(packed(MASK), (3, 5)), case(packed(LONG_MASK), (7, 11))],
        domain="backpass",
        oracle=lambda _, like: {15: MASK, 77: LONG_MASK}[like.size],
    ),
    Row(
        "BiasSoftmaxDropout",
        [case((2, 3, 4, 5), (2, 1, 1, 5), const(0.0, "row"))],
        attrs={"axis": 3, "is_inner_broadcast": 1},
        dtypes=FLOATS,
        domain="com.microsoft",
        outputs=3,
        oracle=softmax_dropout,
    ),
    Row(
        "SoftmaxDropoutGrad",
        [case((3, 5), MASK, data(3, 5, low=0.1, high=0.9), const(0.3, "row"))],
        attrs={"axis": 1},
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=softmax_dropout_grad,
    ),
]
