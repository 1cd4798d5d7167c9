"""Random operators: distributions, repeatability, independence of the number of threads."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from onnx import helper


def session(op: str, inputs: dict[str, np.ndarray], threads: int = 0, outputs: int = 1, **attrs: Any) -> Any:
    node = helper.make_node(op, list(inputs), [f"y{i}" for i in range(outputs)], **attrs)
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in inputs.items()
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    options = backpass.SessionOptions()
    options.num_threads = threads
    return backpass.InferenceSession(model.SerializeToString(), options)


def draw(op: str, inputs: dict[str, np.ndarray] | None = None, threads: int = 0, **attrs: Any) -> np.ndarray:
    return session(op, inputs or {}, threads, **attrs).run(None, inputs or {})[0]


N = 40_000  # standard errors of means are below 0.01


def test_normal_has_its_moments() -> None:
    x = draw("RandomNormal", shape=[N], mean=2.0, scale=3.0, seed=1.0).astype(np.float64)
    z = (x - 2) / 3
    assert abs(z.mean()) < 0.02
    assert abs(z.std() - 1) < 0.02
    assert abs((z**3).mean()) < 0.06
    assert abs((z**4).mean() - 3) < 0.2


def test_uniform_fills_its_interval() -> None:
    x = draw("RandomUniform", shape=[N], low=-1.0, high=3.0, seed=1.0)
    assert x.min() >= -1
    assert x.max() < 3
    counts, _ = np.histogram(x, 16, (-1, 3))
    assert np.all(np.abs(counts - N / 16) < 5 * np.sqrt(N / 16))


def test_bernoulli_and_multinomial_follow_their_probabilities() -> None:
    p = np.full(N, 0.3, np.float32)
    assert abs(draw("Bernoulli", {"p": p}, seed=1.0).mean() - 0.3) < 0.02
    logits = np.log(np.array([[0.1, 0.2, 0.7]], np.float32)) + 5
    drawn = draw("Multinomial", {"x": logits}, sample_size=N, seed=1.0)
    assert np.allclose(np.bincount(drawn[0], minlength=3) / N, [0.1, 0.2, 0.7], atol=0.02)


@pytest.mark.parametrize(
    ("op", "attrs"), [("RandomNormal", {}), ("RandomUniform", {}), ("RandomUniform", {"dtype": 11})]
)
def test_seed_decides(op: str, attrs: dict[str, Any]) -> None:
    def with_seed(seed: float, threads: int = 0) -> np.ndarray:
        return draw(op, shape=[20_001], seed=float(seed), threads=threads, **attrs)

    assert np.array_equal(with_seed(7), with_seed(7))
    assert np.array_equal(with_seed(7, threads=1), with_seed(7, threads=2))
    assert not np.array_equal(with_seed(7), with_seed(8))
    assert not np.array_equal(draw(op, shape=[64], **attrs), draw(op, shape=[64], **attrs))


def dropout(x: np.ndarray, ratio: float, threads: int = 0, **attrs: Any) -> tuple[np.ndarray, np.ndarray]:
    feeds = {"x": x, "ratio": np.array(ratio, np.float32), "training": np.array(True)}
    y, mask = session("Dropout", feeds, threads, outputs=2, **attrs).run(None, feeds)
    return y, mask


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_dropout_scales_what_it_keeps(dtype: str) -> None:
    x = np.ones(N, dtype)
    y, mask = dropout(x, 0.25, seed=3)
    assert abs(mask.mean() - 0.75) < 0.02
    assert np.all(y[~mask] == 0)
    assert np.allclose(y[mask].astype(np.float64), 1 / 0.75, rtol=1e-3)


def test_dropout_mask_is_a_function_of_the_seed() -> None:
    x = np.ones(50_003, np.float32)
    one, two = dropout(x, 0.5, threads=1, seed=3), dropout(x, 0.5, threads=2, seed=3)
    assert np.array_equal(one[1], two[1])
    assert not np.array_equal(one[1], dropout(x, 0.5, seed=4)[1])


def test_dropout_ratio_is_checked() -> None:
    with pytest.raises(backpass.InvalidInput, match=r"ratio: got 1, expected \[0, 1\)"):
        dropout(np.ones(4, np.float32), 1.0)


def test_probabilities_are_checked() -> None:
    with pytest.raises(backpass.InvalidInput, match=r"probability 1.5 at position 1"):
        draw("Bernoulli", {"p": np.array([0.5, 1.5], np.float32)})


def test_the_same_seed_gives_the_same_numbers_again() -> None:
    x = np.ones(64, np.float32)
    normal, dropout = session("RandomNormal", {}, shape=[64]), dropout_session(x)

    def draws() -> list[np.ndarray]:
        return [normal.run(None, {})[0], dropout.run(None, {"x": x})[0], normal.run(None, {})[0]]

    backpass.set_seed(5)
    first = draws()
    backpass.set_seed(5)
    again = draws()
    backpass.set_seed(6)
    other = draws()
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)
    assert not np.array_equal(first[0], first[2])


def test_a_new_session_repeats_an_old_one_after_the_same_seed() -> None:
    backpass.set_seed(2**63 - 1)
    first = [draw("RandomUniform", shape=[9]), draw("RandomUniform", shape=[9])]
    backpass.set_seed(2**63 - 1)
    np.testing.assert_array_equal(first, [draw("RandomUniform", shape=[9]), draw("RandomUniform", shape=[9])])


def test_an_operator_with_its_own_seed_starts_over() -> None:
    normal = session("RandomNormal", {}, shape=[9], seed=3.0)
    backpass.set_seed(1)
    first = normal.run(None, {})[0]
    assert not np.array_equal(normal.run(None, {})[0], first)
    backpass.set_seed(2)
    np.testing.assert_array_equal(normal.run(None, {})[0], first)


def dropout_session(x: np.ndarray) -> Any:
    text = "(float[64] x) => (y) <float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }"
    return backpass.InferenceSession(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {text}'))
