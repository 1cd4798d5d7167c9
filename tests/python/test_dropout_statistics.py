"""Training with dropout on goes as torch's does, as far as chance allows.

Over many seeds, losses must have the same mean and the same variance. Two of them are called different when they are
further apart than four standard errors of their difference, as estimated from the samples; equal ones get that far by
chance once in 16 000 times, and the seeds are fixed. That the comparison sees something is tested too: a ratio that is
off by 0.1 fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import backpass
import numpy as np
import pytest
import torch
from backpass import artifacts
from backpass.api import CheckpointState, Module, Optimizer
from backpass.onnxblock import optim
from torch import nn
from training_networks import CLASSES, export

LIMIT = 4.0
RATIO = 0.3
STEPS, SEEDS = 12, 200


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mlp(ratio: float = RATIO) -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 32), nn.ReLU(), nn.Dropout(ratio), nn.Linear(32, 32), nn.Tanh(), nn.Dropout(ratio),
        nn.Linear(32, CLASSES),
    )  # fmt: skip


class Attention(nn.Module):
    """An encoder layer: dropout of attention weights, of both residual branches, and inside the feed-forward part."""

    def __init__(self, ratio: float = RATIO) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, ratio, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(1))


NETWORKS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...], float]] = {
    "mlp": (mlp, (16, 20), 0.2),
    "attention": (Attention, (8, 6, 16), 0.1),
}


def data(shape: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [
        (rng.standard_normal(shape).astype(np.float32), rng.integers(0, CLASSES, shape[0])) for _ in range(STEPS + 1)
    ]


def start(build: Callable[..., nn.Module], *arguments: float) -> nn.Module:
    torch.manual_seed(0)
    return build(*arguments).train()


def by_torch(module: nn.Module, batches: list, rate: float) -> np.ndarray:
    """Per seed: the loss of the last step, dropout on, and that of a further batch, dropout off."""
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    given = [(torch.from_numpy(x), torch.from_numpy(labels)) for x, labels in batches]
    losses = np.empty((SEEDS, 2))
    for seed in range(SEEDS):
        module.load_state_dict(initial)
        module.train()
        torch.manual_seed(1000 + seed)
        optimizer = torch.optim.SGD(module.parameters(), rate)
        for x, labels in given[:-1]:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), labels)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            held_out = nn.functional.cross_entropy(module.eval()(given[-1][0]), given[-1][1])
        losses[seed] = loss.item(), held_out.item()
    return losses


def by_backpass(module: nn.Module, batches: list, rate: float, folder: Path) -> np.ndarray:
    model = export(module, (batches[0][0],))
    artifacts.generate_artifacts(
        model,
        requires_grad=[t.name for t in model.graph.initializer if t.name in dict(module.named_parameters())],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optim.SGD(),
        artifact_directory=str(folder),
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    options = backpass.SessionOptions()
    options.num_threads = 1
    ours = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", session_options=options)
    optimizer = Optimizer(folder / "optimizer_model.onnx", ours)
    optimizer.set_learning_rate(rate)
    initial = np.array(np.from_dlpack(ours.get_contiguous_parameters()))
    losses = np.empty((SEEDS, 2))
    for seed in range(SEEDS):
        ours.train().copy_buffer_to_parameters(initial, trainable_only=False)
        backpass.set_seed(seed)
        for x, labels in batches[:-1]:
            loss = ours(x, labels)
            optimizer.step()
            ours.lazy_reset_grad()
        losses[seed] = float(loss), float(ours.eval()(*batches[-1]))
    return losses


def mean_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In standard errors (Welch)."""
    error = np.sqrt(a.var(0, ddof=1) / len(a) + b.var(0, ddof=1) / len(b))
    return np.abs(a.mean(0) - b.mean(0)) / error


def variance_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of log variances, whose standard error follows from the fourth moment of each sample."""

    def log_variance(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        variance = x.var(0, ddof=1)
        kurtosis = ((x - x.mean(0)) ** 4).mean(0) / variance**2
        return np.log(variance), (kurtosis - (len(x) - 3) / (len(x) - 1)) / len(x)

    (one, error_one), (two, error_two) = log_variance(a), log_variance(b)
    return np.abs(one - two) / np.sqrt(error_one + error_two)


@pytest.mark.parametrize("name", ["mlp", pytest.param("attention", marks=pytest.mark.slow)])
def test_losses_have_torch_s_mean_and_variance(name: str, tmp_path: Path) -> None:
    build, shape, rate = NETWORKS[name]
    batches = data(shape)
    theirs = by_torch(start(build), batches, rate)
    ours = by_backpass(start(build), batches, rate, tmp_path)
    assert np.all(ours.std(0) > 0)  # seeds matter
    assert np.all(mean_distance(ours, theirs) < LIMIT), (ours.mean(0), theirs.mean(0))
    assert np.all(variance_distance(ours, theirs) < LIMIT), (ours.var(0), theirs.var(0))
    slightly_off = by_torch(start(build, RATIO + 0.1), batches, rate)
    assert max(mean_distance(ours, slightly_off).max(), variance_distance(ours, slightly_off).max()) > LIMIT


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_masks_are_independent_draws(ratio: float) -> None:
    """Mean and variance of kept elements, over elements of a run, over runs of an element, and of neighbours."""
    import onnx

    runs, elements = 400, 1003
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[{elements}] x) => (float[{elements}] y, bool[{elements}] mask)
    <float ratio = {{{ratio}}}, bool yes = {{1}}> {{ y, mask = Dropout(x, ratio, yes) }}""")
    session = backpass.InferenceSession(model)
    backpass.set_seed(0)
    masks = np.array([session.run(["mask"], {"x": np.ones(elements, np.float32)})[0] for _ in range(runs)])
    keep = 1 - ratio
    spread = keep * ratio
    assert abs(masks.mean() - keep) < LIMIT * np.sqrt(spread / masks.size)
    # A count of n independent draws has the variance n * spread; an estimate from m counts errs by sqrt(2 / m) of it.
    for counts, n in ((masks.sum(1), elements), (masks.sum(0), runs)):
        assert abs(counts.var(ddof=1) / (n * spread) - 1) < LIMIT * np.sqrt(2 / len(counts))
    centred = (masks - keep) / np.sqrt(spread)
    for shifted in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1], centred[:, 4:] * centred[:, :-4]):
        assert abs(shifted.mean()) < LIMIT / np.sqrt(shifted.size)
