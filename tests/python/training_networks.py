"""Six small networks that are trained both by torch and by Backpass: see test_training_curves.py."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from models.bert import Bert
from torch import nn

CLASSES = 7


@dataclass(frozen=True)
class Trainee:
    """A network and a maker of one batch of its inputs; labels are drawn by the test."""

    build: Callable[[], nn.Module]
    batch: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    rate: float = 0.05  # of gradient descent
    adam_rate: float = 1e-3


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        same = stride == 1 and inside == outside
        self.side = nn.Sequential() if same else nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.side(x))


def resnet18(width: int = 8) -> nn.Module:
    """ResNet-18's blocks, narrower."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inside = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        outside = width << stage
        layers += [Residual(inside, outside, stride), Residual(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], bidirectional: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 12)
        self.cells = kind(12, 16, batch_first=True, bidirectional=bidirectional)  # type: ignore[call-arg]
        self.head = nn.Linear(16 * (1 + bidirectional), CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.cells(self.embedding(words))
        return self.head(states.mean(1))


class TinyBert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Bert(words=60, positions=16, layers=2, hidden=32, heads=4)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(ids, mask, kinds)[1])


def images(channels: int, size: int) -> Callable[[np.random.Generator], tuple[np.ndarray, ...]]:
    return lambda rng: (rng.standard_normal((8, channels, size, size)).astype(np.float32),)


def words(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return (rng.integers(0, 50, (8, 11)),)


def sentences(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    lengths = rng.integers(4, 13, (8, 1))
    return (
        rng.integers(0, 60, (8, 12)),
        (np.arange(12) < lengths).astype(np.int64),
        rng.integers(0, 2, (8, 12)),
    )


TRAINEES = {
    "mlp": Trainee(
        lambda: nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, CLASSES)),
        lambda rng: (rng.standard_normal((8, 20)).astype(np.float32),),
    ),
    "cnn": Trainee(
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 10, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(90, 24), nn.ReLU(), nn.Linear(24, CLASSES),
        ),
        images(1, 14),
    ),
    # At larger rates torch's own float32 losses part by more than 1e-4 within ten steps: from its float64 ones, or when
    # the samples of a batch come in another order.
    "resnet18": Trainee(resnet18, images(3, 16), rate=0.003, adam_rate=1e-4),
    "lstm": Trainee(lambda: Recurrent(nn.LSTM, True), words),
    "gru": Trainee(lambda: Recurrent(nn.GRU, False), words),
    "bert": Trainee(TinyBert, sentences),
}  # fmt: skip


def export(module: nn.Module, inputs: tuple[np.ndarray, ...]) -> onnx.ModelProto:
    """As recommended for training: parameters kept under their names, nothing folded, training mode."""
    buffer = io.BytesIO()
    names = [f"input_{i}" for i in range(len(inputs))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(x) for x in inputs),
            buffer,
            dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            export_params=True,
            keep_initializers_as_inputs=False,
            opset_version=17,
            input_names=names,
            output_names=["scores"],
            dynamic_axes={name: {0: "batch"} for name in [*names, "scores"]},
        )
    return onnx.load_model_from_string(buffer.getvalue())
