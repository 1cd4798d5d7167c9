"""The vector loops of training: against torch in float64, at lengths around a vector, for any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import backpass
import numpy as np
import pytest
import torch
from onnx import helper

SIZES = [1, 2, 7, 8, 9, 17, 33, 768, 1000, 2051]


def run(
    op: str,
    inputs: Sequence[np.ndarray],
    outputs: int = 1,
    threads: int = 1,
    domain: str = "com.microsoft",
    **attributes: Any,
) -> list[np.ndarray]:
    """One node. Outputs have the types of the first input."""
    names = [f"x{i}" for i in range(len(inputs))]
    results = [f"y{i}" for i in range(outputs)]
    kinds = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, domain=domain, **attributes)],
        "g",
        [helper.make_tensor_value_info(n, k, x.shape) for n, k, x in zip(names, kinds, inputs, strict=True)],
        [helper.make_tensor_value_info(n, kinds[0], None) for n in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid(domain, 1)])
    options = backpass.SessionOptions()
    options.num_threads = threads
    session = backpass.InferenceSession(model, options)
    return session.run(None, dict(zip(names, inputs, strict=True)))


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def torch64(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64)).requires_grad_()


def close(got: np.ndarray, want: Any, dtype: Any, scale: float = 1.0) -> None:
    tolerance = 2e-6 if dtype == np.float32 else 1e-13
    want = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale * max(1.0, np.abs(want).max(initial=0)))


def same_for_any_threads(op: str, inputs: Sequence[np.ndarray], outputs: int = 1, **attributes: Any) -> None:
    one = run(op, inputs, outputs, 1, **attributes)
    for threads in (2, 3):
        for a, b in zip(one, run(op, inputs, outputs, threads, **attributes), strict=True):
            assert a.tobytes() == b.tobytes()


def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.float64)
    mean = wide.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    return mean.astype(x.dtype), inverse.astype(x.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", SIZES)
def test_layer_normalization_gradient(n: int, dtype: Any) -> None:
    for rows in (0, 1, 6, 131):
        x, dy, scale = (
            normal(rows, n, dtype=dtype),
            normal(rows, n, seed=1, dtype=dtype),
            normal(n, seed=2, dtype=dtype),
        )
        leaves = [torch64(x), torch64(scale), torch.zeros(n, dtype=torch.float64, requires_grad=True)]
        y = torch.nn.functional.layer_norm(leaves[0], (n,), leaves[1], leaves[2])
        want = torch.autograd.grad(y, leaves, torch64(dy))
        got = run("LayerNormalizationGrad", [dy, x, scale, *statistics(x)], 3)
        # A row of two is one big cancellation.
        close(got[0], want[0], dtype, 100 if n < 8 else 10)
        for a, b in zip(got[1:], want[1:], strict=True):
            close(a, b, dtype, 10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", SIZES)
def test_rms_normalization_gradient(n: int, dtype: Any) -> None:
    for rows in (0, 1, 6, 131):
        x, dy, scale = (
            normal(rows, n, dtype=dtype),
            normal(rows, n, seed=1, dtype=dtype),
            normal(n, seed=2, dtype=dtype),
        )
        leaves = [torch64(x), torch64(scale)]
        factor = torch.rsqrt((leaves[0] * leaves[0]).mean(-1, keepdim=True) + 1e-5)
        want = torch.autograd.grad(leaves[0] * factor * leaves[1], leaves, torch64(dy))
        got = run("SimplifiedLayerNormalizationGrad", [dy, x, scale, factor.detach().numpy().astype(dtype)], 2)
        close(got[0], want[0], dtype, 100 if n < 8 else 10)
        close(got[1], want[1], dtype, 10)


@pytest.mark.parametrize("n", [1, 9, 768])
def test_invertible_layer_normalization_gradient_is_that_of_the_plain_one(n: int) -> None:
    x, dy = normal(37, n, dtype=np.float64), normal(37, n, seed=1, dtype=np.float64)
    scale, bias = 1 + np.abs(normal(n, seed=2, dtype=np.float64)), normal(n, seed=3, dtype=np.float64)
    mean, inverse = statistics(x)
    want = run("LayerNormalizationGrad", [dy, x, scale, mean, inverse], 3)
    y = (x - mean) * inverse * scale + bias
    got = run("InvertibleLayerNormalizationGrad", [dy, y, scale, bias, inverse], 3)
    for a, b in zip(got, want, strict=True):
        close(a, b, np.float64, 100)


def test_a_bad_row_stays_by_itself() -> None:
    x, dy, scale = normal(9, 33), normal(9, 33, seed=1), normal(33, seed=2)
    want = run("LayerNormalizationGrad", [dy, x, scale, *statistics(x)])[0]
    dy[5, 7], dy[2, 32] = np.nan, np.inf
    got = run("LayerNormalizationGrad", [dy, x, scale, *statistics(x)], 3)
    bad = np.isin(np.arange(9), [2, 5])
    assert not np.isfinite(got[0][bad]).any()
    np.testing.assert_array_equal(got[0][~bad], want[~bad])
    for d in got[1:]:
        np.testing.assert_array_equal(np.isfinite(d), ~np.isin(np.arange(33), [7, 32]))


def test_layer_normalization_gradient_does_not_depend_on_threads() -> None:
    x, dy, scale = normal(1001, 100), normal(1001, 100, seed=1), normal(100, seed=2)
    same_for_any_threads("LayerNormalizationGrad", [dy, x, scale, *statistics(x)], 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("n", SIZES)
def test_softmax_gradient(n: int, log: bool, dtype: Any) -> None:
    f = torch.log_softmax if log else torch.softmax
    op = "LogSoftmaxGrad_13" if log else "SoftmaxGrad_13"
    for shape, axis in (((5, n), -1), ((0, n), -1), ((2, n, 7), 1), ((2, n, 70), 1), ((n, 1), 0)):
        x = torch64(normal(*shape, dtype=dtype))
        dy = normal(*shape, seed=1, dtype=dtype)
        y = f(x, axis)
        (want,) = torch.autograd.grad(y, x, torch64(dy))
        (got,) = run(op, [dy, y.detach().numpy().astype(dtype)], axis=axis)
        close(got, want, dtype, 10)


def test_softmax_gradient_of_bad_and_impossible_values() -> None:
    dy, y = normal(4, 20), np.full((4, 20), 0.05, np.float32)
    dy[1, 3], dy[2, 19] = np.nan, np.inf
    (dx,) = run("SoftmaxGrad_13", [dy, y])
    assert np.isfinite(dx[[0, 3]]).all()
    assert not np.isfinite(dx[[1, 2]]).any()
    log_y = np.full((1, 20), -np.inf, np.float32)
    log_y[0, 4] = 0
    (dx,) = run("LogSoftmaxGrad_13", [dy[:1], log_y])
    want = dy[0].astype(np.float64)
    want[4] -= want.sum()
    close(dx[0], want, np.float32)


@pytest.mark.parametrize("op", ["SoftmaxGrad_13", "LogSoftmaxGrad_13"])
@pytest.mark.parametrize("shape", [(1001, 100), (3, 1001, 130)])
def test_softmax_gradient_does_not_depend_on_threads(op: str, shape: tuple[int, ...]) -> None:
    same_for_any_threads(op, [normal(*shape), np.abs(normal(*shape, seed=1)) * -1], axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("area", [(), (1,), (7,), (3, 3), (8, 8), (33, 33)], ids=str)
def test_batch_normalization_gradient(area: tuple[int, ...], dtype: Any) -> None:
    for batch, channels in ((2, 1), (5, 3), (9, 17)):
        shape = (batch, channels, *area)
        x, dy = normal(*shape, dtype=dtype) + dtype(100), normal(*shape, seed=1, dtype=dtype)
        scale = normal(channels, seed=2, dtype=dtype)
        leaves = [torch64(x), torch64(scale), torch.zeros(channels, dtype=torch.float64, requires_grad=True)]
        y = torch.nn.functional.batch_norm(leaves[0], None, None, leaves[1], leaves[2], True)
        want = torch.autograd.grad(y, leaves, torch64(dy))
        axes = (0, *range(2, len(shape)))
        mean = x.astype(np.float64).mean(axes)
        inverse = 1 / np.sqrt(x.astype(np.float64).var(axes) + 1e-5)
        got = run("BatchNormalizationGrad", [dy, x, scale, mean.astype(dtype), inverse.astype(dtype)], 3)
        # The rounded mean of numbers around 100 is off by 1e-5 of their deviation, and a batch of two cancels.
        for a, b in zip(got, want, strict=True):
            close(a, b, dtype, 1000)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000, 20001])
def test_adam_step(n: int, dtype: Any) -> None:
    w, g, m = (normal(n, seed=i, dtype=dtype) for i in range(3))
    v = np.abs(normal(n, seed=3, dtype=dtype))
    if n > 5:
        g[5] = np.inf
    rate, step = np.array([0.01], dtype), np.array([3], np.int64)
    settings = {"alpha": 0.75, "beta": 0.9375, "epsilon": 2.0**-20, "lambda": 0.125}
    for mode in (0, 1):
        outputs = run_adam([rate, step, w, g, m, v], weight_decay_mode=mode, **settings)
        first = 0.75 * m.astype(np.float64) + 0.25 * g
        second = 0.9375 * v.astype(np.float64) + 0.0625 * g.astype(np.float64) ** 2
        unbiased = first / (1 - 0.75**3), second / (1 - 0.9375**3)
        keep = 1 - float(rate[0]) * 0.125
        with np.errstate(invalid="ignore"):
            if mode == 0:
                weight = w * keep - float(rate[0]) * unbiased[0] / (np.sqrt(unbiased[1]) + 2.0**-20)
            else:
                size = float(rate[0]) * np.sqrt(1 - 0.9375**3) / (1 - 0.75**3)
                weight = (w - size * first / (np.sqrt(second) + 2.0**-20)) * keep
        assert outputs[0] == 4
        tolerance = 1e-6 if dtype == np.float32 else 1e-14
        for got, want in zip(outputs[1:], (first, second, weight), strict=True):
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def run_adam(inputs: Sequence[np.ndarray], **attributes: Any) -> list[np.ndarray]:
    kinds = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    names, results = [f"x{i}" for i in range(6)], ["step", "m", "v", "w"]
    graph = helper.make_graph(
        [helper.make_node("AdamOptimizer", names, results, domain="com.microsoft", **attributes)],
        "g",
        [helper.make_tensor_value_info(n, k, x.shape) for n, k, x in zip(names, kinds, inputs, strict=True)],
        [helper.make_tensor_value_info(n, k, None) for n, k in zip(results, [kinds[1]] + kinds[:1] * 3, strict=True)],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    session = backpass.InferenceSession(helper.make_model(graph, opset_imports=opsets))
    return session.run(None, dict(zip(names, inputs, strict=True)))
