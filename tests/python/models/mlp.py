"""A multilayer perceptron: matrix products, bias, activation."""

from __future__ import annotations

import itertools

import numpy as np
from torch import nn

from models.network import Extents, Feeds, Network, normal

WIDTHS = {"test": (32, 64, 48, 10), "bench": (784, 1024, 1024, 512, 10)}


def build(size: str) -> nn.Module:
    widths = WIDTHS[size]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]), nn.Softmax(dim=-1))


def feeds(size: str, extents: Extents, rng: np.random.Generator) -> Feeds:
    return {"input": normal(rng, extents.batch, WIDTHS[size][0])}


NETWORK = Network("mlp", build, feeds, {"input": {0: "batch"}}, ["probabilities"], bench=Extents(batch=32))
