"""torch.compile with Backpass: training of whole modules, natively, in both modes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from backpass.dynamo import make_aot_ort
from ortmodule_check import wrap
from test_dynamo_backend import MODES, both
from torch import nn


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(3)


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8, padding_idx=0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 5)
        )

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.layers(self.embedding(ids))
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=2)


@pytest.mark.parametrize("mode", MODES)
def test_training_is_eagers(mode: str) -> None:
    ids, labels = torch.randint(0, 11, (3, 7)), torch.randint(0, 5, (3, 7))
    record = both(lambda net, *a: net(*a), ids, labels, mode=mode, module=Classifier(), fullgraph=True)
    assert [g.kind for g in record.graphs] == (["forward", "backward"] if mode == "aot" else ["training"])
    assert all(g.native for g in record.graphs), str(record)


@pytest.mark.parametrize("mode", MODES)
def test_batch_norm_updates_its_statistics(mode: str) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    record = both(lambda net, x: net(x), torch.randn(3, 2, 6, 5), mode=mode, module=net)
    assert all(g.native for g in record.graphs), str(record)


@pytest.mark.parametrize("mode", MODES)
def test_one_session_for_all_shapes(mode: str) -> None:
    """With dynamic=True a graph is compiled once; other extents reuse it."""
    net = Classifier()
    backend, record = make_aot_ort(dynamic=True, mode=mode)
    compiled = torch.compile(net, backend=backend, dynamic=True, fullgraph=True)
    for batch, length in ((3, 7), (2, 5), (6, 4)):
        ids, labels = torch.randint(0, 11, (batch, length)), torch.randint(0, 5, (batch, length))
        net.zero_grad()
        wanted = net(ids, labels)
        wanted.backward()
        expected = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        got = compiled(ids, labels)
        got.backward()
        torch.testing.assert_close(got, wanted)
        for p, gradient in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-6)
    assert len(record.graphs) == (2 if mode == "aot" else 1), str(record)
    assert [g.calls for g in record.graphs] == [3] * len(record.graphs)
    assert all(g.native for g in record.graphs), str(record)


def test_dropout_in_the_engine() -> None:
    x = torch.ones(200, 300, requires_grad=True)
    backend, record = make_aot_ort()
    y = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.25), backend=backend)(x)
    y.sum().backward()
    kept = y != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.01
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / 0.75))
    torch.testing.assert_close(x.grad, y.detach())
    assert all(g.native for g in record.graphs), str(record)


WEIGHTS = [None, torch.tensor([0.5, 2, 1, 0]), torch.zeros(4)]
SHAPES = [(6, 4), (2, 4, 3, 3), (4,)]


@pytest.mark.parametrize(  # every pair of values, in a third of the combinations
    ("reduction", "weight", "shape"),
    [(r, WEIGHTS[i], SHAPES[(i + j) % 3]) for j, r in enumerate(["mean", "sum", "none"]) for i in range(3)],
)
def test_ignored_labels_have_no_gradient(reduction: str, weight: torch.Tensor | None, shape: tuple[int, ...]) -> None:
    """Where all are ignored the mean is NaN, its gradient 0."""
    labels = torch.full((shape[0], *shape[2:]) if len(shape) > 1 else (), -100)

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x, labels, weight=weight, reduction=reduction)

    for given in (labels, labels.index_fill(0, torch.tensor([0]), 1) if labels.dim() else labels * 0):
        torch._dynamo.reset()
        got = torch.randn(shape, requires_grad=True)
        compiled = torch.compile(loss, backend=make_aot_ort()[0])
        wanted = got.detach().clone().requires_grad_()
        torch.testing.assert_close(compiled(got, given), loss(wanted, given), equal_nan=True)
        compiled(got, given).sum().backward()
        loss(wanted, given).sum().backward()
        torch.testing.assert_close(got.grad, wanted.grad, equal_nan=True)


def test_checkpoint_around_a_compiled_module() -> None:
    """The first call compiles, the second does not: both save the same number of tensors."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    backend, record = make_aot_ort(mode="forward")
    compiled = torch.compile(net, backend=backend)
    got = torch.randn(4, 8, requires_grad=True)
    wanted = got.detach().clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(compiled, got, use_reentrant=False).sum().backward()
    net(wanted).sum().backward()
    torch.testing.assert_close(got.grad, wanted.grad)
    assert [g.calls for g in record.graphs] == [2]


def test_extents_that_weights_fix_do_not_vary() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    backend, record = make_aot_ort(mode="forward")
    compiled = torch.compile(net, backend=backend, dynamic=True)
    for rows in (4, 3, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), net(x))
    assert [g.calls for g in record.graphs] == [3], str(record)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_sparse_gradients_are_dense_and_said_so(
    mode: str, kind: type[torch.nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    table = kind(9, 4, sparse=True)
    ids = torch.tensor([[1, 2, 2], [0, 2, 8]])
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "aot"):
        got = torch.compile(table, backend=make_aot_ort(mode=mode)[0])(ids)
    (got * torch.arange(4)).sum().backward()
    found, table.weight.grad = table.weight.grad, None
    (table(ids) * torch.arange(4)).sum().backward()
    assert found.layout == torch.strided
    torch.testing.assert_close(found, table.weight.grad.to_dense())
    assert caplog.text.count("its gradient is dense here") == 1


class Counting(torch.nn.Module):
    """Changes buffers in place, each in another way, between what is differentiated."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), *layers)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.layers(x)
        self.calls.add_(1)
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean((0, 2, 3)), alpha=0.1)
        return y, torch.tanh(y * 2), y.detach().amax()


CHANGING = {
    "batch norm": lambda: Counting(torch.nn.BatchNorm2d(4)),
    "batch norm without momentum": lambda: Counting(torch.nn.BatchNorm2d(4, momentum=None)),
    "instance norm": lambda: Counting(torch.nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
    "own buffers": lambda: Counting(),
    "spectral norm": lambda: Counting(torch.nn.utils.parametrizations.spectral_norm(torch.nn.Conv2d(4, 4, 1))),
}


def _one_of_two(y: torch.Tensor, z: torch.Tensor) -> None:
    z.sin().sum().backward()


def _the_other_of_two(y: torch.Tensor, z: torch.Tensor) -> None:
    (y**2).sum().backward()


def _one_after_the_other(y: torch.Tensor, z: torch.Tensor) -> None:
    (y**2).sum().backward(retain_graph=True)
    z.sin().sum().backward()


def _twice(y: torch.Tensor, z: torch.Tensor) -> None:
    loss = (y**2).sum() + z.sum()
    loss.backward(retain_graph=True)
    loss.backward()


BACKWARD = [_one_of_two, _the_other_of_two, _one_after_the_other, _twice]


@pytest.mark.parametrize(
    ("kind", "backward"), [*(("batch norm", b) for b in BACKWARD), *((k, _one_after_the_other) for k in CHANGING)]
)
def test_buffers_changed_in_place_allow_any_backward_pass(kind: str, backward: Any) -> None:
    """Where gradients arrive for other results than expected the pass is repeated, from the buffers' old values."""
    eager = CHANGING[kind]()
    net = copy.deepcopy(eager)
    backend, record = make_aot_ort(mode="auto")
    compiled = torch.compile(net, backend=backend)
    for _ in range(2):
        x = torch.randn(3, 2, 6, 5)
        for call in (compiled, eager):
            y, z, _ = call(x)
            backward(y, z)
    for (name, got), wanted in zip(net.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
    for (name, got), wanted in zip(net.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    captured = kind != "spectral norm"  # which gives out the buffer that it changes
    assert {g.kind for g in record.graphs} == ({"training"} if captured else {"forward", "backward"})
    assert all(g.native for g in record.graphs), str(record)


@pytest.mark.parametrize("mode", MODES)
def test_an_argument_changed_in_place_allows_any_backward_pass(mode: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x @ w)
        z = (x * state.exp()) @ w
        state.add_(1)
        return y, z

    results = []
    for call in (fn, torch.compile(fn, backend=make_aot_ort(mode=mode)[0])):
        w, state = torch.eye(4).requires_grad_(), torch.arange(4.0) / 4
        for step in range(2):
            y, z = call(torch.arange(12.0).reshape(3, 4) / 9 + step, w, state)
            z.sum().backward(retain_graph=True)
            y.sum().backward()
        results.append((w.grad, state))
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_can_be_retained_after_calls_that_did_not(mode: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x @ w).exp()
        return y, torch.softmax(y @ w, -1) * y

    results = []
    for call in (fn, torch.compile(fn, backend=make_aot_ort(mode=mode)[0])):
        w = torch.eye(4).requires_grad_()
        for step in range(3):
            y, z = call(torch.arange(12.0).reshape(3, 4) / 9 + step, w)
            (y.sum() + z.sum()).backward(retain_graph=step > 0)
            if step:
                (z**2).sum().backward()
        results.append(w.grad)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["aot", "auto"])
def test_a_backward_pass_inside_of_what_is_compiled(mode: str) -> None:
    """torch.compile cuts the step there, and looks at what the backward pass calls."""

    def step(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = net(x).exp().sum()
        loss.backward()
        return loss

    eager = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4))
    net = copy.deepcopy(eager)
    backend, record = make_aot_ort(mode=mode)
    compiled = torch.compile(step, backend=backend)
    for _ in range(2):
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled(net, x), step(eager, x))
    for got, wanted in zip(net.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-5)
    assert record.execution_count


class ClearsItsArgument(nn.Module):
    """Reads an argument, then overwrites it where autograd does not look."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        with torch.no_grad():
            x.zero_()
        return y


@pytest.mark.parametrize("wrapped", [wrap, lambda m: torch.compile(m, backend="backpass")], ids=["module", "compile"])
def test_an_argument_that_is_overwritten_passes_its_gradient_on(wrapped: Any) -> None:
    weight = torch.ones(2, 3, requires_grad=True)
    wrapped(ClearsItsArgument())(weight * 3.0).sum().backward()
    torch.testing.assert_close(weight.grad, torch.full((2, 3), 6.0))


def test_an_argument_that_gets_a_value_with_gradients_keeps_them() -> None:
    def write(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.copy_(w * 2)
        return w.sum()

    backend, record = make_aot_ort(mode="auto")
    w, x = torch.ones(3, requires_grad=True), torch.zeros(3)
    torch.compile(write, backend=backend)(x, w)
    x.sum().backward()
    torch.testing.assert_close(w.grad, torch.full((3,), 2.0))
    assert "to a value that requires a gradient" in record.graphs[0].note
