"""A BERT encoder, attention written out: scores, mask, softmax, weighted sum."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from models.network import Extents, Feeds, Network

# (words, positions, layers, hidden, heads)
SIZES = {"test": (200, 64, 4, 256, 4), "bench": (30522, 512, 6, 512, 8)}


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.width).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.width) + mask
        context = torch.softmax(scores, dim=-1) @ value
        return self.output(context.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps=1e-12), nn.LayerNorm(hidden, eps=1e-12)
        self.feed_forward = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.feed_forward(x))


class Bert(nn.Module):
    def __init__(self, words: int, positions: int, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions, self.kinds = (nn.Embedding(n, hidden) for n in (words, positions, 2))
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.pooler = nn.Linear(hidden, hidden)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(positions) + self.kinds(token_type_ids))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def build(size: str) -> nn.Module:
    return Bert(*SIZES[size])


def feeds(size: str, extents: Extents, rng: np.random.Generator) -> Feeds:
    shape = (extents.batch, extents.sequence)
    lengths = rng.integers(extents.sequence // 2, extents.sequence + 1, (extents.batch, 1))
    return {
        "input_ids": rng.integers(0, SIZES[size][0], shape),
        "attention_mask": (np.arange(extents.sequence) < lengths).astype(np.int64),
        "token_type_ids": rng.integers(0, 2, shape),
    }


TOKENS = {0: "batch", 1: "sequence"}
NETWORK = Network(
    "bert",
    build,
    feeds,
    {"input_ids": TOKENS, "attention_mask": TOKENS, "token_type_ids": TOKENS},
    ["hidden_states", "pooled"],
    bench=Extents(1, 128),
)
