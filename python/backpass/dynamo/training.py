"""train_loop: a short training run over one batch, to try a compiled module with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def train_loop(
    model: torch.nn.Module,
    *args: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 1,
) -> tuple[float, tuple[torch.Tensor | None, ...]]:
    """Runs forward, loss, backward and an optimizer step ``steps`` times; the last loss, and the last gradients in
    the order of ``model.parameters()``.

    The loss is ``loss_fn(outputs, args)``; by default the mean squared error of the first output against zeros. The
    optimizer is by default gradient descent without a step in effect (learning rate 1e-5).
    """
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    model.train()
    loss = torch.zeros(())
    for _ in range(steps):
        outputs = model(*args)
        loss = loss_fn(outputs, args) if loss_fn is not None else _distance_from_zero(outputs)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item(), tuple(p.grad for p in model.parameters())


def _distance_from_zero(outputs: Any) -> torch.Tensor:
    leaves = [outputs] if isinstance(outputs, torch.Tensor) else torch.utils._pytree.tree_leaves(outputs)
    first = next(v for v in leaves if isinstance(v, torch.Tensor) and v.is_floating_point())
    return torch.nn.functional.mse_loss(first, torch.zeros_like(first))
