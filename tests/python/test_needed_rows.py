"""Rows that have to be computed, LabelledRows and NeededRows, against definitions written out in numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import backpass
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

LENGTHS = (0, 1, 2, 3, 7, 63, 64, 65, 130)
DTYPES = (np.bool_, np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def session(node: onnx.NodeProto, feeds: dict[str, np.ndarray], threads: int = 1, reference: bool = False) -> Any:
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(v.dtype), [f"{name}_{i}" for i in range(v.ndim)]
        )
        for name, v in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.INT64, ["n"])]
    graph = helper.make_graph([node], "g", infos, outputs)
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("backpass", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return backpass.InferenceSession(model.SerializeToString(), num_threads=threads, reference=reference)


@dataclasses.dataclass
class Mask:
    """`data` None: everything is seen."""

    data: np.ndarray | None = None
    causal: bool = False
    outside: bool = False
    unseen: bool = False

    def seen(self, batch: int, length: int) -> np.ndarray:
        """[batch, queries, keys]: whether any head of the query sees the key."""
        data = np.ones((1, 1, 1, 1), bool) if self.data is None else self.data
        data = data.reshape((1,) * (4 - data.ndim) + data.shape)
        queries = length if data.shape[2] == 1 else data.shape[2]
        data = np.broadcast_to(data, (batch, data.shape[1], queries, length))
        is_bool = data.dtype == np.bool_
        values = data.astype(np.float64)
        seen = data if is_bool else ~(values <= (-65504 if data.dtype == np.float16 else -1e30))
        if self.causal:
            seen = seen & (np.arange(length) <= np.arange(queries)[:, None])
        if self.unseen:
            blind = ~seen.any(axis=3, keepdims=True)
            seen = seen | (blind & (np.ones_like(data, bool) if is_bool else values != -np.inf))
        return seen.any(axis=1)


@dataclasses.dataclass
class Case:
    batch: int
    length: int
    asked: list[np.ndarray]
    masks: list[Mask]

    def feeds(self) -> dict[str, np.ndarray]:
        found = {"extents": np.array([self.batch, self.length])}
        found |= {f"asked{i}": a for i, a in enumerate(self.asked)}
        return found | {f"mask{i}": m.data for i, m in enumerate(self.masks) if m.data is not None}

    def session(self, **options: Any) -> Any:
        names = ["extents", *(f"asked{i}" for i in range(len(self.asked)))]
        names += ["" if m.data is None else f"mask{i}" for i, m in enumerate(self.masks)]
        flags = {key: [int(getattr(m, key)) for m in self.masks] for key in ("causal", "outside", "unseen")}
        attributes = {key: list_ for key, list_ in flags.items() if list_}
        node = helper.make_node(
            "NeededRows", names, ["rows"], domain="backpass", name="needed", asked=len(self.asked), **attributes
        )
        return session(node, self.feeds(), **options)

    def run(self, **options: Any) -> np.ndarray:
        return self.session(**options).run(None, self.feeds())[0]

    def expected(self) -> np.ndarray:
        needed = np.zeros((self.batch, self.length), bool)
        for places in self.asked:
            needed.reshape(-1)[places.reshape(-1)] = True
        inside = np.zeros((self.batch, self.length, self.length), bool)
        for mask in self.masks:
            seen = mask.seen(self.batch, self.length)
            if mask.outside:
                needed |= seen.any(axis=1)
            else:
                inside |= seen
        for _ in range(self.length):
            needed = needed | (needed[:, :, None] & inside).any(axis=1)
        return np.flatnonzero(needed)


def made_up_mask(rng: np.random.Generator, batch: int, length: int) -> Mask:
    flags = {key: bool(rng.integers(3) == 0) for key in ("causal", "outside", "unseen")}
    if rng.integers(5) == 0:
        return Mask(**flags)
    queries = int(rng.integers(0, 9)) if flags["outside"] else length
    full = [batch, int(rng.integers(1, 4)), queries, length]
    first = rng.integers(4)
    shape = [d if rng.integers(3) else 1 for d in full][first:]
    share = rng.choice([0.0, 0.02, 0.3, 1.0])
    seen = rng.random(shape) < share
    if len(shape) > 1 and shape[-1] == shape[-2] == length and rng.integers(2):
        seen &= np.abs(np.arange(length) - np.arange(length)[:, None]) <= 1  # long ways from neighbour to neighbour
    dtype = DTYPES[rng.integers(len(DTYPES))]
    if dtype == np.bool_:
        return Mask(seen, **flags)
    lowest = np.float64(ml_dtypes.finfo(dtype).min)
    hidden = rng.choice([-np.inf, lowest] if dtype == np.float16 else [-np.inf, lowest, -1e30], shape)
    values = np.where(seen, rng.choice([0.0, -3.5, 7.0, -60000.0, np.nan], shape), hidden)
    return Mask(values.astype(dtype), **flags)


def made_up(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    batch, length = int(rng.integers(0, 5)), int(rng.choice(LENGTHS))
    rows = batch * length
    asked = [
        rng.integers(0, rows, rng.choice([0, 1, 3, 40], p=[0.2, 0.4, 0.3, 0.1])) if rows else np.zeros(0, np.int64)
        for _ in range(rng.integers(0, 4))
    ]
    masks = [made_up_mask(rng, batch, length) for _ in range(rng.integers(0, 4))]
    return Case(batch, length, [a.reshape(1, -1, 1) if rng.integers(4) == 0 else a for a in asked], masks)


@pytest.mark.parametrize("block", range(20))
def test_needed_rows_as_by_definition(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        case = made_up(seed)
        found = case.run(threads=1 + seed % 3, reference=seed % 4 == 0)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, case.expected(), err_msg=str(seed))


def test_made_up_cases_are_telling() -> None:
    """Neither all rows nor none but the asked ones."""
    telling = 0
    for seed in range(60):
        case = made_up(seed)
        asked = len(np.unique(np.concatenate([np.zeros(0, np.int64), *(a.reshape(-1) for a in case.asked)])))
        telling += asked < len(case.expected()) < case.batch * case.length
    assert telling > 6


def test_padding_that_nobody_sees_is_left_out() -> None:
    lengths = np.array([5, 128, 1, 77])
    mask = (np.arange(128) < lengths[:, None])[:, None, None]
    case = Case(4, 128, [np.arange(4) * 128], [Mask(mask)] * 12)
    np.testing.assert_array_equal(case.run(), np.flatnonzero(mask))


def test_causal_reach_ends_at_the_last_asked_row() -> None:
    case = Case(2, 100, [np.array([37, 12, 150])], [Mask(causal=True)])
    np.testing.assert_array_equal(case.run(), [*range(38), *range(100, 151)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"asked": [np.array([0, 6])]},
            r"\[backpass.NeededRows 'needed'\] asked 0: got place 6 at position 1, exp",
        ),
        ({"asked": [np.array([0]), np.array([-1])]}, r"asked 1: got place -1 at position 0"),
        ({"masks": [Mask(np.ones((2, 4), bool))]}, r"mask 0: got \[2,4\], expected .* broadcasts to \[2,heads,3,3\]"),
        ({"masks": [Mask(), Mask(np.ones((3, 1, 1, 3), bool))]}, r"mask 1: got \[3,1,1,3\]"),
        ({"masks": [Mask(np.ones((2, 3), bool))]}, r"mask 0: got \[2,3\]"),
        ({"masks": [Mask(np.ones((1, 1, 1, 1, 3), bool))]}, r"mask 0: got rank 5, expected 4 or less"),
        ({"masks": [Mask(np.ones(3, np.int64))]}, r"mask 0: got int64, expected .*bool"),
        ({"batch": -1}, r"extents: got \[-1,3\], expected two numbers, 0 or more"),
        ({"asked": [np.array([0], np.int32)]}, r"asked 0: got int32, expected int64"),
    ],
)
def test_errors_name_the_operand(change: dict[str, Any], message: str) -> None:
    case = dataclasses.replace(Case(2, 3, [np.array([0])], [Mask(np.ones(3, bool))]), **change)
    with pytest.raises(backpass.InvalidInput, match=message):
        case.run()


def labelled(labels: np.ndarray, **attributes: Any) -> list[np.ndarray]:
    node = helper.make_node("LabelledRows", ["labels"], ["rows"], domain="backpass", name="labelled", **attributes)
    return [session(node, {"labels": labels}, reference=r).run(None, {"labels": labels})[0] for r in (False, True)]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0, 4), (16, 128), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_labelled_rows(dtype: Any, shape: tuple[int, ...]) -> None:
    labels = np.random.default_rng(len(shape)).choice([-100, 0, 1, -1], shape).astype(dtype)
    for ignored in (-100, 0, -1, 5, 2**40 - 100):
        for found in labelled(labels, ignore_index=ignored):
            np.testing.assert_array_equal(found, np.flatnonzero(labels != ignored))
    for found in labelled(labels):
        np.testing.assert_array_equal(found, np.arange(labels.size))
