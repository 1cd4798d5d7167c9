"""Elementary functions to a few units in the last place, over their whole range."""

from __future__ import annotations

import backpass
import numpy as np
import pytest
import torch
from onnx import helper

WIDE = np.longdouble  # 64-bit significand
RANGES = [(-1e-3, 1e-3), (-1, 1), (-9, 9), (-80, 80)]


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erf(x: np.ndarray) -> np.ndarray:
    return torch.erf(torch.from_numpy(x.astype(np.float64))).numpy().astype(WIDE)


FUNCTIONS = {
    "Exp": (np.exp, 2),
    "Log": (np.log, 2),
    "Tanh": (np.tanh, 4),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3),
    "Softplus": (softplus, 4),
    "Erf": (erf, 3),
    "Sin": (np.sin, 3),
    "Cos": (np.cos, 3),
    "Sqrt": (np.sqrt, 0.5001),
}


def run(op: str, x: np.ndarray) -> np.ndarray:
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    info = [helper.make_tensor_value_info(n, dtype, x.shape) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return backpass.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_units_in_the_last_place(op: str, dtype: type) -> None:
    function, limit = FUNCTIONS[op]
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(low, high, 50_000) for low, high in RANGES]).astype(dtype)
    if op in ("Log", "Sqrt"):
        x = np.abs(x)
    expected = function(x.astype(WIDE))
    unit = np.spacing(np.abs(expected).astype(dtype))
    error = np.abs(run(op, x) - expected) / unit
    assert error.max() <= limit, f"{op}({x[error.argmax()]})"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_edges(op: str, dtype: type) -> None:
    f = np.finfo(dtype)
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, f.max, f.min, f.tiny, f.smallest_subnormal], dtype)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[op][0](x.astype(WIDE)).astype(dtype)
    np.testing.assert_allclose(run(op, x), expected, rtol=4 * f.eps, atol=f.tiny)
