"""Rows whose label is ignored are left out in front of losses: against torch in float64 and the graph with all rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from backpass import InvalidInput, ORTModule, _core
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional

IGNORED = -100
PASS = "skip_ignored_labels"
SKIPPED = "left rows with label -100 out of"


def choose(monkeypatch: pytest.MonkeyPatch, chosen: bool = True) -> None:
    """Whatever the data say."""
    monkeypatch.setenv("BACKPASS_CHOOSE_PASSES", PASS if chosen else "")
    monkeypatch.setenv("BACKPASS_DISABLE_PASSES", "" if chosen else PASS)


@dataclasses.dataclass
class How:
    reduction: str = "mean"
    smoothing: float = 0.0

    def __call__(self, scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return functional.cross_entropy(
            scores, labels, weight, reduction=self.reduction, label_smoothing=self.smoothing, ignore_index=IGNORED
        )


Form = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None", How], torch.Tensor]


def flat(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, how: How) -> torch.Tensor:
    return how(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1), weight)


def shifted(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, how: How) -> torch.Tensor:
    return flat(scores[:, :-1], labels[:, 1:], weight, how)


def turned(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, how: How) -> torch.Tensor:
    return how(scores.transpose(1, 2), labels, weight)


def images(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, how: How) -> torch.Tensor:
    """Two axes of positions."""
    batch, length, classes = scores.shape
    loss = how(scores.reshape(batch, length, 1, classes).permute(0, 3, 1, 2), labels.unsqueeze(2), weight)
    return loss * 0.5


def by_log_softmax(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, how: How) -> torch.Tensor:
    log = functional.log_softmax(scores.reshape(-1, scores.shape[-1]), 1)
    return functional.nll_loss(log, labels.reshape(-1), weight, reduction=how.reduction, ignore_index=IGNORED)


def focal(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, how: How) -> torch.Tensor:
    """What is made of the losses of rows sees zeros."""
    each = functional.cross_entropy(scores.transpose(1, 2), labels, weight, reduction="none", ignore_index=IGNORED)
    loss = (1 - (-each).exp()) ** 2 * each + each.exp()
    return loss if how.reduction == "none" else loss.mean(1)


def gathered(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, how: How) -> torch.Tensor:
    """As decompositions write it."""
    log = functional.log_softmax(scores, -1)
    known = torch.where(labels != IGNORED, labels, 0)
    each = -log.gather(-1, known.unsqueeze(-1)).squeeze(-1)
    counts = torch.ones_like(each) if weight is None else weight[known]
    each = torch.where(labels != IGNORED, each * counts, 0)
    if how.reduction == "none":
        return each
    mass = torch.where(labels != IGNORED, counts, 0).sum()
    return each.sum() / mass if how.reduction == "mean" else each.sum()


def smoother(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, how: How) -> torch.Tensor:
    """With masks over an axis of extent 1, as transformers' LabelSmoother has them."""
    log = -functional.log_softmax(scores, dim=-1)
    labels = labels.unsqueeze(-1)
    mask = labels.eq(IGNORED)
    hard = log.gather(dim=-1, index=labels.clamp(min=0)).masked_fill(mask, 0.0)
    soft = log.sum(dim=-1, keepdim=True).masked_fill(mask, 0.0)
    if how.reduction == "none":
        return hard * 0.9 + soft * 0.1
    active = mask.numel() - mask.long().sum()
    return 0.9 * hard.sum() / active + 0.1 * soft.sum() / (active * log.shape[-1])


FORMS: dict[str, Form] = {
    f.__name__: f for f in (flat, shifted, turned, images, by_log_softmax, focal, gathered, smoother)
}


class Network(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.how = case, How(case.reduction, case.smoothing)
        self.head = nn.Linear(case.features, case.classes, bias=case.biased)
        if case.weighted:
            self.register_buffer("weight", torch.rand(case.classes) + 0.1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weight = self.weight if self.case.weighted else None
        return FORMS[self.case.form](self.head(x), labels, weight, self.how)


@dataclasses.dataclass
class Case:
    form: str = "flat"
    batch: int = 3
    length: int = 7
    features: int = 5
    classes: int = 11
    density: float = 0.3
    biased: bool = True
    weighted: bool = False
    reduction: str = "mean"
    smoothing: float = 0.0
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def feeds(self) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(self.seed)
        x = torch.randn(self.batch, self.length, self.features, generator=random, dtype=torch.float64)
        labels = torch.randint(0, self.classes, (self.batch, self.length), generator=random)
        labels[torch.rand(self.batch, self.length, generator=random) >= self.density] = IGNORED
        return x.to(self.dtype), labels

    def network(self) -> Network:
        torch.manual_seed(self.seed)
        return Network(self).to(self.dtype)

    def run(self, module: nn.Module, network: Network, double: bool = False) -> list[np.ndarray]:
        """The loss and its gradients."""
        x, labels = self.feeds()
        x = (x.double() if double else x).requires_grad_()
        network.zero_grad()
        loss = module(x, labels)
        random = torch.Generator().manual_seed(self.seed + 1)
        flow = torch.rand(loss.shape, generator=random, dtype=torch.float64).to(loss.dtype)
        loss.backward(flow)
        found = (loss, x.grad, *(p.grad for p in network.parameters()))
        return [(t.float() if t.dtype == torch.bfloat16 else t).detach().numpy().copy() for t in found]

    def expected(self) -> list[np.ndarray]:
        network = self.network().double()
        return self.run(network, network, double=True)

    def assert_close(self, found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
        """The loss in units of its largest element, gradients in those of the largest of all: they are made of the same
        terms, and where these cancel, what is left is as inexact as they were."""
        exact = 5e-6 if self.dtype == torch.float32 else 1e-13
        largest = [max(float(np.abs(np.nan_to_num(b)).max(initial=0)), 1e-30) for b in wanted]
        scales = [largest[0], *[max(largest[1:])] * (len(wanted) - 1)]
        for a, b, scale in zip(found, wanted, scales, strict=True):
            np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=exact)


def drawn(seed: int) -> Case:
    random = np.random.default_rng(seed)
    form = str(random.choice([*FORMS]))
    plain = form in ("flat", "shifted", "turned", "images")
    return Case(
        form=form,
        batch=int(random.choice([1, 2, 5])),
        length=int(random.choice([2, 3, 17, 40])),
        features=int(random.integers(1, 20)),
        classes=int(random.choice([2, 7, 33, 130, 2100])),
        density=float(random.choice([0, 0.02, 0.15, 0.5, 1])),
        biased=bool(random.integers(2)),
        weighted=bool(random.integers(2)) and form != "smoother",
        reduction=str(random.choice(["mean", "sum", "none"])),
        smoothing=float(random.choice([0, 0.1])) if plain else 0.0,
        dtype=torch.float64 if random.random() < 0.5 else torch.float32,
        seed=seed,
    )


def check(case: Case, monkeypatch: pytest.MonkeyPatch) -> Any:
    runs = []
    for chosen in (True, False):
        choose(monkeypatch, chosen)
        network = case.network()
        module = ORTModule(network)
        runs.append((case.run(module, network), module))
    (rows, module), (whole, other) = runs
    assert SKIPPED in module.explain(), module.explain()
    assert SKIPPED not in other.explain()
    case.assert_close(rows, whole)
    case.assert_close(rows, case.expected())
    return module


@pytest.mark.parametrize("seed", range(12))
def test_random_losses(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(drawn(seed), monkeypatch)


@pytest.mark.slow
def test_many_random_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(1000, 1300):
        check(drawn(seed), monkeypatch)


@pytest.mark.parametrize("classes", [9, 5000])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_label_counts(reduction: str, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)
    case = Case(density=0, reduction=reduction, classes=classes)
    network = case.network()
    loss, *gradients = case.run(ORTModule(network), network)
    assert np.isnan(loss) if reduction == "mean" else not loss.any()
    assert not any(g.any() for g in gradients)


@pytest.mark.parametrize("form", ["flat", "turned", "by_log_softmax"])
def test_a_label_out_of_range_is_named_as_without(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(form=form)
    x, labels = case.feeds()
    labels[2, 3] = 11
    said = []
    for chosen in (True, False):
        choose(monkeypatch, chosen)
        with pytest.raises(InvalidInput, match=r"label 11 at position 17: expected \[0, 11\)") as error:
            ORTModule(case.network())(x, labels)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("form", ["flat", "turned"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_scores_of_many_classes_are_still_made_some_rows_at_a_time(
    form: str, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(form=form, batch=4, length=64, classes=5000, smoothing=smoothing)
    assert "some rows at a time" in check(case, monkeypatch).explain()


@pytest.mark.parametrize("form", ["flat", "turned", "smoother"])
def test_extents_that_vary(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)
    network = Case(form=form).network()
    module = ORTModule(network)
    for i, (batch, length) in enumerate([(3, 7), (4, 9), (2, 5), (6, 1), (1, 8), (3, 7)]):
        case = Case(form=form, batch=batch, length=length, density=[0.3, 0.0, 1.0, 0.5][i % 4], seed=i)
        found = case.run(module, network)
        wide = case.network().double()
        wide.load_state_dict(network.state_dict())
        case.assert_close(found, case.run(wide, wide, double=True))
    assert SKIPPED in module.explain()


@pytest.mark.parametrize("form", ["flat", "turned", "by_log_softmax"])
def test_scores_by_autocast(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(x, labels)

    case = Case(form=form, batch=4, length=16)
    runs = []
    for chosen in (True, False):
        choose(monkeypatch, chosen)
        network = case.network()
        module = ORTModule(Narrow(network))
        runs.append(case.run(module, network))
        assert (SKIPPED in module.explain()) == chosen, module.explain()
    for a, b in zip(*runs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2**-7, atol=2**-8 * float(np.abs(b).max()))


class Tied(nn.Module):
    """The gradient of the weight is kept until that of the embedding is there."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 12)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = functional.linear(self.words(x).tanh(), self.words.weight)
        return functional.cross_entropy(scores.reshape(-1, 5000), labels.reshape(-1))


@pytest.mark.parametrize(("length", "joins"), [(2, False), (400, True)])
def test_the_most_rows_that_can_have_labels_decide(length: int, joins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)
    tied = Tied()
    words = torch.randint(0, 5000, (4, length))
    labels = torch.where(torch.rand(4, length) < 0.5, words, IGNORED)
    wanted = torch.autograd.grad(tied(words, labels), tied.words.weight)[0]
    module = ORTModule(tied)
    module(words, labels).backward()
    assert SKIPPED in module.explain()
    assert ("some rows at a time" in module.explain()) == joins, module.explain()
    assert "added the rows of" in module.explain()
    torch.testing.assert_close(tied.words.weight.grad, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("density", [0.0, 0.4])
def test_the_loss_of_onnx_runtime(reduction: str, density: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mean over no label is 0."""
    case = Case(density=density)
    scores, labels = torch.randn(21, 11), case.feeds()[1].reshape(-1)
    nodes = [
        helper.make_node("Constant", [], ["none"], value_int=IGNORED),
        helper.make_node(
            "SoftmaxCrossEntropyLossInternal",
            ["x", "l", "", "none"],
            ["y"],
            name="loss",
            domain="com.microsoft",
            reduction=reduction,
        ),
    ]
    shape: list[Any] = ["n"] if reduction == "none" else []
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 11]),
            helper.make_tensor_value_info("l", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    choose(monkeypatch)
    session = _core.ModuleSession.from_bytes(model, ["x"], _core.SessionOptions())
    assert SKIPPED in "\n".join(session.rewrites())
    (loss,), kept = session.forward([scores, labels], True)
    (dx,) = session.backward(kept, [torch.ones(torch.from_dlpack(loss).shape)])
    leaf = scores.double().requires_grad_()
    wanted = functional.cross_entropy(leaf, labels, reduction=reduction)
    (wanted_dx,) = torch.autograd.grad(wanted.sum(), leaf)
    torch.testing.assert_close(torch.from_dlpack(loss), wanted.detach().nan_to_num().float())
    torch.testing.assert_close(torch.from_dlpack(dx), wanted_dx.float())
