"""Blocks of GPT-2: causal attention through torch's fused function, GELU (tanh), pre-normalisation, tied output."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from models.network import Extents, Feeds, Network

# (words, positions, layers, hidden, heads)
SIZES = {"test": (150, 64, 2, 64, 4), "bench": (8192, 1024, 6, 512, 8)}


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(approximate="tanh"), nn.Linear(4 * hidden, hidden)
        )

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).chunk(3, dim=-1)
        query, key, value = (p.view(x.shape[0], x.shape[1], self.heads, self.width).transpose(1, 2) for p in parts)
        context = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(context.transpose(1, 2).reshape(x.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Gpt2(nn.Module):
    def __init__(self, words: int, positions: int, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, hidden), nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        nn.init.normal_(self.words.weight, std=0.05)  # it is the output projection too

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.words.weight.T


def build(size: str) -> nn.Module:
    return Gpt2(*SIZES[size])


def feeds(size: str, extents: Extents, rng: np.random.Generator) -> Feeds:
    return {"input_ids": rng.integers(0, SIZES[size][0], (extents.batch, extents.sequence))}


NETWORK = Network("gpt2", build, feeds, {"input_ids": {0: "batch", 1: "sequence"}}, ["logits"], bench=Extents(1, 128))
