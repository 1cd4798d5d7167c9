"""Sequences of which every key is hidden, beside others that are padded: what they give and get is torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ortmodule_check import wrap
from torch import nn
from torch.nn import functional

WIDTH, HEADS = 16, 4
LOWEST = torch.finfo(torch.float32).min
Attend = Callable[..., torch.Tensor]


def far(queries: int, keys: int) -> torch.Tensor:
    """Keys that are far away count less."""
    return -(torch.arange(queries)[:, None] - torch.arange(keys)).abs() * 0.3


def filled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, dropout: float) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / 2 + far(q.shape[2], k.shape[2])
    return functional.dropout(scores.masked_fill(~seen, LOWEST).softmax(-1), dropout) @ v


def filled_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, dropout: float) -> torch.Tensor:
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~seen, LOWEST)
    return functional.dropout((scores + far(q.shape[2], k.shape[2])).softmax(-1), dropout) @ v


def added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, dropout: float) -> torch.Tensor:
    mask = torch.where(seen, far(q.shape[2], k.shape[2]), LOWEST)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


class Reader(nn.Module):
    """Looks up what it needs in another, padded text."""

    def __init__(self, attend: Attend, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.inner, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend, self.dropout = attend, dropout

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, asked: torch.Tensor, text: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x, y = self.words(asked), torch.tanh(self.inner(self.words(text)))
        operands = (self.heads(project(t)) for project, t in ((self.q, x), (self.k, y), (self.v, y)))
        found = self.attend(*operands, seen[:, None, None, :] > 0, self.dropout)
        return (x + self.out(found.transpose(1, 2).flatten(2))).square().sum(-1).mean()


def step(module: Any, batch: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    torch.manual_seed(3)
    module.zero_grad()
    loss = module(*batch)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("attend", [filled, filled_first, added])
def test_a_text_without_words(attend: Attend, dropout: float) -> None:
    torch.manual_seed(1)
    module = Reader(attend, dropout)
    lengths = torch.tensor([1, 0, 3, 2])
    batch = (torch.randint(20, (4, 5)), torch.randint(20, (4, 9)), (torch.arange(9) < lengths[:, None]).long())
    ours = step(wrap(copy.deepcopy(module)), batch)
    plain = step(wrap(copy.deepcopy(module), enable_compute_optimizer=False), batch)
    # The gradient of torch's own fused attention takes all keys of such a row for the only one.
    rivals = [plain] if dropout or attend is added else [plain, step(module, batch)]
    for expected in rivals:
        largest = max(float(t.abs().max()) for t in expected)
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * largest)
