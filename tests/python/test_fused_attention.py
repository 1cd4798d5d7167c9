"""Attention with dropout as one operator, against the parts, which draw the same numbers, and torch, given the mask."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import _core, artifacts
from backpass.api import CheckpointState, Module
from onnx import TensorProto, helper
from torch import nn
from training_networks import export

KINDS = {torch.float32: TensorProto.FLOAT, torch.float64: TensorProto.DOUBLE}
FORMS = ("bare", "added", "chosen", "safe", "lowered", "raised")
OF_BOOLEANS = ("chosen", "lowered", "raised")
SEED = 11


@dataclasses.dataclass(frozen=True)
class Case:
    """`form`: what is done to scores before softmax. `moved`: heads come from behind lengths, as in modules."""

    form: str = "bare"
    batch: int = 2
    heads: int = 3
    queries: int = 5
    keys: int = 7
    size: int = 4
    v_size: int = 4
    ratio: float = 0.3
    training: bool = True
    moved: bool = False
    dtype: torch.dtype = torch.float32
    scale: float = 0.4
    mask_shape: tuple[int, ...] = ()
    seed: int = 0

    @property
    def extents(self) -> list[tuple[int, ...]]:
        """Of q, k, v and y."""
        sizes = [
            (self.queries, self.size),
            (self.keys, self.size),
            (self.keys, self.v_size),
            (self.queries, self.v_size),
        ]
        if self.moved:
            return [(self.batch, length, self.heads, size) for length, size in sizes]
        lead = (self.batch, self.heads) if self.heads else (self.batch,)
        return [(*lead, *s) for s in sizes]

    @property
    def scores(self) -> tuple[int, ...]:
        return (
            (self.batch, self.heads, self.queries, self.keys) if self.heads else (self.batch, self.queries, self.keys)
        )


def constant(name: str, value: Any, dtype: Any) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array(value, dtype), name)


def written(c: Case, symbolic: bool = False) -> onnx.ModelProto:
    """The parts, with a Dropout called 'drop'."""
    real = np.float32 if c.dtype == torch.float32 else np.float64
    kind = KINDS[c.dtype]
    rank = len(c.scores)
    swap = [*range(rank - 2), rank - 1, rank - 2]
    nodes, names = [], list("qkv")
    if c.moved:
        nodes += [helper.make_node("Transpose", [n], [f"{n}h"], perm=[0, 2, 1, 3]) for n in names]
        names = [f"{n}h" for n in names]
    q, k, v = names
    nodes += [
        helper.make_node("Transpose", [k], ["kt"], perm=swap),
        helper.make_node("MatMul", [q, "kt"], ["s0"]),
        helper.make_node("Mul", ["s0", "scale"], ["s1"]),
    ]
    soft = lambda x, y: helper.make_node("Softmax", [x], [y], axis=-1)  # noqa: E731
    if c.form == "bare":
        nodes += [soft("s1", "p")]
    elif c.form == "added":
        nodes += [helper.make_node("Add", ["s1", "m"], ["s2"]), soft("s2", "p")]
    elif c.form == "chosen":
        nodes += [helper.make_node("Where", ["m", "s1", "low"], ["s2"]), soft("s2", "p0")]
        nodes += [helper.make_node("Where", ["m", "p0", "zero"], ["p"])]
    elif c.form in ("lowered", "raised"):
        chosen = ["m", "zero", "low"] if c.form == "lowered" else ["m", "low", "zero"]
        nodes += [helper.make_node("Where", chosen, ["added"]), helper.make_node("Add", ["added", "s1"], ["s2"])]
        nodes += [soft("s2", "p")]
    else:
        nodes += [
            helper.make_node("Add", ["s1", "m"], ["s2"]),
            helper.make_node("ReduceMax", ["s2", "last"], ["most"], keepdims=1),
            helper.make_node("Equal", ["most", "none"], ["dead"]),
            helper.make_node("Where", ["dead", "zero", "s2"], ["s3"]),
            soft("s3", "p0"),
            helper.make_node("Where", ["dead", "zero", "p0"], ["p"]),
        ]
    nodes += [
        helper.make_node("Dropout", ["p", "ratio", "training"], ["pd"], name="drop"),
        helper.make_node("MatMul", ["pd", v], ["yh" if c.moved else "y"]),
    ]
    if c.moved:
        nodes += [helper.make_node("Transpose", ["yh"], ["y"], perm=[0, 2, 1, 3])]
    shapes = [list(s) for s in c.extents]
    if symbolic:
        axis = 1 if c.moved else -2
        for shape, name in zip(shapes, ("s", "t", "t", "s"), strict=True):
            shape[0], shape[axis] = "n", name
    inputs = [helper.make_tensor_value_info(n, kind, s) for n, s in zip("qkv", shapes, strict=False)]
    if c.form != "bare":
        extents = [{c.queries: "s", c.keys: "t"}[d] if symbolic and d > 1 else d for d in c.mask_shape]
        inputs += [helper.make_tensor_value_info("m", TensorProto.BOOL if c.form in OF_BOOLEANS else kind, extents)]
    initializers = [
        constant("scale", c.scale, real), constant("low", np.finfo(real).min, real), constant("zero", 0, real),
        constant("none", -np.inf, real), constant("last", [-1], np.int64), constant("ratio", c.ratio, np.float32),
        constant("training", c.training, np.bool_),
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info("y", kind, shapes[3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def session(model: onnx.ModelProto, wanted: Any = "qkv", threads: int = 1, fused: bool = True, **more: Any) -> Any:
    options = _core.SessionOptions()
    options.num_threads = threads
    options.max_memory = more.pop("max_memory", 0)
    options.disabled_passes = [] if fused else ["fuse_attention"]
    return _core.ModuleSession.from_bytes(model.SerializeToString(), list(wanted), options, **more)


def tensors(c: Case) -> list[torch.Tensor]:
    """q, k, v, the gradient of y, and the mask if there is one."""
    rng = np.random.default_rng(c.seed)
    found = [torch.from_numpy(rng.standard_normal(s)).to(c.dtype) for s in c.extents]
    if c.form == "bare":
        return found
    mask = rng.standard_normal(c.mask_shape)
    if c.form in OF_BOOLEANS:
        return [*found, torch.from_numpy(mask > -0.3)]
    mask[mask < -0.8] = -np.inf
    if c.form == "added" and mask.size:
        mask[..., 0] = 0  # everyone sees a key
    return [*found, torch.from_numpy(mask).to(c.dtype)]


def run(s: Any, c: Case, given: list[torch.Tensor], seed: int = SEED) -> list[torch.Tensor]:
    """y and the gradients."""
    q, k, v, dy, *mask = given
    (y,), pending = s.forward([q, k, v, *mask], True, seed)
    return [torch.from_dlpack(t) for t in (y, *s.backward(pending, [dy]))]


def is_fused(s: Any) -> bool:
    return any(r.pass_name == "fuse_attention" for r in s.pass_reports())


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], dtype: torch.dtype) -> None:
    tolerance = 2e-5 if dtype == torch.float32 else 1e-11
    for a, b in zip(found, expected, strict=True):
        largest = float(b.abs().nan_to_num().max()) if b.numel() else 0.0
        torch.testing.assert_close(a.to(b.dtype), b, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)


def drawn(c: Case, seed: int = SEED) -> torch.Tensor:
    """What a Dropout of that name keeps of all probabilities."""
    shape = c.scores
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y"], name="drop")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [constant("ratio", c.ratio, np.float32), constant("training", c.training, np.bool_)],
    )
    s = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]), "x")
    (y,), _ = s.forward([torch.ones(shape)], True, seed)
    return torch.from_dlpack(y) != 0


def in_torch(c: Case, given: list[torch.Tensor], kept: torch.Tensor) -> list[torch.Tensor]:
    q, k, v = (x.double().requires_grad_() for x in given[:3])
    h = [x.transpose(1, 2) if c.moved else x for x in (q, k, v)]
    scores = h[0] @ h[1].transpose(-1, -2) * float(np.float32(c.scale) if c.dtype == torch.float32 else c.scale)
    if c.form == "chosen":
        scores = scores.masked_fill(~given[4], -np.inf)
    elif c.form in OF_BOOLEANS:
        low = given[4] if c.form == "raised" else ~given[4]
        scores = scores + torch.zeros(low.shape).double().masked_fill(low, torch.finfo(c.dtype).min)
    elif c.form != "bare":
        scores = scores + given[4].double()
    p = torch.softmax(scores, -1)
    if c.form in ("chosen", "safe"):
        dead = (scores == -np.inf).all(-1, keepdim=True)
        p = torch.where(dead, 0.0, torch.softmax(scores.masked_fill(dead, 0.0), -1))
    ratio = float(np.float32(c.ratio)) if c.training else 0.0
    y = (p * kept / (1 - ratio)) @ h[2]
    y = y.transpose(1, 2) if c.moved else y
    return [y.detach(), *torch.autograd.grad(y, [q, k, v], given[3].double())]


def made_up(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
    moved = bool(rng.integers(2))
    heads = pick(1, 2, 3) if moved else pick(0, 1, 2, 3)
    c = Case(
        form=pick(*FORMS),
        batch=pick(0, 1, 2, 3),
        heads=heads,
        queries=pick(0, 1, 2, 5, 33, 64, 130),
        keys=pick(0, 1, 3, 16, 35, 65, 257, 300),
        size=pick(1, 3, 8, 17),
        v_size=pick(1, 4, 9, 16),
        ratio=pick(0.0, 0.1, 0.5, 0.9),
        training=pick(True, True, True, False),
        moved=moved,
        dtype=pick(torch.float32, torch.float32, torch.float64),
        scale=pick(0.125, 0.4, 1.0, -0.3),
        seed=seed,
    )
    full = list(c.scores)
    first = int(rng.integers(len(full) - 1))
    shape = tuple(d if i == len(full) - 1 or rng.integers(2) else 1 for i, d in enumerate(full))[first:]
    return dataclasses.replace(c, mask_shape=shape)


@pytest.mark.parametrize("seed", range(80))
def test_as_its_parts_and_as_torch(seed: int) -> None:
    c = made_up(seed)
    given = tensors(c)
    one = session(written(c))
    assert is_fused(one)
    found = run(one, c, given)
    parts = session(written(c), fused=False)
    assert not is_fused(parts)
    assert_close(found, in_torch(c, given, drawn(c)), c.dtype)
    if c.form != "safe" or c.keys:  # ReduceMax of nothing
        assert_close(found, run(parts, c, given), c.dtype)
    for threads in (2, 3):
        again = run(session(written(c), threads=threads), c, given)
        assert all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_extents_may_vary(form: str, moved: bool) -> None:
    c = Case(form, moved=moved, mask_shape=(5, 7))
    s = session(written(c, symbolic=True))
    assert is_fused(s)
    for batch, queries, keys in [(2, 5, 7), (1, 3, 130), (3, 70, 9)]:
        other = dataclasses.replace(c, batch=batch, queries=queries, keys=keys, mask_shape=(queries, keys))
        given = tensors(other)
        assert_close(run(s, other, given), in_torch(other, given, drawn(other)), c.dtype)


@pytest.mark.parametrize("form", FORMS)
def test_finite_differences(form: str) -> None:
    c = Case(form, dtype=torch.float64, mask_shape=(3, 1, 7), ratio=0.4)
    s, given = session(written(c)), tensors(c)
    _, *gradients = run(s, c, given)
    rng = np.random.default_rng(1)
    for i in range(3):
        way = torch.from_numpy(rng.standard_normal(given[i].shape))
        ends = []
        for step in (1e-5, -1e-5):
            moved = [x + step * way if j == i else x for j, x in enumerate(given)]
            ends.append(float((run(s, c, moved)[0] * given[3]).sum()))
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float((gradients[i] * way).sum()), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_what_is_dropped(ratio: float) -> None:
    """Equal scores and unit vectors as values show the mask itself: that of Dropout, new in every run."""
    c = Case(batch=4, heads=4, queries=61, keys=64, v_size=64, ratio=ratio)
    q, k, _, dy = tensors(c)
    given = [torch.zeros_like(q), k, torch.eye(64).expand(4, 4, 64, 64).contiguous(), dy]
    s = session(written(c))
    masks = []
    for seed in (1, 2):
        y = run(s, c, given, seed)[0] * 64 * (1 - ratio)
        masks.append(y > 0.5)
        assert torch.equal(masks[-1], drawn(c, seed))
        torch.testing.assert_close(y, masks[-1].float(), rtol=1e-5, atol=1e-5)
        rate = 1 - float(masks[-1].double().mean())
        assert abs(rate - ratio) < 4 * (ratio * (1 - ratio) / y.numel()) ** 0.5
    both = float((masks[0] & masks[1]).double().mean())
    assert both == pytest.approx((1 - ratio) ** 2, abs=0.01)


def test_a_query_that_sees_nothing_is_no_number_as_softmax_says() -> None:
    c = Case("added", mask_shape=(2, 1, 5, 7), ratio=0.5)
    given = tensors(c)
    given[4][1, :, 2] = -np.inf
    found, parts = (run(session(written(c), fused=fused), c, given) for fused in (True, False))
    assert torch.isnan(found[0][1, :, 2]).all()
    assert_close(found[:2], parts[:2], c.dtype)
    assert torch.isnan(found[3][1]).all()
    assert torch.isfinite(found[0][0]).all()


def test_a_ratio_of_one_is_refused() -> None:
    c = Case(ratio=1.0)
    with pytest.raises(backpass.InvalidInput, match=r"FusedAttention.*ratio: got 1, expected \[0, 1\)"):
        run(session(written(c)), c, tensors(c))


def test_a_mask_with_a_gradient() -> None:
    """Only all scores together give it: by the parts, which draw the same; a learned one is left alone."""
    c = Case("added", mask_shape=(1, 3, 5, 7))
    given = tensors(c)
    given[4] = given[4].nan_to_num(neginf=-2.0)
    found, parts = (run(session(written(c), "qkvm", fused=fused), c, given) for fused in (True, False))
    assert_close(found, parts, c.dtype)
    assert not is_fused(session(written(c), "qkvm", steady_inputs=["m"]))


def without_dropout(c: Case) -> onnx.ModelProto:
    model = written(c)
    for node in model.graph.node:
        if node.op_type == "Dropout":
            node.op_type = "Identity"
            del node.input[1:]
    return model


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_many_scores_without_dropout(form: str, moved: bool) -> None:
    c = Case(form, heads=2, queries=513, keys=521, size=3, v_size=5, moved=moved, mask_shape=(2, 1, 513, 521))
    given = tensors(c)
    s, parts = session(without_dropout(c)), session(without_dropout(c), fused=False)
    assert is_fused(s)
    assert s.plan(given[:3] + given[4:]).peak_bytes < 0.5 * parts.plan(given[:3] + given[4:]).peak_bytes
    found = run(s, c, given)
    assert_close(found, run(parts, c, given), c.dtype)
    for a, b in zip(found, run(session(without_dropout(c), threads=2), c, given), strict=True):
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


def test_no_numbers_without_dropout() -> None:
    """A query that sees no key gives what Softmax gives of minus infinity, and its gradients."""
    c = Case("added", heads=2, queries=513, keys=521, mask_shape=(2, 1, 513, 521))
    given = tensors(c)
    given[4][:, :, 7] = -np.inf
    found = run(session(without_dropout(c)), c, given)
    assert found[0].isnan().any()
    assert_close(found, run(session(without_dropout(c), fused=False), c, given), c.dtype)


@pytest.mark.parametrize("form", ["lowered", "raised"])
@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min])
def test_blocks_of_queries_that_are_shown_nothing(form: str, lowest: float) -> None:
    """Without a number in any of their probabilities, or with all keys alike."""
    c = Case(form, heads=2, queries=513, keys=521, mask_shape=(2, 1, 513, 521))
    given = tensors(c)
    given[4][1, :, 64:400] = form == "raised"
    models = without_dropout(c)
    next(x for x in models.graph.initializer if x.name == "low").CopyFrom(constant("low", lowest, np.float32))
    assert_close(run(session(models), c, given), run(session(models, fused=False), c, given), c.dtype)


def test_few_scores_without_dropout_stay() -> None:
    assert not is_fused(session(without_dropout(Case())))


def test_less_memory_and_nothing_is_moved() -> None:
    c = Case(batch=4, heads=2, queries=96, keys=96, size=16, v_size=16, moved=True)
    given = tensors(c)
    s, parts = session(written(c)), session(written(c), fused=False)
    assert s.plan(given[:3]).peak_bytes < 0.6 * parts.plan(given[:3]).peak_bytes
    assert "FusedAttentionGrad" in s.graph_text()
    assert "Transpose" not in s.graph_text()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (4, 4)).transpose(1, 2) for part in self.parts[:3])
        shares = torch.softmax(q @ k.transpose(2, 3) / 2 + mask, -1)
        y = nn.functional.dropout(shares, 0.3, self.training) @ v
        return self.parts[3](y.transpose(1, 2).flatten(2))


def test_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training models hold the gradient of the parts, for any runtime: both become one operator when they are read."""
    rng = np.random.default_rng(0)
    x, mask = (rng.standard_normal(s).astype(np.float32) for s in ((3, 6, 16), (3, 1, 6, 6)))
    target = np.zeros((3, 6, 16), np.float32)
    torch.manual_seed(0)
    model = export(Encoder().train(), (x, mask))
    names = [t.name for t in model.graph.initializer if t.name.startswith("parts")]
    artifacts.generate_artifacts(
        model, requires_grad=names, loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )  # fmt: skip
    results = []
    for disabled in ("fuse_attention", ""):
        monkeypatch.setenv("BACKPASS_DISABLE_PASSES", disabled)
        backpass.set_seed(3)
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
        assert ("FusedAttentionGrad" in str(module.plan(x, mask, target))) == (not disabled)
        module.train()
        steps = []
        for _ in range(2):
            loss = module(x, mask, target)
            steps += [np.array(loss), *(np.array(p.grad) for _, p in state.parameters)]
            module.lazy_reset_grad()
        module.eval()
        results.append([torch.from_numpy(a) for a in (*steps, np.array(module(x, mask, target)))])
    assert_close(*results, torch.float32)


def test_derivatives_in_standard_operators_draw_the_same() -> None:
    """y is linear in v: <dy, y> = <dv, v> holds for one mask, and for no other."""
    kind = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(n, kind, (2, 3, 5, 4)) for n in "qkv"]
    names = ["q", "k", "v", "", "", "", "", "ratio", "training"]
    node = helper.make_node("FusedAttention", names, ["y"], domain="backpass", name="one", stream="drop")
    total = helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)
    initializers = [constant("ratio", 0.5, np.float32), constant("training", True, np.bool_)]
    outputs = [helper.make_tensor_value_info("loss", kind, ())]
    graph = helper.make_graph([node, total], "g", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("backpass", 1)]
    model = backpass.grad(helper.make_model(graph, opset_imports=opsets), wrt=["q", "k", "v"])
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 5, 4)).astype(np.float32) for _ in range(3))
    given = {"q": q, "k": k, "v": v}
    s = backpass.InferenceSession(model.SerializeToString())
    names, losses = ["loss", "v_grad"], set()
    for _ in range(3):
        values = dict(zip(names, s.run(names, given), strict=True))
        assert float(values["loss"]) == pytest.approx(float((values["v_grad"] * v).sum()), rel=1e-4)
        losses.add(float(values["loss"]))
    assert len(losses) == 3


def lowered(lowest: float) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3, 5, 4)) for n in "qkv"]
    inputs.append(helper.make_tensor_value_info("m", TensorProto.BOOL, (5, 5)))
    node = helper.make_node("FusedAttention", [*"qkvm"], ["y"], domain="backpass", name="one", lowest=lowest)
    product = helper.make_node("Mul", ["y", "q"], ["w"])
    total = helper.make_node("ReduceSum", ["w"], ["loss"], keepdims=0)
    outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, ())]
    graph = helper.make_graph([node, product, total], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("backpass", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def test_derivatives_in_standard_operators_where_a_mask_adds_the_lowest() -> None:
    """A query that is shown nothing has gradients, too."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 5, 4)).astype(np.float32) for _ in range(3))
    mask = np.tril(np.ones((5, 5), np.bool_), -1)
    model = lowered(float(np.finfo(np.float32).min))
    standard = backpass.InferenceSession(backpass.grad(model, wrt=["q", "k", "v"]).SerializeToString())
    wanted = standard.run(["loss", "q_grad", "k_grad", "v_grad"], {"q": q, "k": k, "v": v, "m": mask})
    s = session(model)
    (loss,), pending = s.forward([torch.from_numpy(x) for x in (q, k, v, mask)], True, SEED)
    found = [torch.from_dlpack(t) for t in (loss, *s.backward(pending, [torch.ones(())]))]
    assert_close(found, [torch.from_numpy(np.asarray(w)) for w in wanted], torch.float32)
    assert float(found[2][:, :, :, 0].abs().max()) > 0


def test_a_lowest_number_that_is_none_is_refused() -> None:
    with pytest.raises(backpass.InvalidInput, match=r"FusedAttention.*attribute 'lowest': got -5"):
        session(lowered(-5.0))
