"""Small models for the second generation's trainer, with their descriptions."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

LINEAR = {"inputs": [("x", [2, 2]), ("label", [2])], "outputs": [("loss", [], True), ("output", [2, 4])]}


class Linear(nn.Module):
    """Takes its inputs by name, in another order than they are described in; has a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, y=None, x=None):
        return self.linear(x) + (self.shift if y is None else y)


def cross_entropy(x, label):
    return functional.nll_loss(functional.log_softmax(x, dim=1), label)


def linear(seed=1):
    torch.manual_seed(seed)
    return Linear()


def linear_data(seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, generator=generator), torch.tensor([0, 1])


NTOKENS, BPTT, BATCH = 37, 7, 4


class Transformer(nn.Module):
    """As in the getting-started sample, smaller."""

    def __init__(self, dropout=0.2, width=8):
        super().__init__()
        self.width = width
        place = torch.arange(20.0).unsqueeze(1) * torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        self.register_buffer("pe", torch.stack([place.sin(), place.cos()], 2).reshape(20, 1, width))
        self.embedding = nn.Embedding(NTOKENS, width)
        layer = nn.TransformerEncoderLayer(width, 2, width, dropout)
        self.transformer_encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(width, NTOKENS)
        self.input1_mask = None

    def forward(self, input1):
        if self.input1_mask is None or self.input1_mask.size(0) != len(input1):
            self.input1_mask = torch.full((len(input1), len(input1)), -math.inf).triu(1)
        embedded = self.embedding(input1) * math.sqrt(self.width)
        return self.decoder(self.transformer_encoder(self.dropout(embedded + self.pe[: len(input1)]), self.input1_mask))


def flat_loss(output, target):
    return functional.cross_entropy(output.view(-1, NTOKENS), target)


def transformer_description(dynamic=False):
    bptt, batch, both = ("bptt", "batch_size", "both") if dynamic else (BPTT, BATCH, BPTT * BATCH)
    return {
        "inputs": [("input1", [bptt, batch]), ("label", [both])],
        "outputs": [("loss", [], True), ("predictions", [bptt, batch, NTOKENS])],
    }


def transformer(seed=3, dropout=0.2):
    torch.manual_seed(seed)
    return Transformer(dropout)


def transformer_data(step, bptt=BPTT):
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(0, NTOKENS, (bptt + 1, BATCH), generator=generator)
    return tokens[:-1], tokens[1:].reshape(-1)


def assert_same_state(found, expected, path="state"):
    assert found.keys() == expected.keys(), path
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_same_state(found[name], value, f"{path}/{name}")
        else:
            assert np.array_equal(np.asarray(found[name]), np.asarray(value)), f"{path}/{name}"
