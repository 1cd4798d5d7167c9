"""What rounding alone does to the gradients of a module: for those whose large terms cancel.

The gradient of a bias in front of a batch norm is zero, and what float32 leaves of it is noise: two correct programs
differ by more than any tolerance of the result. How large the noise is, PyTorch itself tells: the distance from float64
of its own float32 gradients, with weights moved by about a unit in the last place, so that sums round otherwise.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

Gradients = dict[str, torch.Tensor]
RTOL, ATOL = 1e-3, 1e-3
DRAWS = 16
ALLOWED = 4  # times the largest of the draws: other formulas and orders of adding have other constants


def gradients(module: nn.Module) -> Gradients:
    """Those that `backward` left; zeros where it left none."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}


def first_wrong(found: Gradients, wanted: Gradients, before: nn.Module, x: torch.Tensor) -> str | None:
    """The first gradient that neither tolerance nor rounding explains; `before`: the module before it ran on `x`."""
    far = [n for n in wanted if not torch.allclose(found[n], wanted[n], rtol=RTOL, atol=ATOL)]
    if not far:
        return None
    result, exact = _train(copy.deepcopy(before).double(), x.double())
    own, rounded = _train(copy.deepcopy(before), x)
    if not _same_way(own, result):  # float64 decides otherwise: it is no judge
        return far[0]
    noise = _noise(before, x, own, exact, rounded)
    for name in far:
        allowed = ATOL + RTOL * exact[name].abs() + ALLOWED * noise[name]
        if not ((found[name].double() - exact[name]).abs() <= allowed).all():
            return name
    return None


def _train(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, Gradients]:
    module.zero_grad()
    result = module(x)
    result.square().mean().backward()
    return result.detach().double(), {n: g.double() for n, g in gradients(module).items()}


def _same_way(result: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(result, other, rtol=1e-3, atol=1e-4)


def _noise(before: nn.Module, x: torch.Tensor, result: torch.Tensor, exact: Gradients, own: Gradients) -> Gradients:
    """For each tensor, the largest distance from `exact` over all draws that go the way of the module itself."""
    draw = torch.Generator().manual_seed(0)
    rounded = [own]
    for _ in range(DRAWS):
        moved = copy.deepcopy(before)
        with torch.no_grad():
            for p in moved.parameters():
                p *= 1 + torch.finfo(p.dtype).eps * torch.randint(-1, 2, p.shape, generator=draw)
        other, gradient = _train(moved, x)
        if _same_way(other, result):
            rounded.append(gradient)
    return {n: torch.stack([(g[n] - exact[n]).abs().max() for g in rounded]).max() for n in exact}
