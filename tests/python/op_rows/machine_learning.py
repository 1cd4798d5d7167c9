"""ai.onnx.ml and the optimizers."""

from typing import Any

import numpy as np
from op_case import Row, case, data


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


def encoded(x: np.ndarray, table: dict[Any, Any], otherwise: Any, dtype: Any) -> np.ndarray:
    return np.array([table.get(v, otherwise) for v in x.ravel().tolist()], dtype).reshape(x.shape)


WORDS = np.array([["b", "z"], ["a", ""]], object)
SEQUENCES = [[data(3, 4), data(3, 4)] for _ in range(3)] + [[data(3, 4, low=0.1, high=1) for _ in range(2)]]

ROWS = [
    Row(
        "AdamWOptimizer",
        [case(np.array([0.1], np.float32), np.array([3]), *SEQUENCES)],
        attrs=[{"adam_mode": 0, "weight_decay": 0.1}, {"adam_mode": 1, "weight_decay": 0.1}],
        domain="com.microsoft",
        outputs=4,
        oracle=adamw,
    ),
    Row(
        "SGDOptimizerV2",
        [case(np.array([0.1], np.float32), *SEQUENCES[:2])],
        domain="com.microsoft",
        outputs=2,
        oracle=lambda lr, w, g: [np.array([True]), [a - lr[0] * b for a, b in zip(w, g, strict=True)]],
    ),
    Row(
        "LabelEncoder",
        [case(WORDS)],
        attrs={"keys_strings": ["a", "b"], "values_int64s": [3, 4], "default_int64": 9},
        domain="ai.onnx.ml",
        opset=2,
        oracle=lambda x, **_: encoded(x, {"a": 3, "b": 4}, 9, np.int64),
        name="LabelEncoder-strings",
    ),
    Row(
        "LabelEncoder",
        [case(np.array([1.0, 2.5, 7.0], np.float32))],
        attrs={"keys_floats": [1.0, 2.5], "values_strings": ["x", "y"]},
        domain="ai.onnx.ml",
        opset=2,
        oracle=lambda x, **_: encoded(x, {1.0: "x", 2.5: "y"}, "_Unused", object),
        name="LabelEncoder-floats",
    ),
    Row(
        "LabelEncoder",
        [case(WORDS)],
        attrs={"classes_strings": ["a", "b"], "default_int64": 9},
        domain="ai.onnx.ml",
        opset=1,
        oracle=lambda x, **_: encoded(x, {"a": 0, "b": 1}, 9, np.int64),
        name="LabelEncoder-classes",
    ),
    Row(
        "Binarizer",
        [(3, 4), (0,)],
        attrs={"threshold": 0.3},
        dtypes=("float32", "float64", "int32", "int64"),
        domain="ai.onnx.ml",
    ),
]
