"""Rows taken and put back by index: GatherGrad, FlattenAndUnpad, PadAndUnflatten and ScatterND, against numpy bit for
bit, whatever the number of threads."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import onnx
import pytest

HEAD = '<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]> g '
WIDTHS = (0, 1, 3, 15, 16, 17, 33, 64, 511, 513, 600)


def run(text: str, feeds: dict[str, np.ndarray], threads: int) -> np.ndarray:
    model = onnx.parser.parse_model(HEAD + text)
    return backpass.InferenceSession(model.SerializeToString(), num_threads=threads).run(None, feeds)[0]


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    values = rng.standard_normal(shape).astype(np.float32)
    values[rng.random(shape) < 0.1] = -0.0
    return values


def indices_of(rng: np.random.Generator, extent: int) -> np.ndarray:
    """Ascending and distinct, or anything."""
    if extent == 0:
        return np.zeros(0, np.int64)
    if rng.integers(2):
        return np.flatnonzero(rng.random(extent) < 0.7)
    return rng.integers(-extent, extent, rng.integers(0, 3 * extent))


def assert_same(text: str, feeds: dict[str, np.ndarray], wanted: np.ndarray) -> None:
    for threads in (1, 2, 3):
        found = run(text, feeds, threads)
        assert found.shape == wanted.shape
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_gradient_of_gather(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outer, extent, inner = (int(rng.choice(c)) for c in ((1, 1, 3, 40), (0, 1, 2, 31, 32, 200), WIDTHS))
    indices = indices_of(rng, extent)
    updates = numbers(rng, outer, len(indices), inner)
    wanted = np.zeros((outer, extent, inner), np.float32)
    for o in range(outer):
        np.add.at(wanted[o], indices, updates[o])
    text = f"""(float[a,b,c] x, int64[n] i) => (y) <int64[3] d = {{{outer},{extent},{inner}}}>
    {{ y = com.microsoft.GatherGrad<axis = 1>(d, i, x) }}"""
    assert_same(text, {"x": updates, "i": indices}, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.bool_])
@pytest.mark.parametrize("seed", range(8))
def test_rows_are_put_back(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    batch, length, inner = int(rng.integers(0, 5)), int(rng.integers(0, 40)), int(rng.choice(WIDTHS))
    indices = indices_of(rng, batch * length)
    rows = (numbers(rng, len(indices), inner) * 50).astype(dtype)
    wanted = np.zeros((batch * length, inner), dtype)
    for j, i in enumerate(indices):
        wanted[i] = rows[j]
    kind = {"float32": "float", "float64": "double"}.get(np.dtype(dtype).name, np.dtype(dtype).name)
    text = f"""({kind}[n,w] x, int64[n] i) => (y) <int64[2] d = {{{batch},{length}}}>
    {{ y = com.microsoft.PadAndUnflatten(x, i, d) }}"""
    assert_same(text, {"x": rows, "i": indices}, wanted.reshape(batch, length, inner))
    text = f"({kind}[b,l,w] x, int64[n] i) => (y) {{ y, dims = com.microsoft.FlattenAndUnpad(x, i) }}"
    assert_same(text, {"x": wanted.reshape(batch, length, inner), "i": indices}, wanted[indices])


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("seed", range(10))
def test_slices_are_scattered(seed: int, reduction: str) -> None:
    rng = np.random.default_rng(seed)
    extent, inner = int(rng.choice((1, 2, 31, 300))), int(rng.choice(WIDTHS))
    indices = indices_of(rng, extent)
    data, updates = numbers(rng, extent, inner), numbers(rng, len(indices), inner)
    wanted = data.copy()
    for j, i in enumerate(indices):
        wanted[i] = updates[j] + (wanted[i] if reduction == "add" else np.float32(-0.0))
    text = (
        f"""(float[a,b] x, int64[n,k] i, float[n,b] u) => (y) {{ y = ScatterND<reduction = "{reduction}">(x, i, u) }}"""
    )
    assert_same(text, {"x": data, "i": indices[:, None], "u": updates}, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "(float[n,32] x, int64[n] i) => (y) <int64[2] d = {5,32}> { y = com.microsoft.GatherGrad<axis = 0>(d, i, x) }",
        "(float[n,3] x, int64[n] i) => (y) <int64[2] d = {5,3}> { y = com.microsoft.GatherGrad<axis = 0>(d, i, x) }",
        "(float[n,3] x, int64[n] i) => (y) <int64[2] d = {1,5}> { y = com.microsoft.PadAndUnflatten(x, i, d) }",
    ],
)
@pytest.mark.parametrize("wrong", [5, -6, 2**40])
def test_an_index_out_of_range_is_named(text: str, wrong: int) -> None:
    width = 32 if "32" in text else 3
    feeds = {"x": np.ones((3, width), np.float32), "i": np.array([0, wrong, 1])}
    with pytest.raises(backpass.InvalidInput, match=rf"index at position 1: got {wrong}, expected one in \[-5, 5\)"):
        run(text, feeds, 1)
