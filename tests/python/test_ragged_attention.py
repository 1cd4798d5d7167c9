"""Attention of some rows of a batch, against attention of all of them, and torch, given what is dropped."""

from __future__ import annotations

import dataclasses
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import _core
from onnx import TensorProto, helper

KINDS = {torch.float32: TensorProto.FLOAT, torch.float64: TensorProto.DOUBLE}
OPSETS = [helper.make_opsetid("", 22), helper.make_opsetid("backpass", 1)]
SEED = 11
LENGTHS = ("right", "left", "scattered", "all", "none", "omitted")
QUERIES = ("keys", "first", "some", "shuffled", "repeated", "none", "omitted")
MASKS = ("", "chosen", "added", "lowest", "infinite")


@dataclasses.dataclass(frozen=True)
class Case:
    """`kept`: which keys are there. `asked`: which queries. `mask`: of which kind."""

    kept: str = "right"
    asked: str = "some"
    mask: str = ""
    mask_axes: str = "b..k"
    batch: int = 3
    q_len: int = 7
    kv_len: int = 9
    q_heads: int = 4
    kv_heads: int = 2
    size: int = 5
    v_size: int = 3
    ratio: float = 0.3
    training: bool = True
    causal: bool = False
    windows: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    unseen: str = "zero"
    dtype: torch.dtype = torch.float32
    seed: int = 0

    @property
    def scores(self) -> tuple[int, ...]:
        return (self.batch, self.q_heads, self.q_len, self.kv_len)

    @property
    def wanted(self) -> list[str]:
        """What has a gradient."""
        return ["q", "k", "v", *(["mask"] if self.mask not in ("", "chosen") else [])]

    @property
    def mask_shape(self) -> tuple[int, ...]:
        shape = [d if axis in self.mask_axes else 1 for axis, d in zip("bhqk", self.scores, strict=True)]
        return tuple(shape[4 - len(self.mask_axes) :])


@dataclasses.dataclass(frozen=True)
class Given:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dy: torch.Tensor
    q_places: torch.Tensor
    kv_places: torch.Tensor
    mask: torch.Tensor | None


def kept_places(c: Case, rng: np.random.Generator) -> np.ndarray:
    """Of keys, ascending."""
    found = []
    for item in range(c.batch):
        count = int(rng.integers(c.kv_len + 1)) if rng.integers(5) else 0
        positions = {
            "right": np.arange(count),
            "left": np.arange(c.kv_len - count, c.kv_len),
            "scattered": np.sort(rng.permutation(c.kv_len)[:count]),
            "none": np.arange(0),
        }.get(c.kept, np.arange(c.kv_len))
        found.append(item * c.kv_len + positions)
    return np.concatenate([np.arange(0), *found]).astype(np.int64)


def asked_places(c: Case, kv_places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Of queries."""
    every = np.arange(c.batch * c.q_len)
    some = np.sort(rng.permutation(every)[: int(rng.integers(len(every) + 1))])
    if c.asked == "keys" and c.q_len == c.kv_len:
        return kv_places
    choices = {
        "first": every[:: max(c.q_len, 1)],
        "some": some,
        "keys": some,
        "shuffled": rng.permutation(some),
        "repeated": np.sort(rng.choice(every, len(some))) if len(every) else every,
        "none": every[:0],
    }
    return choices.get(c.asked, every).astype(np.int64)


def tensors(c: Case) -> Given:
    rng = np.random.default_rng(c.seed)
    kv_places = kept_places(c, rng)
    q_places = asked_places(c, kv_places, rng)
    normal = lambda *shape: torch.from_numpy(rng.standard_normal(shape)).to(c.dtype)  # noqa: E731
    mask: torch.Tensor | None = None
    if c.mask:
        drawn = normal(*c.mask_shape)
        low = {"lowest": torch.finfo(c.dtype).min, "infinite": -np.inf}.get(c.mask)
        mask = drawn > -0.5 if c.mask == "chosen" else drawn if low is None else drawn.masked_fill(drawn < -0.5, low)
    return Given(
        normal(len(q_places), c.q_heads * c.size), normal(len(kv_places), c.kv_heads * c.size),
        normal(len(kv_places), c.kv_heads * c.v_size), normal(len(q_places), c.q_heads * c.v_size),
        torch.from_numpy(q_places), torch.from_numpy(kv_places), mask,
    )  # fmt: skip


def constant(name: str, value: Any, dtype: Any) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array(value, dtype), name)


def attributes(c: Case) -> dict[str, Any]:
    """That RaggedAttention and FusedAttention share."""
    return {
        "q_num_heads": c.q_heads, "kv_num_heads": c.kv_heads, "softcap": c.softcap, "is_causal": int(c.causal),
        "left_window_size": c.windows[0], "right_window_size": c.windows[1], "scale": 0.4, "stream": "drop",
    }  # fmt: skip


def model_of(node: onnx.NodeProto, c: Case, shapes: dict[str, tuple[Any, ...]], y: tuple[Any, ...]) -> onnx.ModelProto:
    """Inputs by name: places and extents are integers."""
    real = KINDS[c.dtype]
    types = {"q_places": TensorProto.INT64, "kv_places": TensorProto.INT64, "extents": TensorProto.INT64}
    if c.mask == "chosen":
        types["mask"] = TensorProto.BOOL
    inputs = [helper.make_tensor_value_info(n, types.get(n, real), s) for n, s in shapes.items()]
    constants = [constant("ratio", c.ratio, np.float32), constant("training", c.training, np.bool_)]
    outputs = [helper.make_tensor_value_info("y", real, y)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs, constants), opset_imports=OPSETS)


def ragged(c: Case, symbolic: bool = False) -> onnx.ModelProto:
    given = tensors(c)
    names = ["q", "k", "v", "q_places", "kv_places", "extents", "mask", "ratio", "training"]
    left_out = {"q_places"} if c.asked == "omitted" else set()
    left_out |= {"kv_places"} if c.kept in ("all", "omitted") else set()
    left_out |= set() if c.mask else {"mask"}
    node = helper.make_node(
        "RaggedAttention", ["" if n in left_out else n for n in names], ["y"], "one", domain="backpass",
        unseen=c.unseen, **attributes(c),
    )  # fmt: skip
    nq, nk = ("nq", "nk") if symbolic else (len(given.q), len(given.k))
    shapes: dict[str, tuple[Any, ...]] = {
        "q": (nq, given.q.shape[1]), "k": (nk, given.k.shape[1]), "v": (nk, given.v.shape[1]),
        "q_places": (nq,), "kv_places": (nk,), "extents": (3,), "mask": c.mask_shape,
    }  # fmt: skip
    shapes = {n: s for n, s in shapes.items() if n not in left_out}
    return model_of(node, c, shapes, (nq, given.dy.shape[1]))


def dense(c: Case) -> onnx.ModelProto:
    """Of all rows; the mask says which keys are there."""
    names = ["q", "k", "v", "mask", "", "", "", "ratio", "training"]
    node = helper.make_node(
        "FusedAttention", names, ["y"], "one", domain="backpass", unseen_is_nan=int(c.unseen == "nan"), **attributes(c)
    )
    shapes = {
        "q": (c.batch, c.q_len, c.q_heads * c.size), "k": (c.batch, c.kv_len, c.kv_heads * c.size),
        "v": (c.batch, c.kv_len, c.kv_heads * c.v_size), "mask": c.scores,
    }  # fmt: skip
    return model_of(node, c, shapes, (c.batch, c.q_len, c.q_heads * c.v_size))


def session(model: onnx.ModelProto, threads: int = 1, wanted: Any = "qkv") -> Any:
    options = _core.SessionOptions()
    options.num_threads = threads
    return _core.ModuleSession.from_bytes(model.SerializeToString(), list(wanted), options)


def fed(s: Any, given: list[torch.Tensor], dy: torch.Tensor) -> list[torch.Tensor]:
    """y and the gradients."""
    (y,), pending = s.forward(given, True, SEED)
    return [torch.from_dlpack(t) for t in (y, *s.backward(pending, [dy]))]


def run(s: Any, c: Case, g: Given) -> list[torch.Tensor]:
    rest = [] if c.asked == "omitted" else [g.q_places]
    rest += [] if c.kept in ("all", "omitted") else [g.kv_places]
    rest += [torch.tensor([c.batch, c.q_len, c.kv_len])]
    rest += [] if g.mask is None else [g.mask]
    return fed(s, [g.q, g.k, g.v, *rest], g.dy)


def drawn(c: Case) -> torch.Tensor:
    """What a Dropout of that name keeps of all probabilities."""
    node = helper.make_node("Dropout", ["q", "ratio", "training"], ["y"], name="drop")
    model = model_of(node, dataclasses.replace(c, dtype=torch.float32), {"q": c.scores}, c.scores)
    s = _core.ModuleSession.from_bytes(model.SerializeToString(), ["q"], _core.SessionOptions())
    (y,), _ = s.forward([torch.ones(c.scores)], True, SEED)
    return torch.from_dlpack(y) != 0


def seen_by_position(c: Case) -> torch.Tensor:
    ahead = torch.arange(c.kv_len) - torch.arange(c.q_len)[:, None]
    seen = torch.ones(c.q_len, c.kv_len, dtype=torch.bool)
    if c.causal:
        seen &= ahead <= 0
    if c.windows[0] >= 0:
        seen &= ahead >= -c.windows[0]
    if c.windows[1] >= 0:
        seen &= ahead <= c.windows[1]
    return seen


def present(c: Case, g: Given) -> torch.Tensor:
    found = torch.zeros(c.batch * c.kv_len, dtype=torch.bool)
    found[g.kv_places] = True
    return found.view(c.batch, c.kv_len)


def added_to_scores(c: Case, g: Given) -> torch.Tensor:
    """-inf where a key is not seen, for all scores."""
    seen = present(c, g)[:, None, None, :] & seen_by_position(c)
    total = torch.zeros(c.scores, dtype=torch.float64)
    if g.mask is not None and c.mask == "chosen":
        seen = seen & g.mask
    elif g.mask is not None:
        total = total + g.mask
    return total.masked_fill(~seen.expand(c.scores), -np.inf)


def in_torch(c: Case, g: Given) -> list[torch.Tensor]:
    """Query by query, each with the keys of its item."""
    q, k, v = (x.double().requires_grad_() for x in (g.q, g.k, g.v))
    mask = g.mask.double().requires_grad_() if "mask" in c.wanted and g.mask is not None else g.mask
    item, position = g.q_places // max(c.q_len, 1), g.q_places % max(c.q_len, 1)
    group = c.q_heads // c.kv_heads

    def keys(rows: torch.Tensor, size: int) -> torch.Tensor:
        whole = torch.zeros(c.batch * c.kv_len, rows.shape[1], dtype=torch.float64).index_copy(0, g.kv_places, rows)
        heads = whole.view(c.batch, c.kv_len, c.kv_heads, size)[item]
        return heads.transpose(1, 2).repeat_interleave(group, 1)

    scores = torch.einsum("nhd,nhkd->nhk", q.view(-1, c.q_heads, c.size), keys(k, c.size)) * float(np.float32(0.4))
    if c.softcap:
        scores = torch.tanh(scores / c.softcap) * c.softcap
    scores = scores + added_to_scores(c, dataclasses.replace(g, mask=mask))[item, :, position]
    dead = (scores == -np.inf).all(-1, keepdim=True)
    p = torch.where(dead, 0.0, torch.softmax(scores.masked_fill(dead, 0.0), -1))
    there = present(c, g)[item][:, None, :].double()
    if c.unseen == "all":
        p = p + dead * there / there.sum(-1, keepdim=True).clamp(min=1)
    ratio = float(np.float32(c.ratio)) if c.training else 0.0
    y = torch.einsum("nhk,nhkd->nhd", p * drawn(c)[item, :, position] / (1 - ratio), keys(v, c.v_size))
    if c.unseen == "nan" and c.kv_len:
        y = y.masked_fill(dead, np.nan)
    y = y.reshape(len(q), c.q_heads * c.v_size)
    wanted = [q, k, v, mask][: len(c.wanted)]
    return [y.detach(), *torch.autograd.grad(y, wanted, g.dy.double(), materialize_grads=True)]


def in_dense(c: Case, g: Given) -> list[torch.Tensor]:
    """Rows of what FusedAttention gives for all of them; each query is asked for once."""

    def whole(rows: torch.Tensor, places: torch.Tensor, length: int) -> torch.Tensor:
        found = torch.zeros(c.batch * length, rows.shape[1], dtype=rows.dtype)
        found[places] = rows
        return found.view(c.batch, length, rows.shape[1])

    hidden = added_to_scores(c, g).to(c.dtype)
    mask = hidden > -np.inf if c.mask == "chosen" else hidden
    q, dy = (whole(x, g.q_places, c.q_len) for x in (g.q, g.dy))
    k, v = (whole(x, g.kv_places, c.kv_len) for x in (g.k, g.v))
    found = fed(session(dense(c)), [q, k, v, mask], dy)
    places = [g.q_places, g.q_places, g.kv_places, g.kv_places]
    return [x.reshape(-1, x.shape[-1])[rows] for x, rows in zip(found, places, strict=True)]


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], dtype: torch.dtype) -> None:
    tolerance = 2e-5 if dtype == torch.float32 else 1e-11
    for a, b in zip(found, expected, strict=True):
        largest = float(b.abs().nan_to_num().max()) if b.numel() else 0.0
        torch.testing.assert_close(a.to(b.dtype), b, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(x.numpy().tobytes() == y.numpy().tobytes() for x, y in zip(a, b, strict=True))


def made_up(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
    axes = pick("b..k", "b.qk", "..qk", "bhqk", ".hqk", "qk", "k", "b.q.", "h.k")
    q_len = pick(0, 1, 2, 7, 65, 130)
    kv_heads = pick(1, 2, 3)
    return Case(
        kept=pick(*LENGTHS),
        asked=pick(*QUERIES),
        mask=pick(*MASKS),
        mask_axes=axes,
        batch=pick(0, 1, 2, 5),
        q_len=q_len,
        kv_len=pick(0, 1, 3, 17, 65, 257, 300, q_len, q_len, q_len),
        q_heads=kv_heads * pick(1, 2),
        kv_heads=kv_heads,
        size=pick(1, 3, 8, 17),
        v_size=pick(1, 4, 9, 16),
        ratio=pick(0.0, 0.1, 0.5, 0.9),
        training=pick(True, True, True, False),
        causal=pick(False, False, True),
        windows=pick((-1, -1), (-1, -1), (2, -1), (3, 1), (-1, 0)),
        softcap=pick(0.0, 0.0, 2.0),
        unseen=pick("zero", "all"),
        dtype=pick(torch.float32, torch.float32, torch.float64),
        seed=seed,
    )


def check(c: Case) -> None:
    given = tensors(c)
    model = ragged(c)
    found = run(session(model, wanted=c.wanted), c, given)
    assert_close(found, in_torch(c, given), c.dtype)
    if c.unseen != "all" and c.asked != "repeated":
        assert_close(found[:4], in_dense(c, given), c.dtype)
    assert same_bits(found, run(session(model, 3, c.wanted), c, given))


@pytest.mark.parametrize("seed", range(70))
def test_as_all_rows_and_as_torch(seed: int) -> None:
    check(made_up(seed))


@pytest.mark.parametrize("unseen", ["zero", "nan", "all"])
@pytest.mark.parametrize("kept", ["right", "scattered", "none"])
def test_a_query_that_sees_nothing(kept: str, unseen: str) -> None:
    """The gradients of one that gives no number are none, either."""
    c = Case(kept, "omitted", "chosen", "b.qk", unseen=unseen, seed=3)
    given = tensors(c)
    assert given.mask is not None
    given.mask[1, 0, 2:5] = False
    found, expected = run(session(ragged(c)), c, given), in_torch(c, given)
    assert_close(found[: 1 if unseen == "nan" else 4], expected[: 1 if unseen == "nan" else 4], c.dtype)
    if unseen != "all":
        assert_close(found, in_dense(c, given), c.dtype)


def test_finite_masks_make_what_is_hidden_alike() -> None:
    """Where all scores are lowest, softmax is uniform, as if `unseen` were "all"."""
    c = Case("right", "keys", "lowest", "b.qk", q_len=9, ratio=0.0)
    given = tensors(c)
    assert given.mask is not None
    given.mask[:] = torch.finfo(torch.float32).min
    all_hidden = dataclasses.replace(c, mask="chosen", unseen="all")
    chosen = dataclasses.replace(given, mask=torch.zeros(c.mask_shape, dtype=torch.bool))
    y, _, _, dv = run(session(ragged(c)), c, given)
    other_y, _, _, other_dv = run(session(ragged(all_hidden)), all_hidden, chosen)
    assert_close([y, dv], [other_y, other_dv], c.dtype)


@pytest.mark.parametrize("mask", MASKS[:3])
def test_finite_differences(mask: str) -> None:
    c = Case("scattered", "shuffled", mask, ".hqk", dtype=torch.float64, ratio=0.4, softcap=3.0, seed=5)
    s, given = session(ragged(c), wanted=c.wanted), tensors(c)
    _, *gradients = run(s, c, given)
    rng = np.random.default_rng(1)
    for name, gradient in zip(c.wanted, gradients, strict=True):
        x = getattr(given, name)
        way = torch.from_numpy(rng.standard_normal(x.shape))
        ends = []
        for step in (1e-5, -1e-5):
            y = run(s, c, dataclasses.replace(given, **{name: x + step * way}))[0]
            ends.append(float((y * given.dy).sum()))
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float((gradient * way).sum()), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_in_standard_operators(seed: int) -> None:
    """Each query has a copy of its keys there."""
    c = dataclasses.replace(made_up(seed + 1000), batch=3, training=False, dtype=torch.float64)
    given = tensors(c)
    model = backpass.grad(ragged(c), wrt=c.wanted, seeds=True)
    assert "RaggedAttentionGrad" not in [n.op_type for n in model.graph.node]
    feeds = {**vars(given), "extents": torch.tensor([c.batch, c.q_len, c.kv_len]), "y_grad": given.dy}
    names = [i.name for i in model.graph.input]
    s = backpass.InferenceSession(model.SerializeToString())
    found = s.run(["y", *(f"{n}_grad" for n in c.wanted)], {n: feeds[n].numpy() for n in names})
    assert_close([torch.from_numpy(x) for x in found], in_torch(c, given), c.dtype)


def test_extents_may_vary() -> None:
    c = Case("scattered", "shuffled", "chosen", "b..k")
    model = ragged(c, symbolic=True)
    for i, d in enumerate(model.graph.input[-1].type.tensor_type.shape.dim):
        d.dim_param = ("batch", "one", "two", "t")[i]
    s = session(model)
    for batch, q_len, kv_len in [(3, 7, 9), (1, 130, 3), (6, 4, 70), (0, 4, 4)]:
        other = dataclasses.replace(c, batch=batch, q_len=q_len, kv_len=kv_len)
        given = tensors(other)
        assert_close(run(s, other, given), in_torch(other, given), c.dtype)


def test_half_precision() -> None:
    c = Case("right", "keys", "added", "b..k", q_len=9, ratio=0.0)
    given, s = tensors(c), session(ragged(dataclasses.replace(c, dtype=torch.float32)))
    expected = run(s, c, given)
    model = ragged(c)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    assert given.mask is not None
    halves = {n: getattr(given, n).half() for n in ("q", "k", "v", "dy", "mask")}
    found = run(session(model), c, dataclasses.replace(given, **halves))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("q_places", "kv_places", "extents", "message"),
    [
        ([0, 5, -1], None, None, r"q_places\[2\]: got -1, expected a place in \[0, 8\)"),
        ([0, 8, 1], None, None, r"q_places\[1\]: got 8, expected a place in \[0, 8\)"),
        (None, [0, 10], None, r"kv_places\[1\]: got 10, expected a place in \[0, 10\)"),
        (None, [4, 4], None, r"kv_places\[1\]: got 4 after 4, expected ascending places"),
        (None, [4, 3], None, r"kv_places\[1\]: got 3 after 4, expected ascending places"),
        (None, None, [-1, 4, 5], r"extents\[0\]: got -1, expected an extent of a tensor"),
        (None, None, [2, 1 << 40, 1 << 40], r"extents\[2\]: got \d+, expected an extent of a tensor"),
        (None, None, [3, 4, 5], r"shape of mask: got \[2,1,4,5\], expected to broadcast to \[3,4,4,5\]"),
        (None, None, [2, 4, 0], r"shape of mask: got \[2,1,4,5\], expected to broadcast to \[2,4,4,0\]"),
    ],
)
def test_what_does_not_fit_is_refused(q_places: Any, kv_places: Any, extents: Any, message: str) -> None:
    c = Case("right", "some", "chosen", "b.qk", batch=2, q_len=4, kv_len=5)
    q_places, kv_places, extents = q_places or [0, 5, 1], kv_places or [0, 9], extents or [2, 4, 5]
    q, kv = len(q_places), len(kv_places)
    given = [torch.zeros(q, 20), torch.zeros(kv, 10), torch.zeros(kv, 6)]
    given += [torch.tensor(x) for x in (q_places, kv_places, extents)] + [torch.ones(c.mask_shape, dtype=torch.bool)]
    with pytest.raises(backpass.InvalidInput, match=r"^\[backpass.RaggedAttention 'one'\] " + message):
        session(ragged(c, symbolic=True)).forward(given, True, SEED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_num_heads": 3}, "attribute 'q_num_heads': got 3, expected a positive multiple of 'kv_num_heads' 2"),
        ({"kv_num_heads": 0}, "attribute 'kv_num_heads': got 0, expected a positive number"),
        ({"kv_num_heads": 4}, "extent 1 of input 1: got 10, expected a multiple of 'kv_num_heads' 4"),
        ({"unseen": "some"}, "attribute 'unseen': got 'some', expected 'zero', 'nan' or 'all'"),
        ({"left_window_size": -2}, "attribute 'left_window_size': got -2, expected -1 or more"),
        ({"q_num_heads": 10}, "head sizes of q and k"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    model = ragged(Case())
    node = model.graph.node[0]
    kept = [a for a in node.attribute if a.name not in changes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(n, v) for n, v in changes.items())])
    with pytest.raises(backpass.InvalidInput, match=message):
        session(model)


def test_rows_without_places_are_all() -> None:
    c = Case("omitted", "omitted")
    given = tensors(c)
    with pytest.raises(backpass.InvalidInput, match="q_places: got none with 20 rows, expected 21 rows as extents say"):
        run(session(ragged(c, symbolic=True)), c, dataclasses.replace(given, q=given.q[1:], dy=given.dy[1:]))


def without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.ClearField("shape")
    return model


def test_without_extents_it_is_refused() -> None:
    c = Case("right", "all", batch=2, q_len=4, kv_len=5)
    model = without_shapes(ragged(c))
    del model.graph.node[0].input[3:]
    given = [torch.zeros(8, 20), torch.zeros(10, 10), torch.zeros(10, 6)]
    del model.graph.input[3:]
    with pytest.raises(backpass.InvalidInput, match=r"RaggedAttention 'one'\]"):
        session(model).forward(given, False, SEED)


def test_shapes_need_not_be_known() -> None:
    c = Case("right", "some", ratio=0.0, seed=3)
    given = tensors(c)
    values = [given.q, given.k, given.v, given.q_places, given.kv_places, torch.tensor([c.batch, c.q_len, c.kv_len])]
    results = [fed(session(model), values, given.dy) for model in (ragged(c), without_shapes(ragged(c)))]
    for known, unknown in zip(*results, strict=True):
        torch.testing.assert_close(unknown, known, atol=1e-5, rtol=1e-5)
