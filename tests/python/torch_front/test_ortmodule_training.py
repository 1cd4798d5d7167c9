"""Steps of all kinds give what eager torch gives: losses, gradients, statistics, random numbers."""

from __future__ import annotations

import logging
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from backpass.ortmodule.fallback import ORTModuleFallbackException
from ortmodule_check import Net, Pair, batch, same, total, wrap
from torch import nn


# ---- when gradients are asked for, and of what
def test_gradients_accumulate() -> None:
    pair = Pair(Net())
    for _ in range(3):
        pair.step(*batch(), loss=lambda r: r[0])
    assert pair.exports == 1


def test_gradients_are_handed_over_by_reference() -> None:
    ours = wrap(Net())
    ours(*batch())[0].backward()
    before = {n: p.grad.data_ptr() for n, p in ours.named_parameters()}
    weights = {n: p.data_ptr() for n, p in ours.named_parameters()}
    ours(*batch())[0].backward()
    assert {n: p.grad.data_ptr() for n, p in ours.named_parameters()} == before  # torch adds to what it was given
    assert {n: p.data_ptr() for n, p in ours.named_parameters()} == weights
    ours.zero_grad()
    x, labels = batch()
    loss = ours(x, labels)[0]
    found = torch.autograd.grad(loss, list(ours.parameters()))
    assert all(g._version == 0 and g.is_contiguous() for g in found)


@pytest.mark.slow
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_whichever_outputs_are_used(which: tuple[int, ...]) -> None:
    pair = Pair(Net())
    for _ in range(2):
        pair.step(*batch(), loss=lambda r: total([r[i] for i in which]))


def test_outputs_used_change_from_step_to_step() -> None:
    pair = Pair(Net())
    for which in ((0,), (1,), (0, 2), (0,), (1,)):
        pair.step(*batch(), loss=lambda r, which=which: total([r[i] for i in which]))


def test_first_calls_from_several_threads() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    ours, out = wrap(net), sys.stdout
    inputs = [torch.randn(2 + i % 3, 4) for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(ours, inputs))
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, net(x))
    assert sys.stdout is out
    assert not torch.compiler.is_compiling()
    assert len(ours._manager.variants) == 3


def test_several_forwards_before_backward() -> None:
    pair = Pair(Net())
    data = [batch(n) for n in (3, 5, 3)]
    for module in (pair.ours, pair.eager):
        losses = [module(*d)[0] for d in data]
        (losses[2] * 3).backward()
        (losses[0] + losses[1] * 2).backward()
    pair.compare()


def test_a_forward_that_is_never_followed_by_backward() -> None:
    pair = Pair(Net())
    pair.ours(*batch())
    pair.step(*batch())
    kept = pair.ours(*batch())
    pair.step(*batch())
    assert kept[0].grad_fn is not None


def test_retained_graph() -> None:
    pair = Pair(Net())
    data = batch()
    for module in (pair.ours, pair.eager):
        loss, logits, _ = module(*data)
        loss.backward(retain_graph=True)
        logits.sum().backward(retain_graph=True)
        loss.backward()
    pair.compare()


def test_without_gradients() -> None:
    pair = Pair(Net())
    data = batch()
    with torch.no_grad():
        results = pair.ours(*data)
        same(results, pair.eager(*data))
        assert all(not r.requires_grad for r in results)
    pair.step(*data)
    with torch.inference_mode():
        same(pair.ours(*data), pair.eager(*data))
    with torch.no_grad():
        same(pair.ours(*data), pair.eager(*data))
    assert pair.exports == 1


def test_inputs_that_require_gradients() -> None:
    pair = Pair(Net())
    x, labels = batch()
    pair.step(x, labels)
    pair.step(x.requires_grad_(), labels)
    pair.step(x.detach(), labels)
    assert pair.exports == 1
    assert len(pair.ours._manager.variants[0].graphs) == 2


def test_as_a_part_of_a_larger_model() -> None:
    torch.manual_seed(1)
    pair = Pair(Net())
    before, after = nn.Linear(3, 6), nn.Linear(4, 2)
    x = torch.randn(5, 3)
    gradients = []
    for module in (pair.ours, pair.eager):
        loss = after(module(before(x))).pow(2).mean()
        gradients.append(torch.autograd.grad(loss, [before.weight, after.weight, *module.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


# ---- parameters
def test_freezing_while_training() -> None:
    pair = Pair(Net())
    data = batch()
    pair.step(*data)
    for frozen in (True, False, True):
        for module in (pair.ours, pair.eager):
            module.body.requires_grad_(not frozen)
            module.zero_grad()
        pair.step(*data)
    variant = pair.ours._manager.variants[0]
    assert pair.exports == 1
    assert len(variant.graphs) == 2
    for module in (pair.ours, pair.eager):
        module.requires_grad_(False)
        module.zero_grad()
    pair.step(*data)
    assert pair.ours(*data)[0].grad_fn is None


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.tanh(self.middle(self.embedding(ids))))
        return F.cross_entropy(logits[:, :-1].reshape(-1, 11), ids[:, 1:].reshape(-1))


def test_tied_parameters() -> None:
    pair = Pair(Tied())
    ids = torch.randint(0, 11, (3, 7))
    assert pair.ours.head.weight is pair.ours.embedding.weight
    pair.step(ids)
    assert [s.name for s in pair.ours._manager.variants[0].exported.inputs].count("embedding.weight") == 1
    for module in (pair.ours, pair.eager):
        module.head.weight = nn.Parameter(module.head.weight.detach().clone())  # no longer
        module.zero_grad()
    pair.step(ids)
    pair.step(torch.randint(0, 11, (5, 4)))


@pytest.mark.parametrize("where", ["attribute", "list", "closure"])
def test_weights_that_are_not_registered_are_refused(where: str) -> None:
    free = torch.ones(3, requires_grad=True)

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.own = free if where == "attribute" else None
            self.parts = [nn.Linear(3, 3)] if where == "list" else [self.linear]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * (1 if self.own is None else self.own)
            return self.parts[0](y) if where == "list" else y * free if where == "closure" else y

    with pytest.raises(ORTModuleFallbackException, match=r"not registered|no parameters"):
        wrap(Hidden())(torch.ones(2, 4))


class Unregistered(nn.Module):
    """Uses a parameter that is not where a capture looks for parameters."""

    def __init__(self, where: str, frozen: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        other = nn.Linear(4, 4).requires_grad_(not frozen)
        self.held: Any = {
            "parameter": [other.weight],
            "nested": [[other]],
            "object": SimpleNamespace(part=other),
            "function": lambda y: other(y),
            "registered": [self.linear.weight],
        }[where]
        self.where = where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, held = self.linear(x), self.held
        if self.where in ("parameter", "registered"):
            return y @ held[0]
        return (held[0][0] if self.where == "nested" else held if self.where == "function" else held.part)(y)


@pytest.mark.parametrize("where", ["parameter", "nested", "object", "function", "registered"])
def test_parameters_that_are_not_registered_are_refused(where: str) -> None:
    with pytest.raises(ORTModuleFallbackException, match="tensors that require gradients, but are no parameters"):
        wrap(Unregistered(where))(torch.ones(2, 4))
    if where != "registered":
        Pair(Unregistered(where, frozen=True)).step(torch.randn(2, 4))


def test_an_ortmodule_as_a_part_is_refused() -> None:
    with pytest.raises(ORTModuleFallbackException, match=r"got an ORTModule \(of Linear\).* wrap the whole only"):
        wrap(nn.Sequential(nn.Linear(4, 4), wrap(nn.Linear(4, 4))))(torch.ones(2, 4))


@pytest.mark.slow
def test_a_module_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.again = self.layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(torch.tanh(self.layer(x)))

    Pair(Twice()).step(torch.randn(3, 6))


# ---- buffers
class Normalised(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.3, "affine": False}])
def test_statistics_of_batch_normalisation(options: dict[str, Any]) -> None:
    pair = Pair(Normalised(**options))
    kept = pair.ours.norm.running_mean
    for n in (4, 4, 2):
        pair.step(torch.randn(n, 3, 5, 6))
    assert int(pair.ours.norm.num_batches_tracked) == 3
    assert pair.ours.norm.running_mean is kept  # changed in place, as torch does
    with torch.no_grad():
        pair.step(torch.randn(4, 3, 5, 6))
    pair.ours.eval()
    pair.eager.eval()
    pair.step(torch.randn(4, 3, 5, 6))
    assert int(pair.ours.norm.num_batches_tracked) == 4


def test_cumulative_averages_are_refused() -> None:
    """Their weights change with every step: a graph would freeze them."""
    with pytest.raises(ORTModuleFallbackException, match="momentum=None"):
        wrap(Normalised(momentum=None))(torch.randn(4, 3, 5, 6))
    evaluated = Normalised(momentum=None).eval()
    x = torch.randn(4, 3, 5, 6)
    torch.testing.assert_close(wrap(evaluated)(x), evaluated(x), rtol=1e-4, atol=1e-5)


def test_statistics_when_passes_overlap() -> None:
    """Two forwards, then backwards, one of which the engine has to repeat: from the statistics as they were."""
    pair = Pair(Normalised(), dynamic_shapes="never")
    data = [torch.randn(4, 3, 5, 6) for _ in range(2)]
    for module in (pair.ours, pair.eager):
        results = [module(x) for x in data]
        results[0].sum().backward(retain_graph=True)
        results[1].pow(2).sum().backward()
        results[0].pow(3).sum().backward()
    pair.compare()


# ---- what captures lose when one does not look
class Stops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 5)
        self.b = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        with torch.no_grad():
            scale = y.abs().mean() + 1
        target = self.b(y.detach())
        with torch.no_grad():
            weights = torch.softmax(self.b(y), -1)
            with torch.enable_grad():
                inner = self.a(x).sum()
        return (y * scale * weights).sum() + (target - y).pow(2).mean() + inner * 0.5


def test_no_grad_and_detach_stop_gradients() -> None:
    Pair(Stops()).step(torch.randn(4, 5))


@pytest.mark.slow
def test_no_grad_as_a_decorator_and_frozen_constants() -> None:
    class Decorated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.no_grad()
        def statistics(self, y: torch.Tensor) -> torch.Tensor:
            return y.pow(2).mean(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            return (y / (self.statistics(y) + 1).sqrt()).tanh()

    Pair(Decorated()).step(torch.randn(4, 4))


class Straight(torch.autograd.Function):
    """Rounds, and lets gradients through three times as large: nothing autograd would find out by itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.factor, None


def test_functions_keep_their_backward() -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Straight.apply(self.linear(x) * 5, 3.0).tanh()

    pair = Pair(Rounded())
    pair.step(torch.randn(3, 4))
    pair.step(torch.randn(6, 4))
    pair.step(torch.randn(2, 4))
    explained = pair.ours.explain()
    assert "Straight" in explained
    assert "% of the time" in explained
    refusing = wrap(Rounded(), enable_custom_autograd_function=False)
    with pytest.raises(ORTModuleFallbackException, match="Straight"):
        refusing(torch.randn(3, 4))


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


class Noised(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Noisy.apply(F.dropout(x, 0.5)), x * 2


def test_passes_that_are_repeated_draw_the_numbers_of_functions_again() -> None:
    module = wrap(Noised())
    x = torch.ones(50, requires_grad=True)
    y, _ = module(x)
    state = torch.get_rng_state()
    y.sum().backward(retain_graph=True)  # a surprise: gradients were expected for both
    torch.testing.assert_close(x.grad, y.detach())
    assert torch.equal(torch.get_rng_state(), state)
    x.grad = None
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    again, _ = module(x)
    assert not torch.equal(again, y)


def test_branches_on_random_numbers_are_taken_as_captured(caplog: pytest.LogCaptureFixture) -> None:
    """Layerdrop of OPT, BART, Whisper: the graph has the layers the capture took."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                if self.training and torch.rand([]) < 0.0:
                    continue
                x = torch.tanh(layer(x))
            return x

    pair = Pair(Dropping())
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
        pair.step(torch.randn(3, 6))
    assert "Dropping decides by the contents of tensors" in caplog.text
    pair.step(torch.randn(3, 6))
    pair.step(torch.randn(5, 6))


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_branches_on_random_numbers_of_python_are_told(draw: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if draw() < 2 else x

    states = random.getstate(), np.random.get_state()[1:3]
    pair = Pair(Choosing())
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
        pair.ours(torch.randn(3, 4))
    assert "Choosing draws random numbers from Python or numpy" in caplog.text
    assert random.getstate() == states[0]
    assert all(map(np.array_equal, np.random.get_state()[1:3], states[1]))


# ---- random numbers
class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.linear(x), 0.5, self.training)


def test_dropout_follows_the_seed_of_torch() -> None:
    ours = wrap(Dropped())
    x = torch.randn(8, 64)
    torch.manual_seed(7)
    first = [ours(x) for _ in range(2)]
    torch.manual_seed(7)
    second = [ours(x) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])
    dropped = (first[0] == 0).float().mean()
    assert 0.4 < dropped < 0.6
    kept = first[0] != 0
    (first[0].sum()).backward()
    torch.testing.assert_close(ours.linear.bias.grad, 2.0 * kept.sum(0).float())
    ours.eval()
    torch.testing.assert_close(ours(x), ours.module(x), rtol=1e-4, atol=1e-5)


def test_exports_leave_random_numbers_alone() -> None:
    net = Net()
    for generator in (torch.manual_seed, random.seed, np.random.seed):
        generator(5)
    expected = (torch.rand(()).item(), random.random(), np.random.rand())
    for generator in (torch.manual_seed, random.seed, np.random.seed):
        generator(5)
    wrap(net)(*batch_fixed())
    assert (torch.rand(()).item(), random.random(), np.random.rand()) == expected


def batch_fixed() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(7, 6), torch.zeros(7, dtype=torch.int64)


# ---- lower precision
def test_autocast() -> None:
    pair = Pair(Net())
    x, labels = batch(32)
    pair.step(x, labels)
    for module in (pair.ours, pair.eager):
        module.zero_grad()
    results = []
    for module in (pair.ours, pair.eager):
        with torch.autocast("cpu", torch.bfloat16):
            loss, logits, _ = module(x, labels)
        assert logits.dtype == torch.bfloat16
        loss.float().backward()
        results.append((loss.float(), logits.float()))
    torch.testing.assert_close(*results, rtol=0.05, atol=0.05)
    for (name, a), b in zip(pair.ours.named_parameters(), pair.eager.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.dtype == torch.float32
        assert float((a.grad - b.grad).norm() / b.grad.norm()) < 0.05, name
    for module in (pair.ours, pair.eager):
        module.zero_grad()
    pair.step(x, labels)  # off again: the first export
    assert pair.exports == 2


@pytest.mark.slow
def test_bfloat16_parameters() -> None:
    net = Net().to(torch.bfloat16)
    ours = wrap(net)
    x = torch.randn(32, 6, dtype=torch.bfloat16)
    labels = torch.randint(0, 4, (32,))
    loss = ours(x, labels)[0]
    loss.backward()
    ours_gradient = ours.head.weight.grad.float()
    ours.zero_grad()
    net(x, labels)[0].backward()
    assert ours_gradient.dtype == torch.float32
    assert float((ours_gradient - net.head.weight.grad.float()).norm() / net.head.weight.grad.float().norm()) < 0.05


@pytest.mark.slow
def test_activation_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            hidden = checkpoint(self.body, x, use_reentrant=False)
            return F.cross_entropy(self.head(hidden), labels)

    Pair(Checkpointed()).step(*batch())


class Reentrant(nn.Module):
    """Activation checkpointing by torch's older way, a torch.autograd.Function."""

    def __init__(self, parts: int, first: bool = True) -> None:
        super().__init__()
        self.parts, self.first = parts, nn.Linear(4, 4) if first else nn.Identity()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint, checkpoint_sequential

        x = self.first(x)
        if self.parts > 1:
            return checkpoint_sequential(self.body, self.parts, x, use_reentrant=True)
        return checkpoint(self.body, x, use_reentrant=True)


@pytest.mark.parametrize("parts", [1, 2])
def test_reentrant_activation_checkpointing(parts: int) -> None:
    Pair(Reentrant(parts)).step(torch.randn(3, 4))


def test_reentrant_checkpoints_whose_gradients_depend_on_the_caller_are_refused() -> None:
    """PyTorch gives the weights inside a gradient only where an argument has one."""
    module = Reentrant(1, first=False)
    with pytest.raises(ORTModuleFallbackException, match="use_reentrant=False"):
        wrap(module)(torch.randn(3, 4))
    Pair(module.requires_grad_(False)).step(torch.randn(3, 4, requires_grad=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_around(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    ours = wrap(nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Dropout(0.5)))
    gradients = []
    for call in (lambda x: checkpoint(ours, x, use_reentrant=reentrant), ours):  # the first call exports
        x = torch.linspace(-1, 1, 20).reshape(4, 5).requires_grad_()
        ours.zero_grad()
        torch.manual_seed(0)
        call(x).square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in ours.parameters())])
    torch.testing.assert_close(*gradients)


def test_training_tracks_eager() -> None:
    torch.manual_seed(0)
    pair = Pair(Net())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (pair.ours, pair.eager)]
    losses = []
    for step in range(10):
        torch.manual_seed(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        result = pair.step(*batch(8 + step % 3), loss=lambda r: r[0])
        losses.append(result[0].item())
        for optimizer in optimizers:
            optimizer.step()
    assert len(set(losses)) == 10


@pytest.mark.slow
def test_many_exports_are_told(caplog: pytest.LogCaptureFixture) -> None:
    ours = wrap(Net(), dynamic_shapes="never")
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"), torch.no_grad():
        for n in range(1, 9):
            ours(batch(n)[0])
    assert "was exported 8 times" in caplog.text
