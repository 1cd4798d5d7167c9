"""Small modules that decide by the contents of tensors what to compute, made at random from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn

WIDTH = 4
Condition = Callable[["Deciding", torch.Tensor, torch.Tensor], object]
Step = Callable[["Deciding", torch.Tensor, torch.Tensor], torch.Tensor]


class Deciding(nn.Module):
    """Runs its steps on (input, state); steps see the module's layers, parameters and buffers."""

    def __init__(self, seed: int, depth: int = 1) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Parameter(0.3 * torch.randn(()))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("flag", torch.tensor(draw.random() < 0.5))
        self.inner = Deciding(seed + 1, depth - 1) if depth else None
        self.steps = tuple(_step(draw, depth) for _ in range(draw.randint(1, 3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.first(x)
        for step in self.steps:
            state = step(self, x, state)
        return state


def _condition(draw: random.Random) -> Condition:
    bound = draw.choice((-0.5, 0.0, 0.1, 0.5, 1.0))
    count = draw.randint(1, 8)
    conditions: list[Condition] = [
        lambda m, x, h: h.sum() > bound,
        lambda m, x, h: x.max() > 1 + bound,
        lambda m, x, h: m.second(h).mean() < bound,
        lambda m, x, h: m.gate > 0.2 * bound,
        lambda m, x, h: m.first.weight.sum() >= bound,
        lambda m, x, h: m.flag,
        lambda m, x, h: h[0, 0].item() <= bound,
        lambda m, x, h: not h[0].mean().item() > bound,
        lambda m, x, h: (h > bound).sum().item() >= count,
        lambda m, x, h: int((x > 0).sum()) % 2 == 0,
        lambda m, x, h: (x > -1 + bound).all(),
        lambda m, x, h: (h > 1 + bound).any(),
        lambda m, x, h: torch.equal(x[0] > 0, x[1] > 0),
        lambda m, x, h: torch.allclose(x.sign(), h.sign()),
        lambda m, x, h: x.sum() > bound and h[0, 1] < bound,
        lambda m, x, h: x[0].tolist()[1] > bound or h.min() < -bound,
        lambda m, x, h: h[:, 0].argmax().item() == 1,
        lambda m, x, h: m.count % 3 != 1,
        lambda m, x, h: m.norm.running_mean[0] > 0,
        lambda m, x, h: x[x[:, 0] > 0].shape[0] > 1,
        lambda m, x, h: -1 < x.mean().item() * 2 + bound < 1,
    ]
    return draw.choice(conditions)


def _body(draw: random.Random, depth: int) -> Step:
    bodies: list[Step] = [
        lambda m, x, h: h * 2,
        lambda m, x, h: h - 1,
        lambda m, x, h: torch.tanh(m.second(h)),
        lambda m, x, h: torch.relu(m.first(h)) + x,
        lambda m, x, h: h * m.gate,
        lambda m, x, h: m.norm(h),
        lambda m, x, h: h * x.max().item(),
        lambda m, x, h: h + h[h[:, 0].argmax().item()],
        lambda m, x, h: h + m.second(x[x[:, 0] > 0]).sum(0),
        _counted,
    ]
    if depth:
        bodies += [lambda m, x, h: m.inner(h)] * 3
    return draw.choice(bodies)


def _counted(module: Deciding, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    module.count += 1
    return state + module.count


def _step(draw: random.Random, depth: int) -> Step:
    condition, yes, no = _condition(draw), _body(draw, depth), _body(draw, depth)
    kind = draw.choice(("if", "if", "if", "while", "for", "assert"))

    def step(m: Deciding, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        if kind == "if":
            return yes(m, x, h) if condition(m, x, h) else no(m, x, h)
        if kind == "while":
            while h.abs().max() > 2:
                h = h / 2
            return yes(m, x, h)
        if kind == "for":
            for _ in range(int((x > 0.5).sum()) % 3):
                h = torch.tanh(m.second(h))
            return h
        assert x.max() < 100, "too large"
        return yes(m, x, h)

    return step
