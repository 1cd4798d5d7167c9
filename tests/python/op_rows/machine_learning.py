"""Operators of ai.onnx.ml."""

from typing import Any

import numpy as np
from op_case import Row, case


def encoded(x: np.ndarray, table: dict[Any, Any], otherwise: Any, dtype: Any) -> np.ndarray:
    return np.array([table.get(v, otherwise) for v in x.ravel().tolist()], dtype).reshape(x.shape)


WORDS = np.array([["b", "z"], ["a", ""]], object)

ROWS = [
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
