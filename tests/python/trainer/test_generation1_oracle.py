"""The numeric oracle of the original's tests, on Fashion-MNIST: a perceptron follows torch with the same seed.

784-500-10 with a constant buffer, torch seed 1, data in their order, batches of 64, SGD 0.01.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from backpass.trainer import ORTTrainer
from networks_of_generation1 import RATE, Perceptron, description, nll
from torch import Tensor

EXAMPLES = Path(__file__).parents[3] / "examples"
BATCH, RATE_OF_STEP, LOG_EVERY = 64, 0.01, 100


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """To train and to test with, as pixels in rows, and what they show."""
    debian = Path("/usr/share/datasets/fashion-mnist")
    if not debian.exists() and importlib.util.find_spec("sklearn") is None:
        pytest.skip(f"neither {debian} (Debian's dataset-fashion-mnist) nor scikit-learn's digits are installed")
    sys.path.insert(0, str(EXAMPLES))
    try:
        data = importlib.import_module("fashion").load_all()
    finally:
        sys.path.remove(str(EXAMPLES))
    arrays = (data.images.reshape(len(data.images), -1), data.labels)
    tests = (data.test_images.reshape(len(data.test_images), -1), data.test_labels)
    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in (*arrays, *tests))  # type: ignore[return-value]


class Course:
    """Losses of an epoch, each hundredth batch's, and of the test."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.module = Perceptron(784, 500, 10)

    def step(self, data: Tensor, target: Tensor) -> float:
        raise NotImplementedError

    def scores(self, data: Tensor) -> Tensor:
        raise NotImplementedError

    def epoch(self, images: Tensor, labels: Tensor) -> list[float]:
        batches = zip(images.split(BATCH), labels.split(BATCH), strict=True)
        losses = [self.step(*batch) for batch in batches]
        return losses[::LOG_EVERY]

    def test(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        scores = torch.cat([self.scores(part) for part in images.split(1000)])
        return nll(scores, labels).item(), (scores.argmax(1) == labels).double().mean().item()


class ByTorch(Course):
    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.SGD(self.module.parameters(), RATE_OF_STEP)

    def step(self, data: Tensor, target: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = nll(self.module(data), target)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def scores(self, data: Tensor) -> Tensor:
        with torch.no_grad():
            return self.module(data)


class ByTrainer(Course):
    def __init__(self) -> None:
        super().__init__()
        self.trainer = ORTTrainer(self.module, nll, description(784, 10), "SGDOptimizer", None, RATE, "cpu")

    def step(self, data: Tensor, target: Tensor) -> float:
        loss, _ = self.trainer.train_step(data, target, torch.tensor([RATE_OF_STEP]))
        return loss.item()

    def scores(self, data: Tensor) -> Tensor:
        return self.trainer.eval_step(data, fetches=["probability"])


def compare(images: tuple[Tensor, Tensor, Tensor, Tensor], epochs: int) -> None:
    ours, theirs = ByTrainer(), ByTorch()
    for _ in range(epochs):
        losses = ours.epoch(*images[:2])
        assert losses == pytest.approx(theirs.epoch(*images[:2]), rel=1e-4)
        loss, accuracy = ours.test(*images[2:])
        expected_loss, expected_accuracy = theirs.test(*images[2:])
        assert loss == pytest.approx(expected_loss, rel=1e-4)
        assert accuracy == pytest.approx(expected_accuracy, abs=2e-4)


def test_perceptron_follows_torch_for_a_while(images: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    few = tuple(part[:count] for part, count in zip(images, (6400, 6400, 2000, 2000), strict=True))
    compare(few, epochs=1)  # type: ignore[arg-type]


@pytest.mark.slow
def test_perceptron_follows_torch_over_two_epochs(images: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    compare(images, epochs=2)
