"""Changes in place, of results, arguments and buffers: what forward does, and what is noticed before backward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from backpass.ortmodule import ORTModule
from backpass.ortmodule.fallback import ORTModuleFallbackException
from ortmodule_check import Net, Pair, batch, wrap
from torch import nn


def test_results_may_be_changed_in_place() -> None:
    pair = Pair(Net())
    data = batch()
    for module in (pair.ours, pair.eager):
        logits = module(data[0])
        logits += 1
        logits.clamp_(min=0).sum().backward()
    pair.compare()


def test_arguments_changed_before_backward_are_noticed() -> None:
    pair = Pair(Net())
    x, labels = batch()
    for module in (pair.ours, pair.eager):
        loss = module(x, labels)[0]
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    for module in (pair.ours, pair.eager):
        loss = module(x, labels)[0]
        with torch.no_grad():
            module.head.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class Flat(nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.unsqueeze(0) * w.reshape(1, 2, 3)).exp().reshape(-1)


@pytest.mark.parametrize("changed", ["x", "w", "y"])
def test_changes_behind_views_are_noticed(changed: str) -> None:
    for module in (wrap(Flat()), Flat()):
        x, w = torch.rand(2, 3), torch.rand(2, 3, requires_grad=True)
        y = module(x, w)
        if changed == "y":
            y.mul_(2)
        else:
            with torch.no_grad():
                {"x": x, "w": w}[changed].mul_(2)
        loss = y.sum()
        if changed == "w":  # what x gets would need it
            loss.backward()
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_changes_are_noticed_after_another_pass_wanted_other_gradients() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.sigmoid(x), x * 3

    for module in (wrap(Two()), Two()):
        x = torch.rand(5, requires_grad=True)
        first, second = module(x), module(x)
        second[1].sum().backward()  # which reads no result
        with torch.no_grad():
            first[0].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (first[0] + first[1]).sum().backward()


class KeepsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


class Kept(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return KeepsResult.apply(x)


def test_changes_to_what_a_function_kept() -> None:
    x = torch.rand(5, requires_grad=True)
    module = wrap(Kept())
    y = module(x)
    y.mul_(2)  # torch would refuse to go back; here the function has the result to itself
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().exp())
    y = module(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_buffers_that_forward_reads_and_writes() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
            self.steps += 1
            return (y - self.mean) * y

    pair = Pair(Average())
    for _ in range(3):
        pair.step(torch.randn(3, 4))
    assert int(pair.ours.steps) == 3


def test_arguments_that_forward_changes() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            out.copy_(y.detach())
            return y

    ours = wrap(Writes())
    x, out = torch.randn(3, 4), torch.zeros(3, 4)
    y = ours(x, out)
    assert torch.equal(y.detach(), out)


def test_gradients_of_arguments_that_forward_changes() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.full((3,), 3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(self.factor)
            return x.sum()

    with pytest.raises(ORTModuleFallbackException, match="argument 0: forward changes it in place"):
        wrap(Scales())(torch.ones(2, 3))
    gradients = []
    for module in (ORTModule(Scales()), Scales()):
        leaf = torch.ones(2, 3, requires_grad=True)
        x = leaf * 1
        module(x)
        x.sum().backward()
        gradients.append([leaf.grad, module.factor.grad])
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        x = torch.ones(2, 3)
        wrap(Scales())(x)
        torch.testing.assert_close(x, torch.full((2, 3), 3.0))


def test_an_argument_changed_in_place_allows_any_backward_pass():
    """Where gradients arrive for other results than expected the pass is repeated, from the argument's old value."""

    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            results = torch.tanh(self.layer(x)), self.layer(x * state.exp())
            state.add_(1)
            return results

    eager = Stateful()
    trained = copy.deepcopy(eager)
    found = []
    for run, module in ((wrap(trained), trained), (eager, eager)):
        state = torch.arange(4.0) / 4
        for step in range(2):
            y, z = run(torch.arange(12.0).reshape(3, 4) / 9 + step, state)
            z.sum().backward(retain_graph=True)
            y.sum().backward()
        found.append((state, module.layer.weight.grad))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)
