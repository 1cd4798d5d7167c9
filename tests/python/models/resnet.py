"""ResNet-18: convolution, BatchNormalization, residual additions, pooling."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from models.network import Extents, Feeds, Network, normal, settle_statistics

# (channels of the first stage, image side)
SIZES = {"test": (8, 48), "bench": (64, 224)}


class BasicBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width: int, classes: int = 1000) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        blocks: list[nn.Module] = []
        channels_in = width
        for stage in range(4):
            channels = width << stage
            blocks += [BasicBlock(channels_in, channels, 1 if stage == 0 else 2), BasicBlock(channels, channels, 1)]
            channels_in = channels
        self.features = nn.Sequential(*stem, *blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels_in, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(image)), 1))


def build(size: str) -> nn.Module:
    return settle_statistics(ResNet18(SIZES[size][0]), torch.randn(4, 3, 64, 64))


def feeds(size: str, extents: Extents, rng: np.random.Generator) -> Feeds:
    side = SIZES[size][1]
    return {"image": normal(rng, extents.batch, 3, side, side)}


NETWORK = Network("resnet18", build, feeds, {"image": {0: "batch"}}, ["scores"], bench=Extents(batch=1))
