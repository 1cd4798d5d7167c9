"""What the backward pass computes again instead of keeping it: the same bits, in less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backpass import ORTModule
from backpass.ortmodule import RuntimeOptions
from torch import nn


def perceptron() -> nn.Module:
    layers = [nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 64), nn.LayerNorm(64)]
    return nn.Sequential(*layers, nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 8))


class Encoder(nn.Module):
    """Attention written out, so that nothing of it is one operator, and a gated layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(64, 192)
        self.joined = nn.Linear(64, 64)
        self.norms = nn.ModuleList([nn.LayerNorm(64), nn.LayerNorm(64)])
        self.wide = nn.Linear(64, 512)
        self.narrow = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(-3, -2) for t in self.parts(self.norms[0](x)).chunk(3, -1))
        scores = torch.softmax(q @ k.transpose(-2, -1) / 4, -1)
        seen = (nn.functional.dropout(scores, 0.1, self.training) @ v).transpose(-3, -2).flatten(-2)
        x = x + nn.functional.dropout(self.joined(seen), 0.1, self.training)
        gate, value = self.wide(self.norms[1](x)).chunk(2, -1)
        return x + self.narrow(nn.functional.silu(gate) * value)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in (0, 2):
            y = torch.relu(self.norms[i](self.convolutions[i](x)))
            x = torch.relu(self.norms[i + 1](self.convolutions[i + 1](y)) + x)
        return x


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (96, 64)),
    "encoder": (lambda: nn.Sequential(Encoder(), Encoder()), (4, 48, 64)),
    "residual": (Residual, (8, 16, 14, 14)),
}


def trained(network: str, threads: int, disabled: tuple[str, ...] = ()) -> tuple[list[torch.Tensor], Any, list[str]]:
    """Losses and gradients of two steps, the plan, and what was computed again."""
    make, shape = NETWORKS[network]
    torch.manual_seed(1)
    module = make().train()
    ours = ORTModule(module, options=RuntimeOptions(num_threads=threads, disabled_passes=disabled))
    found = []
    for _ in range(2):
        x = torch.randn(shape, requires_grad=True)
        loss = ours(x).square().mean()
        loss.backward()
        found += [loss.detach(), x.grad, *(p.grad for p in module.parameters())]
        module.zero_grad()
    found += list(module.buffers())
    (graph,) = ours._manager.variants[0].graphs.values()
    inputs = ours._manager.variants[0].feeds([x])
    plan = graph.session.plan([t.detach() for t in inputs])
    return found, plan, [r.what for r in graph.session.pass_reports() if r.pass_name == "keep_less"]


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_have_the_same_bits_in_less_memory(network: str) -> None:
    for threads in (1, 2):  # scratch memory is for as many parts as there are threads
        expected, kept, none = trained(network, threads, ("keep_less",))
        assert not none
        found, plan, again = trained(network, threads)
        assert again
        assert plan.peak_bytes < 0.85 * kept.peak_bytes
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b)


def test_arguments_may_change_where_torch_lets_them() -> None:
    """tanh keeps its result only, so that its argument may change before the backward pass; parameters must not."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(256, 256))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(x + 1)
            return (y.exp() @ self.weight) * torch.sigmoid(y)

    torch.manual_seed(0)
    x = torch.randn(64, 256, requires_grad=True)
    gradients = []
    for module in (Sum(), ORTModule(Sum())):
        given = x.detach().clone()
        loss = module(given).sum()
        given.mul_(3)
        loss.backward()
        gradients.append(next(module.parameters()).grad)
    torch.testing.assert_close(*gradients)
