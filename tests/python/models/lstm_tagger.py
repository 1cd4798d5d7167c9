"""A sequence tagger: embedding, bidirectional LSTM, one linear layer per position."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from models.network import Extents, Feeds, Network

# (words, embedding, hidden, tags)
SIZES = {"test": (100, 16, 24, 9), "bench": (20000, 256, 256, 32)}


class Tagger(nn.Module):
    def __init__(self, words: int, embedding: int, hidden: int, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(words))
        return torch.log_softmax(self.head(states), dim=-1)


def build(size: str) -> nn.Module:
    return Tagger(*SIZES[size])


def feeds(size: str, extents: Extents, rng: np.random.Generator) -> Feeds:
    return {"words": rng.integers(0, SIZES[size][0], (extents.batch, extents.sequence))}


NETWORK = Network(
    "lstm_tagger",
    build,
    feeds,
    {"words": {0: "batch", 1: "sequence"}},
    ["log_probabilities"],
    bench=Extents(8, 64),
    frozen=["sequence"],
)
