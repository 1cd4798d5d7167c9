"""RowDropout, against Dropout of the whole tensor of which its rows are taken."""

from __future__ import annotations

import dataclasses
from typing import Any

import backpass
import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from backpass import _core
from onnx import helper, numpy_helper

DTYPES = {np.float32: torch.float32, np.float64: torch.float64, np.float16: torch.float16,
          ml_dtypes.bfloat16: torch.bfloat16}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """`rows` of a tensor [*lead, *inner] at `places`, whose own shape is that of the rows."""

    lead: tuple[int, ...] = (3, 7)
    inner: tuple[int, ...] = (5,)
    places: tuple[int, ...] = (0, 4, 5, 6, 20)
    shape: tuple[int, ...] = (5,)
    ratio: float | None = 0.4
    training: bool | None = True
    dtype: Any = np.float32

    def whole(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal((*self.lead, *self.inner)).astype(self.dtype)

    def rows_of(self, whole: np.ndarray) -> np.ndarray:
        rows = whole.reshape((int(np.prod(self.lead)), *self.inner))
        return rows[list(self.places)].reshape((*self.shape, *self.inner))


def model(c: Case, by_rows: bool, outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(c.dtype))
    shape = [*(c.shape if by_rows else c.lead), *c.inner]
    names = ["y", "mask"][:outputs]
    inputs = ["x", "" if c.ratio is None else "ratio", "" if c.training is None else "training"]
    if by_rows:
        node = helper.make_node(
            "RowDropout", [*inputs, "places"], names, domain="backpass", stream="drop", **attributes
        )
    else:
        node = helper.make_node("Dropout", inputs, names, name="drop", **attributes)
    initializers = [
        numpy_helper.from_array(np.array(c.ratio or 0, np.float32), "ratio"),
        numpy_helper.from_array(np.array(bool(c.training)), "training"),
        numpy_helper.from_array(np.array(c.places, np.int64).reshape(c.shape), "places"),
    ]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [onnx.ValueInfoProto(name=n) for n in names],
        initializers,
    )
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("backpass", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def made_up(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
    lead = pick((40,), (3, 7), (1,), (2, 3, 9), (300,))
    inner = pick((), (1,), (3,), (4,), (5, 2), (64,), (130,), (0,), (700,))
    rows = int(np.prod(lead))
    places = pick(
        lambda: rng.integers(0, rows, rng.integers(0, 2 * rows)),  # in any order, with repetitions
        lambda: np.flatnonzero(rng.random(rows) < 0.6),
        lambda: np.arange(rows),
        lambda: np.zeros(0, np.int64),
        lambda: np.array([rows - 1]),
    )()
    n = len(places)
    shape = pick((n,), (1, n), (n // 2, 2) if n % 2 == 0 and n else (n, 1), () if n == 1 else (n,))
    return Case(
        lead=lead,
        inner=inner,
        places=tuple(places.tolist()),
        shape=shape,
        ratio=pick(0.0, 0.1, 0.5, 0.9, None),
        training=pick(True, True, True, False, None),
        dtype=pick(*DTYPES),
    )


def differentiated(m: onnx.ModelProto, x: np.ndarray, dy: np.ndarray, threads: int, reference: bool) -> list[Any]:
    """y and the gradient of x."""
    options = _core.SessionOptions(num_threads=threads, reference=reference)
    session = _core.ModuleSession.from_bytes(m.SerializeToString(), ["x"], options)
    given = [torch.from_numpy(a.view(np.int16) if a.dtype == ml_dtypes.bfloat16 else a) for a in (x, dy)]
    if x.dtype == ml_dtypes.bfloat16:
        given = [t.view(torch.bfloat16) for t in given]
    (y,), pending = session.forward([given[0]], True, 7)
    return [
        torch.from_dlpack(t).reshape(-1).view(torch.uint8).numpy() for t in (y, *session.backward(pending, [given[1]]))
    ]


def as_bytes(c: Case, flat: np.ndarray) -> np.ndarray:
    """Rows of a whole tensor that is given as bytes."""
    rows = int(np.prod(c.lead))
    return flat.reshape(rows, flat.size // rows)[list(c.places)].reshape(-1)


@pytest.mark.parametrize("seed", range(60))
def test_values_and_gradients_are_those_of_the_whole(seed: int) -> None:
    c = made_up(seed)
    x, dy = c.whole(seed), c.whole(seed + 1)
    whole = differentiated(model(c, by_rows=False), x, dy, threads=1, reference=seed % 5 == 0)
    for threads in (1, 3):
        rows = differentiated(model(c, by_rows=True), c.rows_of(x), c.rows_of(dy), threads, reference=seed % 7 == 0)
        for got, all_ in zip(rows, whole, strict=True):
            np.testing.assert_array_equal(got.reshape(-1), as_bytes(c, all_))


@pytest.mark.parametrize("seed", range(40))
def test_masks_are_those_of_the_whole(seed: int) -> None:
    c = made_up(1000 + seed)
    x = c.whole(seed)
    whole = backpass.InferenceSession(model(c, False, 2, seed=5).SerializeToString())
    rows = backpass.InferenceSession(model(c, True, 2, seed=5).SerializeToString())
    for _ in range(2):  # each run draws other numbers
        for got, all_ in zip(rows.run(None, {"x": c.rows_of(x)}), whole.run(None, {"x": x}), strict=True):
            assert got.tobytes() == c.rows_of(all_).tobytes()


def test_many_rows_on_many_threads() -> None:
    c = Case(lead=(64, 128), inner=(96,), places=tuple(range(1, 8192, 3)), shape=(2731,))
    x = c.whole(0)
    whole = differentiated(model(c, by_rows=False), x, x, threads=2, reference=False)
    for threads in (1, 2, 5):
        rows = differentiated(model(c, by_rows=True), c.rows_of(x), c.rows_of(x), threads, reference=False)
        for got, all_ in zip(rows, whole, strict=True):
            np.testing.assert_array_equal(got.reshape(-1), as_bytes(c, all_))


def run(c: Case) -> list[np.ndarray]:
    return backpass.InferenceSession(model(c, by_rows=True)).run(None, {"x": np.ones((*c.shape, *c.inner), c.dtype)})


def test_the_mask_is_drawn_again_and_not_kept() -> None:
    m = model(Case(), by_rows=True)
    session = _core.ModuleSession.from_bytes(m.SerializeToString(), ["x"], _core.SessionOptions())
    reports = [r.what for r in session.pass_reports() if r.pass_name == "keep_less"]
    assert any("is computed again instead of kept" in r for r in reports)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"places": (0, -1), "shape": (2,)},
            r"\[backpass.RowDropout 'y'\] places: got -1 at position 1, expected one",
        ),
        ({"places": (0, 2**62), "shape": (2,)}, r"places: got 4611686018427387904 at"),
        ({"ratio": 1.0}, r"ratio: got 1, expected \[0, 1\)"),
    ],
)
def test_errors_name_the_operand(change: dict[str, Any], message: str) -> None:
    with pytest.raises(backpass.InvalidInput, match=message):
        run(dataclasses.replace(Case(), **change))


def test_each_row_has_a_place() -> None:
    m = model(Case(), by_rows=True)
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    with pytest.raises(backpass.InvalidInput, match=r"places: got 5, expected one for each row of \[4,5\]"):
        backpass.InferenceSession(m.SerializeToString()).run(None, {"x": np.ones((4, 5), np.float32)})
