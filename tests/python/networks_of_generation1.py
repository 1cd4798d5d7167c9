"""What the tests of the first generation train: a small perceptron with a constant buffer, and data for it."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from backpass.trainer import IODescription, ModelDescription, ORTTrainer
from torch import Tensor, nn

FEATURES, CLASSES = 6, 4
RATE = IODescription("Learning_Rate", [1], torch.float32)


class Perceptron(nn.Module):
    def __init__(self, features: int = FEATURES, hidden: int = 8, classes: int = CLASSES) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, hidden)
        self.fc2 = nn.Linear(hidden, classes)
        self.register_buffer("bias_buffer", torch.tensor(1e-6))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).relu()) + self.bias_buffer


class PerceptronWithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(FEATURES, 8)
        self.fc2 = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.fc2(self.fc1(x).relu())
        return nll(scores, target), scores


def nll(x: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(x, dim=1), target)


def description(features: int = FEATURES, classes: int = CLASSES, batch: int | str = "batch") -> ModelDescription:
    return ModelDescription(
        [
            IODescription("input1", [batch, features], torch.float32),
            IODescription("label", [batch], torch.int64, num_classes=classes),
        ],
        [IODescription("loss", [], torch.float32), IODescription("probability", [batch, classes], torch.float32)],
    )


_SEEDING = threading.Lock()  # torch's generator is one for all threads, and ranks may be threads


def perceptron(seed: int = 1) -> Perceptron:
    with _SEEDING:
        torch.manual_seed(seed)
        return Perceptron()


def trainer_of(module: nn.Module, optimizer: str = "SGDOptimizer", **options: Any) -> ORTTrainer:
    attributes = options.pop("attributes", None)
    loss = options.pop("loss_fn", nll)
    return ORTTrainer(module, loss, description(), optimizer, attributes, RATE, "cpu", **options)


def batch_of(seed: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, FEATURES, generator=random), torch.randint(0, CLASSES, (rows,), generator=random)


def rate_of(value: float) -> Tensor:
    return torch.tensor([value])


def train(trainer: ORTTrainer, steps: range, rate: float = 0.05) -> list[float]:
    """Losses."""
    return [trainer.train_step(*batch_of(step), rate_of(rate))[0].item() for step in steps]
