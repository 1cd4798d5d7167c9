"""Runs a module and its ORTModule side by side and compares everything a user can see."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from backpass.ortmodule import FallbackPolicy, ORTModule, RuntimeOptions
from torch import nn
from torch.utils import _pytree as pytree

RTOL, ATOL = 1e-4, 1e-5


def strict(**options: Any) -> RuntimeOptions:
    """Failures are raised: a test that falls back would compare torch with torch."""
    return RuntimeOptions(fallback_policy=FallbackPolicy.FALLBACK_DISABLE, **options)


def wrap(module: nn.Module, **options: Any) -> ORTModule:
    return ORTModule(module, options=strict(**options))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from tensors_in(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from tensors_in(member)
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors_in([getattr(value, name) for name in value.__dataclass_fields__])


def total(result: Any) -> torch.Tensor:
    """A loss that needs every differentiable tensor of a result, each with weights of its own."""
    parts = [t for t in tensors_in(result) if t.requires_grad]
    weights = [torch.linspace(0.5, 1.5 + i, t.numel()).reshape(t.shape).to(t.dtype) for i, t in enumerate(parts)]
    return sum(((t * w).sum() for t, w in zip(parts, weights, strict=True)), torch.zeros(()))


def same(ours: Any, theirs: Any) -> None:
    """Equal types, structures and values."""
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert ours.requires_grad == theirs.requires_grad
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=RTOL, atol=ATOL)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    elif hasattr(ours, "__dataclass_fields__"):
        for name in ours.__dataclass_fields__:
            same(getattr(ours, name), getattr(theirs, name))
    elif hasattr(ours, "__dict__") and not isinstance(ours, type):
        same(vars(ours), vars(theirs))
    else:
        assert ours == theirs


class Pair:
    """A module in eager torch and its twin in an ORTModule."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        self.eager = module
        self.ours = wrap(copy.deepcopy(module), **options)

    def step(self, *args: Any, loss: Callable[[Any], torch.Tensor] = total, **kwargs: Any) -> Any:
        """One forward and backward on both; results, gradients and buffers must agree. Gradients add up."""
        given = [pytree.tree_map(_twin, (args, kwargs)) for _ in range(2)]
        results = [m(*a, **k) for m, (a, k) in zip((self.ours, self.eager), given, strict=True)]
        same(*results)
        losses = [loss(result) for result in results]
        if losses[1].requires_grad:
            for value in losses:
                value.backward()
        self.compare()
        for a, b in zip(*(pytree.tree_leaves(g) for g in given), strict=True):
            if isinstance(a, torch.Tensor):
                _same_gradient("an input", a.grad, b.grad)
        return results[0]

    def compare(self, rounding: float = RTOL) -> None:
        """Parameters, their gradients (within `rounding`), and buffers."""
        largest = max((float(p.grad.abs().max()) for p in self.eager.parameters() if p.grad is not None), default=0.0)
        for (name, ours), (other, theirs) in zip(
            self.ours.named_parameters(), self.eager.named_parameters(), strict=True
        ):
            assert name == other
            torch.testing.assert_close(ours.data, theirs.data, rtol=RTOL, atol=ATOL)
            _same_gradient(name, ours.grad, theirs.grad, largest, rounding)
        for (name, ours), (other, theirs) in zip(self.ours.named_buffers(), self.eager.named_buffers(), strict=True):
            assert name == other
            torch.testing.assert_close(ours, theirs, rtol=RTOL, atol=ATOL)

    @property
    def exports(self) -> int:
        return len(self.ours._manager.variants)


def _twin(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _same_gradient(
    name: str, ours: torch.Tensor | None, theirs: torch.Tensor | None, largest: float = 0.0, rounding: float = RTOL
) -> None:
    """Close to the tensor's own size; where that is noise, to the size of the largest gradient."""
    assert (ours is None) == (theirs is None), f"gradient of {name}: got {ours}, expected {theirs}"
    if ours is not None and theirs is not None:
        scale = float(theirs.abs().max()) if theirs.numel() else 0.0
        atol = max(ATOL, rounding * scale, ATOL * largest)
        torch.testing.assert_close(ours, theirs, rtol=rounding, atol=atol, msg=lambda m: f"{name}: {m}")


class Net(nn.Module):
    """A small classifier: loss, logits and what is inside; without labels the logits alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        hidden = self.body(x)
        logits = self.head(hidden)
        if labels is None:
            return logits
        return F.cross_entropy(logits, labels), logits, hidden


def batch(n: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 6), torch.randint(0, 4, (n,))
