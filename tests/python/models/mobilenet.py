"""A network like MobileNetV2: depthwise convolution, ReLU6, inverted residuals."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from models.network import Extents, Feeds, Network, normal, settle_statistics

# One row per stage: expansion, channels, blocks, stride of the first.
STAGES = {
    "test": ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 2, 2)),
    "bench": (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ),
}
STEM = {"test": 16, "bench": 32}
LAST = {"test": 64, "bench": 1280}
SIDE = {"test": 32, "bench": 224}


def conv(channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(channels)]


class InvertedResidual(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        layers = [*conv(channels_in, hidden, 1), nn.ReLU6()] if expansion != 1 else []
        layers += [*conv(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(), *conv(hidden, channels, 1)]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNet(nn.Module):
    def __init__(self, size: str, classes: int = 1000) -> None:
        super().__init__()
        channels_in = STEM[size]
        layers = [*conv(3, channels_in, 3, 2), nn.ReLU6()]
        for expansion, channels, blocks, stride in STAGES[size]:
            for block in range(blocks):
                layers.append(InvertedResidual(channels_in, channels, stride if block == 0 else 1, expansion))
                channels_in = channels
        layers += [*conv(channels_in, LAST[size], 1), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(LAST[size], classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(image).mean([2, 3]))


def build(size: str) -> nn.Module:
    return settle_statistics(MobileNet(size), torch.randn(4, 3, 64, 64))


def feeds(size: str, extents: Extents, rng: np.random.Generator) -> Feeds:
    return {"image": normal(rng, extents.batch, 3, SIDE[size], SIDE[size])}


NETWORK = Network("mobilenet", build, feeds, {"image": {0: "batch"}}, ["scores"], bench=Extents(batch=1))
