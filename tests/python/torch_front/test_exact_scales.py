"""Attention on float64 whose scale no float32 holds: as exact as torch's, operator or written out."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from ortmodule_check import wrap
from torch import nn
from torch.nn import functional

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def operator(scale: float, **how: bool) -> Attend:
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=scale, **how)


def written(scale: float) -> Attend:
    return lambda q, k, v: (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v


class Heads(nn.Module):
    def __init__(self, attend: Attend, length: int, kv_heads: int = 2) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        shapes = (2, 2, length, 8), (2, kv_heads, length, 8), (2, kv_heads, length, 8)
        normal = (torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes)
        self.operands = nn.ParameterList(normal)
        self.attend = attend

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return (self.attend(*self.operands) * factor).square().sum()


CASES = {
    "operator": Heads(operator(0.3), 7),
    "many queries": Heads(operator(1 / 3), 40),
    "causal": Heads(operator(0.7, is_causal=True), 20),
    "shared keys": Heads(operator(0.3, enable_gqa=True), 20, kv_heads=1),
    "tiny": Heads(operator(1e-50), 7),  # 0 as float32
    "written, few scores": Heads(written(0.3), 20),
    "written, many scores": Heads(written(0.3), 512),
}


@pytest.mark.parametrize("case", CASES)
def test_a_scale_of_64_bits(case: str) -> None:
    theirs, factor = CASES[case], torch.tensor(1.5, dtype=torch.float64)
    ours = copy.deepcopy(theirs)
    for module in (wrap(ours), theirs):
        module(factor).backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-11, atol=1e-13 * float(b.grad.abs().max()))
