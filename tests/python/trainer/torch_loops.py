"""Training loops in torch that an Engine is compared with, and random modules for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class TorchLoop:
    """The same settings as `backpass.trainer.engine.Settings`, done by hand: no epsilon where gradients are clipped."""

    module: nn.Module
    loss_fn: Callable[[Any, Any], torch.Tensor]
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    accumulation_steps: int = 1
    clips: bool = False
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._calls, self._updates = 0, 0
        self._moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def train_step(self, inputs: tuple[torch.Tensor, ...], label: torch.Tensor, rate: float) -> torch.Tensor:
        self.module.train()
        loss = self.loss_fn(self.module(*inputs), label)
        loss.backward()
        self._calls += 1
        if self._calls % self.accumulation_steps == 0:
            self._updates += 1
            self._update(rate)
        return loss.detach()

    def _update(self, rate: float) -> None:
        weights = {n: p for n, p in self.module.named_parameters() if p.grad is not None and n not in self.frozen}
        gradients = {n: p.grad / self.accumulation_steps for n, p in weights.items()}
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in gradients.values()))
        limit = self.settings.get("max_norm", 1.0)
        scale = float(limit / norm) if self.clips and norm > limit else 1.0
        with torch.no_grad():
            for name, weight in weights.items():
                weight -= self._step(name, weight, gradients[name] * scale, rate)
        self.module.zero_grad()

    def _step(self, name: str, w: torch.Tensor, g: torch.Tensor, rate: float) -> torch.Tensor:
        if self.algorithm == "sgd":
            return rate * g
        alpha, beta = self.settings.get("alpha", 0.9), self.settings.get("beta", 0.999)
        epsilon, decay = self.settings.get("epsilon", 1e-8), self.settings.get("weight_decay", 0.0)
        m, v = self._moments.setdefault(name, (torch.zeros_like(w), torch.zeros_like(w)))
        m.mul_(alpha).add_(g, alpha=1 - alpha)
        v.mul_(beta).addcmul_(g, g, value=1 - beta)
        corrects = self.settings.get("correct_bias", True)
        ca = 1 - alpha**self._updates if corrects else 1.0
        cb = 1 - beta**self._updates if corrects else 1.0
        if self.algorithm == "adam" and self.settings.get("decays_after"):
            u = rate * cb**0.5 / ca * m / (v.sqrt() + epsilon)
            return u + rate * decay * (w - u)
        d = (m / ca) / ((v / cb).sqrt() + epsilon) + decay * w
        if self.algorithm == "adam":
            return rate * d
        norms = float(w.norm()), float(d.norm())
        return rate * (norms[0] / norms[1] if all(norms) else 1.0) * d


class Averaged(nn.Module):
    """Mean over positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def random_module(chance: random.Random, classes: int) -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    """A module from a batch to class scores, and a function that makes batches of some size."""
    kind = chance.choice(["vector", "image", "tokens"])
    width = chance.choice([1, 5, 8, 17])
    layers: list[nn.Module]
    if kind == "vector":
        layers, features = [], width
        make = lambda n: torch.randn(n, width)  # noqa: E731
    elif kind == "image":
        channels = chance.choice([1, 3, 4])
        layers = [nn.Conv2d(2, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if chance.random() < 0.5 else []
        side = 2 if len(layers) == 4 else 4
        layers, features = [*layers, nn.Flatten()], channels * side * side
        make = lambda n: torch.randn(n, 2, 4, 4)  # noqa: E731
    else:
        layers, features = [nn.Embedding(11, width), Averaged()], width
        make = lambda n: torch.randint(11, (n, 6))  # noqa: E731
    for _ in range(chance.randrange(3)):
        layers += _block(chance, features)
    return nn.Sequential(*layers, nn.Dropout(0.0), nn.Linear(features, classes)), make


def _block(chance: random.Random, features: int) -> list[nn.Module]:
    blocks: list[Callable[[], list[nn.Module]]] = [
        lambda: [nn.Linear(features, features), nn.Tanh()],
        lambda: [nn.Linear(features, features, bias=False), nn.BatchNorm1d(features), nn.ReLU()],
        lambda: [nn.LayerNorm(features), nn.Linear(features, features), nn.GELU()],
        lambda: [Residual(nn.Sequential(nn.Linear(features, 3), nn.Sigmoid(), nn.Linear(3, features)))],
    ]
    if features == 1:  # normalised, a single feature has no gradient but rounding, which Adam makes large
        del blocks[2]
    made = chance.choice(blocks)()
    linear = next((m for m in made if isinstance(m, nn.Linear)), None)
    if linear is not None and chance.random() < 0.25:  # tied: the same layer twice
        made.append(linear)
    return made
