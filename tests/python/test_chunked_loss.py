"""Losses over many classes, computed some rows at a time: against torch in float64, the unfused graph, other numbers of
threads and lesser machines."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from backpass import InferenceSession, InvalidInput, ORTModule, _core, api, artifacts
from backpass.ortmodule import RuntimeOptions
from onnx import TensorProto, helper, numpy_helper

IGNORED = -100
FUSED = "some rows at a time"


@dataclasses.dataclass
class Head:
    """A head and what it is fed with."""

    rows: int
    features: int
    classes: int
    density: float = 1.0  # of labels that count
    classes_first: bool = True
    biased: bool = True
    weighted: bool = False
    reduction: str = "mean"
    smoothing: float = 0.0
    narrow: bool = False  # scores by bfloat16, as torch.autocast has them
    dtype: torch.dtype = torch.float32
    label_type: torch.dtype = torch.int64
    first_classes: float = 0.0  # added to the scores of some hundreds of them
    seed: int = 0

    def feeds(self) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64).to(self.dtype)

        weight = normal(self.classes, self.features)
        labels = torch.randint(0, self.classes, (self.rows,), generator=random).to(self.label_type)
        labels[torch.rand(self.rows, generator=random) >= self.density] = IGNORED
        feeds = {"x": normal(self.rows, self.features), "w": weight if self.classes_first else weight.T.contiguous()}
        if self.biased:
            feeds["b"] = normal(self.classes)
            feeds["b"][:400] += self.first_classes
        feeds["l"] = labels
        if self.weighted:
            feeds["c"] = normal(self.classes).abs()
        return feeds

    def flow(self, factor: float) -> torch.Tensor:
        """What flows back to the loss."""
        if self.reduction != "none":
            return torch.tensor(factor, dtype=self.dtype)
        random = torch.Generator().manual_seed(self.seed + 1)
        flow = torch.randn(self.rows, generator=random, dtype=torch.float64).to(self.dtype)
        return flow * (torch.rand(self.rows, generator=random) < 0.8)

    def model(self, symbolic: bool = True) -> bytes:
        made = helper.make_node
        nodes, x, right, bias = [], "x", "w", "b"
        if self.narrow:
            x, right, bias = "x16", "w16", "b16"
            nodes = [made("Cast", [n], [n + "16"], to=TensorProto.BFLOAT16) for n in self.wanted]
        if self.classes_first:
            nodes.append(made("Transpose", [right], ["wt"], perm=[1, 0]))
            right = "wt"
        nodes.append(made("MatMul", [x, right], ["p"], name="head"))
        scores = "p"
        if self.biased:
            nodes.append(made("Add", ["p", bias], ["s"]))
            scores = "s"
        if self.narrow:
            nodes.append(made("Cast", [scores], ["wide"], to=TensorProto.FLOAT))
            scores = "wide"
        kind = TensorProto.FLOAT if self.dtype == torch.float32 else TensorProto.DOUBLE
        nodes += (
            self.loss(scores, kind) if self.smoothing else [self.plain_loss("SoftmaxCrossEntropyLoss", scores, "y")]
        )
        infos = []
        for name, tensor in self.feeds().items():
            each = helper.np_dtype_to_tensor_dtype(torch.empty(0, dtype=tensor.dtype).numpy().dtype)
            shape = [*tensor.shape] if name not in "xl" or not symbolic else ["n", *tensor.shape[1:]]
            infos.append(helper.make_tensor_value_info(name, each, shape))
        rows = ["n" if symbolic else self.rows] if self.reduction == "none" else []
        graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("y", kind, rows)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]).SerializeToString()

    def plain_loss(self, op: str, scores: str, result: str, reduction: str = "") -> Any:
        how = {"reduction": reduction or self.reduction, "ignore_index": IGNORED}
        return helper.make_node(op, [scores, "l", *(["c"] if self.weighted else [])], [result], name="loss", **how)

    def loss(self, scores: str, kind: int) -> list[Any]:
        """With label smoothing, written as the exporters for PyTorch write it."""

        def constant(name: str, value: float, kind: int = kind) -> Any:
            tensor = helper.make_tensor(name, kind, [], [value])
            return helper.make_node("Constant", [], [name], value=tensor)

        label_kind = TensorProto.INT64 if self.label_type == torch.int64 else TensorProto.INT32
        made = helper.make_node
        nodes = [
            made("Constant", [], ["axis"], value_ints=[1]),
            constant("zero", 0.0),
            constant("one", 1.0),
            constant("kept", 1 - self.smoothing),
            constant("share", self.smoothing / self.classes),
            constant("none", IGNORED, label_kind),
            constant("first", 0, label_kind),
            made("LogSoftmax", [scores], ["log"], axis=1),
            self.plain_loss("NegativeLogLikelihoodLoss", "log", "hard", "none"),
            made("Equal", ["l", "none"], ["ignored"]),
        ]
        if self.weighted:
            nodes.append(made("Mul", ["log", "c"], ["each"]))
        nodes += [
            made("ReduceSum", ["each" if self.weighted else "log", "axis"], ["sum"], keepdims=0),
            made("Neg", ["sum"], ["minus"]),
            made("Where", ["ignored", "zero", "minus"], ["soft"]),
            made("Mul", ["hard", "kept"], ["a"]),
            made("Mul", ["soft", "share"], ["b_"]),
            made("Add", ["a", "b_"], ["y" if self.reduction == "none" else "rows"]),
        ]
        if self.reduction != "none":
            nodes.append(made("ReduceSum", ["rows"], ["y" if self.reduction == "sum" else "all"], keepdims=0))
        if self.reduction == "mean":
            if self.weighted:
                nodes.append(made("Where", ["ignored", "first", "l"], ["known"]))
                nodes.append(made("Gather", ["c", "known"], ["picked"], axis=0))
            nodes.append(made("Where", ["ignored", "zero", "picked" if self.weighted else "one"], ["counts"]))
            nodes.append(made("ReduceSum", ["counts"], ["mass"], keepdims=0))
            nodes.append(made("Div", ["all", "mass"], ["y"]))
        return nodes

    @property
    def wanted(self) -> list[str]:
        return ["x", "w", *(["b"] if self.biased else [])]

    def session(self, threads: int = 1, fused: bool = True, **how: Any) -> Any:
        options = _core.SessionOptions()
        options.num_threads = threads
        options.verify_passes = True
        if not fused:
            options.disabled_passes = ["chunk_loss"]
        session = _core.ModuleSession.from_bytes(self.model(**how), self.wanted, options)
        assert (FUSED in "\n".join(session.rewrites())) == fused
        return session

    def run(self, threads: int = 1, fused: bool = True, flow: float = 1.0, **how: Any) -> list[np.ndarray]:
        """The loss and the gradients."""
        session = self.session(threads, fused, **how)
        (loss,), kept = session.forward(list(self.feeds().values()), True)
        gradients = session.backward(kept, [self.flow(flow)])
        return [torch.from_dlpack(t).numpy() for t in (loss, *gradients)]

    def expected(self, flow: float = 1.0) -> list[np.ndarray]:
        return [t.detach().numpy() for t in self.differentiated(flow)[:-1]]

    def differentiated(self, flow: float) -> list[torch.Tensor]:
        """The loss, the gradients and that of the scores, by torch in float64."""
        feeds = self.read_feeds()
        leaves = [feeds[name].requires_grad_() for name in self.wanted]
        weight = feeds["w"].T if self.classes_first else feeds["w"]
        scores = feeds["x"] @ weight + feeds.get("b", torch.zeros(()))
        how: dict[str, Any] = {"reduction": self.reduction, "label_smoothing": self.smoothing}
        loss = torch.nn.functional.cross_entropy(scores, feeds["l"], feeds.get("c"), ignore_index=IGNORED, **how)
        return [loss, *torch.autograd.grad(loss, [*leaves, scores], self.flow(flow).double())]

    def read_feeds(self) -> dict[str, torch.Tensor]:
        """As they are after they were narrowed."""
        feeds = self.feeds()
        if self.narrow:
            feeds |= {name: feeds[name].bfloat16() for name in self.wanted}
        return {name: t.double() if t.is_floating_point() else t.long() for name, t in feeds.items()}

    def rounded(self, flow: float = 1.0) -> list[np.ndarray]:
        """By how much at most bfloat16 changes the loss and the gradients of a narrow head.

        bfloat16 has 8 bits: rounding changes a number by up to U = 2^-8 of it. The loss and the weight's gradient are
        float32 from beginning to end, as are sums; gradients of x and the bias are rounded once, when all is added up:
        U |result|. Where the processor multiplies bfloat16, gradients of scores, s, are rounded before that, as factors
        of the products s w and s' x (not of the bias's sum): each term changes by up to U of itself, which is
        U |s| |w| and U |s|' |x| for their sum, more than U |result| as far as terms cancel. The rounding after it adds
        U of that once more."""
        u = 2.0**-8
        loss, dx, _, *db, scores = self.differentiated(flow)
        x, w = (self.read_feeds()[name].abs() for name in "xw")
        s = scores.abs() if multiplies_bfloat16() else torch.zeros_like(scores)
        dx_terms = u * (s @ (w if self.classes_first else w.T))
        dw_terms = u * (s.T @ x if self.classes_first else x.T @ s)
        bounds = [torch.zeros_like(loss), dx_terms * (1 + u) + u * dx.abs(), dw_terms, *(u * b.abs() for b in db)]
        return [bound.detach().numpy() for bound in bounds]

    def assert_close(
        self, found: list[np.ndarray], wanted: list[np.ndarray], rounded: list[np.ndarray] | None = None
    ) -> None:
        """In units of the largest element: where terms cancel, the rest is as inexact as they were. Beside that, by
        what is `rounded`."""
        exact = 5e-6 if self.dtype == torch.float32 else 1e-13
        for a, b, more in zip(found, wanted, rounded or [0.0] * len(found), strict=True):
            scale = max(float(np.abs(np.nan_to_num(b)).max(initial=0)), 1e-30)
            assert np.array_equal(np.isnan(a), np.isnan(b))
            excess = np.nan_to_num(np.abs(a - b)) - more
            assert float(excess.max(initial=0)) <= exact * scale

    def assert_alike(self, found: list[np.ndarray], unfused: list[np.ndarray]) -> None:
        """Written out, scores of narrow heads are rounded, too."""
        scales = [max(float(np.abs(np.nan_to_num(b)).max(initial=0)), 1e-30) for b in unfused]
        rounded = [np.full(b.shape, 2.0**-4 * scale) for b, scale in zip(unfused, scales, strict=True)]
        self.assert_close(found, unfused, rounded if self.narrow else None)


def multiplies_bfloat16() -> bool:
    """Whether products of bfloat16 are the processor's own."""
    about = Path("/proc/cpuinfo")
    return "BACKPASS_MAX_ISA" not in os.environ and about.exists() and "avx512_bf16" in about.read_text()


def drawn(seed: int) -> Head:
    random = np.random.default_rng(seed)
    dtype = torch.float64 if random.random() < 0.25 else torch.float32
    return Head(
        rows=int(random.choice([0, 1, 5, 17, 33, 65, 200, 320, 433, 700])),
        features=int(random.integers(1, 50)),
        classes=int(random.integers(2048, 5000)),
        density=float(random.choice([0, 0.02, 0.15, 0.7, 1])),
        classes_first=bool(random.integers(2)),
        biased=bool(random.integers(2)),
        weighted=bool(random.integers(2)),
        reduction=str(random.choice(["mean", "sum", "none"])),
        smoothing=float(random.choice([0, 0, 0.1, 1.0])),
        narrow=bool(random.integers(3) == 0) and dtype == torch.float32,
        dtype=dtype,
        label_type=torch.int32 if random.random() < 0.25 else torch.int64,
        seed=seed,
    )


def check(seed: int) -> None:
    head, flow = drawn(seed), [1.0, 0.25][seed % 2]
    symbolic = seed % 3 == 0 or head.rows < 16  # few rows are left alone if that is known
    alone = head.run(flow=flow, symbolic=symbolic)
    head.assert_close(alone, head.expected(flow), head.rounded(flow) if head.narrow else None)
    head.assert_alike(alone, head.run(fused=False, flow=flow))
    for a, b in zip(alone, head.run(threads=2, flow=flow, symbolic=symbolic), strict=True):
        assert a.tobytes() == b.tobytes()
    feeds = list(head.feeds().values())
    peaks = [head.session(fused=fused, symbolic=symbolic).plan(feeds).peak_bytes for fused in (True, False)]
    assert peaks[0] <= peaks[1] or head.rows <= 16, peaks


# 1239: many terms of the gradient of x cancel
@pytest.mark.parametrize("seed", [*range(24), 1239])
def test_random_heads(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("classes", [2048, 2079, 2080, 2081, 2559, 2560, 2561, 2720, 2721])
def test_shares_of_classes(classes: int) -> None:
    """Threads have shares of whole parts, 160 classes, but for the last one: whatever is left over counts once."""
    head = Head(70, 9, classes)
    alone = head.run()
    head.assert_close(alone, head.expected())
    for threads in (2, 3):
        assert [a.tobytes() for a in head.run(threads=threads)] == [a.tobytes() for a in alone]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize("above", [-1e30, -200, -70, -61, -59, -30, 30, 61, 200], ids=str)
def test_first_classes_unlike_the_others(above: float, dtype: torch.dtype) -> None:
    """The largest score of the first tile is a row's shift for all classes, as long as that serves them."""
    for density in (1.0, 0.5):
        head = Head(100, 5, 3000, density, reduction="none", dtype=dtype, first_classes=above)
        alone = head.run()
        head.assert_close(alone, head.expected())
        assert [a.tobytes() for a in head.run(threads=2)] == [a.tobytes() for a in alone]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("column", [0, 2500])
def test_scores_that_are_no_numbers(value: float, column: int) -> None:
    """Who becomes NaN is as in torch: the row's gradients, and all that they are added to."""
    head = Head(80, 5, 3000)
    feeds = head.feeds()
    feeds["w"][column, 2] = value
    feeds["l"][feeds["l"] == column] = 7
    session = head.session()
    (loss,), kept = session.forward(list(feeds.values()), True)
    found = [torch.from_dlpack(t) for t in (loss, *session.backward(kept, [torch.tensor(1.0)]))]
    leaves = [feeds[name].requires_grad_() for name in "xwb"]
    wanted = torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T + leaves[2], feeds["l"])
    for a, b in zip(found, [wanted, *torch.autograd.grad(wanted, leaves)], strict=True):
        assert torch.equal(a.isnan(), b.isnan())


@pytest.mark.slow
def test_many_random_heads() -> None:
    for seed in range(1000, 1300):
        check(seed)


@pytest.mark.parametrize("instruction_set", [pytest.param("sse4", marks=pytest.mark.slow), "avx2"])
def test_lesser_machines(instruction_set: str) -> None:
    program = "import test_chunked_loss as t\nfor seed in (1, 2, 4, 7): t.check(seed)"
    env = {**os.environ, "BACKPASS_MAX_ISA": instruction_set}
    command, here = [sys.executable, "-c", program], Path(__file__).parent
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_no_label_counts(reduction: str) -> None:
    loss, *gradients = Head(40, 8, 5000, density=0, reduction=reduction).run()
    assert np.isnan(loss) if reduction == "mean" else loss == 0
    assert not any(g.any() for g in gradients)


def test_no_rows() -> None:
    loss, dx, *others = Head(0, 8, 5000).run()
    assert np.isnan(loss)
    assert dx.shape == (0, 8)
    assert not any(g.any() for g in others)


def test_a_label_out_of_range_is_named() -> None:
    head = Head(40, 8, 5000)
    feeds = list(head.feeds().values())
    feeds[3][7] = 5000
    with pytest.raises(InvalidInput, match=r"'loss'\] label 5000 at position 7: expected \[0, 5000\) or ignore_index"):
        head.session().forward(feeds, True)


def test_classes_that_cannot_be() -> None:
    """Their scores are minus infinity, a whole stretch of them."""
    head = Head(20, 4, 5000)
    feeds = head.feeds()
    feeds["b"][300:4000] = -torch.inf
    feeds["l"] %= 300
    session = head.session()
    (loss,), kept = session.forward(list(feeds.values()), True)
    _, dw, db = (torch.from_dlpack(t) for t in session.backward(kept, [torch.tensor(1.0)]))
    scores = feeds["x"] @ feeds["w"].T + feeds["b"]
    torch.testing.assert_close(torch.from_dlpack(loss), torch.nn.functional.cross_entropy(scores, feeds["l"]))
    assert not dw[300:4000].any()
    assert not db[300:4000].any()
    assert db.isfinite().all()


def test_large_scores() -> None:
    head = Head(50, 6, 4500)
    feeds = head.feeds()
    feeds["x"] *= 1000
    session = head.session()
    (loss,), kept = session.forward(list(feeds.values()), True)
    gradients = [torch.from_dlpack(t) for t in session.backward(kept, [torch.tensor(1.0)])]
    leaf = feeds["x"].double().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(leaf @ feeds["w"].double().T + feeds["b"].double(), feeds["l"])
    torch.testing.assert_close(torch.from_dlpack(loss).double(), wanted.detach(), rtol=1e-5, atol=0)
    assert all(g.isfinite().all() for g in gradients)


def test_a_weight_that_is_an_embedding_too() -> None:
    """Its gradient is the sum of both."""
    from backpass import ORTModule

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(5000, 12)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            scores = torch.nn.functional.linear(self.words(x).tanh(), self.words.weight)
            return torch.nn.functional.cross_entropy(scores[:, :-1].reshape(-1, 5000), labels[:, 1:].reshape(-1))

    tied = Tied()
    words = torch.randint(0, 5000, (4, 100))
    wanted = tied(words, words)
    (dw,) = torch.autograd.grad(wanted, tied.words.weight)
    module = ORTModule(tied)
    loss = module(words, words)
    loss.backward()
    assert FUSED in module.explain()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(tied.words.weight.grad, dw, rtol=1e-4, atol=1e-7)


class Chosen(torch.nn.Module):
    """A head in the forms that scores take before they meet their labels."""

    def __init__(self, form: str, narrow: bool = False) -> None:
        super().__init__()
        self.inner, self.head = torch.nn.Linear(12, 12), torch.nn.Linear(12, 2100, bias=form != "scaled")
        self.form, self.narrow = form, narrow

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16) if self.narrow else contextlib.nullcontext():
            scores = self.head(self.inner(x).tanh())
            if self.form == "capped":
                return loss_of(scores.div(30).tanh() * 30, labels)
            if self.form == "returned":
                return loss_of(scores, labels), scores
            return getattr(self, self.form)(scores, labels)

    def shifted(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_of(scores[..., :-1, :].contiguous().float(), labels[..., 1:].contiguous())

    def masked(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows, labels = scores.reshape(-1, 2100), labels.reshape(-1)
        return torch.nn.functional.cross_entropy(rows[labels != IGNORED], labels[labels != IGNORED])

    def moved(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_of(scores.transpose(0, 1), labels.T)

    def scaled(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_of(scores / 4, labels)

    def by_row(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = torch.nn.functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none")
        return (losses * (labels % 3 == 1)).sum() / 7

    def smoothed(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_of(scores, labels, label_smoothing=0.1)


def loss_of(scores: torch.Tensor, labels: torch.Tensor, **how: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores.reshape(-1, 2100), labels.reshape(-1), **how)


FORMS = ["shifted", "moved", "scaled", "by_row", "smoothed"]


# torch does not capture autocast around a number of rows that data decide
@pytest.mark.parametrize(
    ("form", "narrow", "compiled"),
    [
        ("masked", False, False),
        ("masked", False, True),
        *itertools.product(FORMS, [False], [False, True]),
        *(itertools.product(FORMS, [True], [False])),
        ("shifted", True, True),
    ],
)
def test_forms_of_scores(form: str, narrow: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    module = Chosen(form, narrow)
    x, labels = torch.randn(4, 30, 12), torch.randint(0, 2100, (4, 30))
    labels[:, ::4] = IGNORED
    parameters = list(module.parameters())
    wanted = module(x, labels)
    gradients = torch.autograd.grad(wanted, parameters)
    if compiled:
        torch._dynamo.reset()
        loss = torch.compile(module, backend="backpass")(x, labels)
    else:
        ours = ORTModule(module)
        loss = ours(x, labels)
        assert FUSED in ours.explain()
    loss.backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-3 if narrow else 1e-5, atol=0)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        exact = 2e-2 if narrow else 1e-5
        assert (parameter.grad - gradient).abs().max() <= exact * gradient.abs().max()


@pytest.mark.parametrize(
    ("form", "why"), [("capped", r"the scores come from \[Tanh 'tanh_1'\]"), ("returned", "are a result")]
)
def test_why_scores_are_kept(form: str, why: str) -> None:
    ours = ORTModule(Chosen(form))
    ours(torch.randn(4, 30, 12), torch.randint(0, 2100, (4, 30)))
    assert re.search(r"left \[SoftmaxCrossEntropyLoss .*\] with scores of all rows: .*" + why, ours.explain())


def test_a_backward_that_never_comes() -> None:
    """Gradients that were computed with the loss are given back; those of other runs are not touched."""
    head = Head(64, 8, 4000)
    session, feeds = head.session(), list(head.feeds().values())
    _, first = session.forward(feeds, True)
    _, dropped = session.forward([2 * feeds[0], *feeds[1:]], True)
    del dropped
    _, second = session.forward([3 * feeds[0], *feeds[1:]], True)
    seed = [head.flow(1.0)]
    found = [torch.from_dlpack(t).numpy() for t in session.backward(first, seed)]
    head.assert_close(found, head.expected()[1:])
    held = [a.copy() for a in found]
    session.backward(second, seed)
    assert all(np.array_equal(a, b) for a, b in zip(found, held, strict=True))


def test_evaluation_alone_keeps_a_block() -> None:
    """Without gradients the scores of some classes are enough."""
    head = Head(600, 8, 20000)
    infos = {name: t.numpy() for name, t in head.feeds().items()}
    shapes = {name: a.shape for name, a in infos.items()}
    fused = InferenceSession(head.model())
    (loss,) = fused.run(None, infos)
    np.testing.assert_allclose(loss, head.expected()[0], rtol=1e-5)
    unfused = InferenceSession(head.model(), disabled_passes=["chunk_loss"])
    assert fused.plan(shapes).peak_bytes < unfused.plan(shapes).peak_bytes / 5


def language_model() -> onnx.ModelProto:
    """Its head shares its weight with the embedding."""
    random = np.random.default_rng(0)
    weights = {
        "words": random.normal(size=(3000, 12)).astype(np.float32),
        "inner": random.normal(size=(12, 12)).astype(np.float32),
        "bias": random.normal(size=3000).astype(np.float32),
        "flat": np.array([-1, 3000]),
    }
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "inner"], ["i"]),
        helper.make_node("Tanh", ["i"], ["h"]),
        helper.make_node("Transpose", ["words"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["p"], name="head"),
        helper.make_node("Add", ["p", "bias"], ["s"]),
        helper.make_node("Reshape", ["s", "flat"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "t"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, 3000])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_training_from_artifacts(tmp_path: Path) -> None:
    """These models come differentiated."""
    artifacts.generate_artifacts(
        language_model(),
        requires_grad=["words", "inner", "bias"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        loss_input_names=["scores"],
        artifact_directory=tmp_path,
    )
    random = np.random.default_rng(1)
    ids, labels = random.integers(0, 3000, (4, 160)), random.integers(0, 3000, 640)
    losses, peaks = [], []
    for disabled in ([], ["chunk_loss"]):
        state = api.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        options = _core.SessionOptions()
        options.disabled_passes = disabled
        module = api.Module(tmp_path / "training_model.onnx", state, session_options=options)
        optimizer = api.Optimizer(tmp_path / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(1.0)
        plan = module.plan(ids, labels)
        peaks.append(plan.peak_bytes)
        assert ("LinearCrossEntropy" in str(plan)) == (not disabled)
        for _ in range(5):
            losses.append(module(ids, labels))
            optimizer.step()
            module.lazy_reset_grad()
    np.testing.assert_allclose(losses[:5], losses[5:], rtol=1e-5)
    assert losses[4] < losses[0]
    assert peaks[0] < peaks[1]


@pytest.mark.parametrize("disabled", [(), ("chunk_loss",)])
def test_nothing_counts_and_no_number_flows_back(disabled: tuple[str, ...]) -> None:
    """A perplexity over no labels at all: not a number, with gradients of 0 as torch has them."""

    class Perplexity(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(16, 2500)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.head(x), labels).exp()

    module = ORTModule(Perplexity(), options=RuntimeOptions(disabled_passes=disabled))
    loss = module(torch.randn(700, 16), torch.full((700,), IGNORED))
    loss.backward()
    assert (FUSED in module.explain()) == (not disabled)
    assert loss.isnan()
    for p in module.parameters():
        assert p.grad is not None
        assert not p.grad.any()
