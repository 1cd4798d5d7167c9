"""What rows cannot say about reductions, normalisation and losses: NaN, infinities, accuracy, threads, messages."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from onnx import helper


def run(
    op: str, *inputs: Any, threads: int = 0, outputs: int = 1, opset: int = 22, domain: str = "", **attrs: Any
) -> Any:
    feeds = {f"x{i}": np.asarray(v) for i, v in enumerate(inputs)}
    node = helper.make_node(op, list(feeds), [f"y{i}" for i in range(outputs)], name="n", domain=domain, **attrs)
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)])
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    options = backpass.SessionOptions()
    options.num_threads = threads
    session = backpass.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), options
    )
    results = session.run(None, feeds)
    return results[0] if outputs == 1 else results


RNG = np.random.default_rng(0)
NAN, INF = np.float32(np.nan), np.float32(np.inf)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("at", [0, 3, 40, 66])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_is_not_lost(op: str, at: int, axis: int) -> None:
    x = RNG.standard_normal((67, 67)).astype(np.float32)
    x[(at, 5) if axis == 0 else (5, at)] = NAN
    y = run(op, x, np.array([axis]), keepdims=0)
    assert np.isnan(y[5])
    assert np.isfinite(np.delete(y, 5)).all()


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_infinities(op: str, axis: int) -> None:
    x = RNG.standard_normal((9, 9)).astype(np.float32)
    x[4, 4], x[0, 0] = NAN, -INF
    y = run(op, x, axis=axis)
    row = y[4] if axis == 1 else y[:, 4]
    assert np.isnan(row).all()
    assert np.isfinite(np.delete(y, 4, 1 - axis)).sum() == 72 - (op == "LogSoftmax")
    assert y[0, 0] == (0 if op == "Softmax" else -INF)


def test_log_sum_exp_of_infinities() -> None:
    x = np.array([[-INF, -INF], [INF, 3], [-INF, 2], [1e4, 1e4]], np.float32)
    assert np.allclose(run("ReduceLogSumExp", x, np.array([1]), keepdims=0), [-INF, INF, 2, 1e4 + np.log(2)])


@pytest.mark.parametrize(("op", "expected"), [("ArgMax", 2), ("ArgMin", 2)])
def test_nan_is_extreme(op: str, expected: int) -> None:
    assert run(op, np.array([1, 5, NAN, -7, NAN], np.float32)) == [expected]


def test_long_sums_are_accurate() -> None:
    x = RNG.random(3_000_000).astype(np.float32)
    exact = x.astype(np.float64).sum()
    assert abs(float(run("ReduceSum", x)[0]) - exact) / exact < 1e-7
    assert abs(float(run("ReduceSum", x.reshape(-1, 3), np.array([0])).sum()) - exact) / exact < 3e-7
    assert np.allclose(run("ReduceMean", x + 1e4), (x + 1e4).astype(np.float64).mean(), rtol=1e-7)


def test_normalisation_far_from_zero() -> None:
    x = (RNG.standard_normal((4, 1000)) + 10_000).astype(np.float32)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    ones, zeros = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    assert np.abs(run("LayerNormalization", x, ones, zeros) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("ReduceSum", (300_000,), {}),
        ("ReduceSum", (3, 100_001), {}),
        ("ReduceLogSumExp", (7, 30_011), {}),
        ("Softmax", (64, 1003), {}),
        ("LogSoftmax", (9, 77, 131), {"axis": 1}),
        ("ArgMax", (50, 3001), {}),
    ],
)
def test_threads_do_not_change_bits(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    one, two, three = (run(op, x, threads=n, **attrs) for n in (1, 2, 3))
    assert np.array_equal(one, two)
    assert np.array_equal(one, three)


SCORES = np.zeros((2, 3), np.float32)
ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (r"axis: got 3, expected one in \[-2, 2\)", lambda: run("ReduceSum", SCORES, np.array([3]))),
        (r"axis -2 is named twice", lambda: run("ReduceMax", SCORES, np.array([0, -2]))),
        (r"label 3 at position 1: expected \[0, 3\)", lambda: run("SoftmaxCrossEntropyLoss", SCORES, np.array([0, 3]))),
        (r"label -1 at position 0", lambda: run("NegativeLogLikelihoodLoss", SCORES, np.array([-1, 0], np.int32))),
        (r"extent of labels", lambda: run("SoftmaxCrossEntropyLoss", SCORES, np.zeros(3, np.int64))),
        (r"reduction: got 'avg'", lambda: run("SoftmaxCrossEntropyLoss", SCORES, np.array([0, 1]), reduction="avg")),
        (r"channels", lambda: run("BatchNormalization", SCORES, *[np.ones(4, np.float32)] * 4)),
        (r"broadcasts to", lambda: run("LayerNormalization", SCORES, np.ones(4, np.float32))),
        (r"num_groups: got 2, expected a divisor", lambda: run("GroupNormalization", SCORES, ONES, ONES, num_groups=2)),
        (r"p: got 3, expected 1 or 2", lambda: run("LpNormalization", SCORES, p=3)),
        (r"which no input has", lambda: run("Einsum", SCORES, equation="ij->k")),
        (r"2 terms for 1 inputs", lambda: run("Einsum", SCORES, equation="ij,jk")),
        (r"got rank 2 for the term 'i'", lambda: run("Einsum", SCORES, equation="i->")),
        (r"empty axis has no extreme element", lambda: run("ArgMax", np.zeros((0, 2), np.float32))),
        (r"rows and columns", lambda: run("Det", SCORES)),
    ],
)  # fmt: skip
def test_messages(message: str, call: Any) -> None:
    with pytest.raises(backpass.InvalidInput, match=message):
        call()


def test_no_labels_and_no_valid_labels_have_no_mean() -> None:
    """As in torch; their sum is 0."""
    for scores, labels in ((SCORES, np.array([1, 1])), (SCORES[:0], np.zeros(0, np.int64))):
        assert np.isnan(run("SoftmaxCrossEntropyLoss", scores, labels, ignore_index=1))
        assert run("SoftmaxCrossEntropyLoss", scores, labels, ignore_index=1, reduction="sum") == 0
