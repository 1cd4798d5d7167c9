"""One training step of Backpass against torch eager and, where it is installed, onnxruntime-training 1.19.2: the same
network, the same start, the same batch, AdamW, in alternating blocks of one run, with the losses side by side.

python benchmarks/train.py                        everything (--write: also into docs/training_speed.md)
python benchmarks/train.py --networks mlp --threads 1 --seconds 2
BACKPASS_ORT_TRAINING_PYTHON=/path/to/python python benchmarks/train.py   with the original, on our artifacts
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import backpass
import numpy as np
import onnx
import torch
from backpass import artifacts, onnxblock
from backpass.api import CheckpointState, Module, Optimizer
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))

from training_networks import resnet18

RATE = 1e-3
BLOCK = 0.5  # seconds per engine before the next one takes its turn
ORIGINAL = os.environ.get("BACKPASS_ORT_TRAINING_PYTHON", "")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "training_speed.md"
WORKER = Path(__file__).with_name("ort_training_worker.py")


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), (64, 784), 10),
    "mnist_cnn": (mnist_cnn, (64, 1, 28, 28), 10),
    "resnet18": (lambda: resnet18(width=64), (16, 3, 32, 32), 7),
}


# ---- The contestants: calling one trains a step and returns the loss.
class Eager:
    def __init__(self, module: nn.Module, x: np.ndarray, y: np.ndarray, threads: int) -> None:
        torch.set_num_threads(threads)
        self.module, self.x, self.y = module, torch.from_numpy(x), torch.from_numpy(y)
        self.optimizer = torch.optim.AdamW(module.parameters(), RATE, eps=1e-6, weight_decay=0.0)

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.module(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Ours:
    def __init__(self, folder: Path, x: np.ndarray, y: np.ndarray, threads: int) -> None:
        options = backpass.SessionOptions()
        options.num_threads = threads
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self.module = Module(folder / "training_model.onnx", state, session_options=options)
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.x, self.y = x, y

    def __call__(self) -> float:
        loss = float(self.module(self.x, self.y))
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return loss


class Original:
    """onnxruntime-training in its own process, which times its steps itself."""

    def __init__(self, folder: Path, x: np.ndarray, y: np.ndarray, threads: int) -> None:
        np.savez(folder / "batch.npz", x=x, y=y)
        command = [ORIGINAL, WORKER, folder, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []

    def block(self, seconds: float) -> tuple[list[float], list[float]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(seconds, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().split()
        if not answer:
            raise RuntimeError("the original ended")
        values = [float(v) for v in answer]
        return values[: len(values) // 2], values[len(values) // 2 :]

    def close(self) -> None:
        self.process.kill()


def timed_block(step: Callable[[], float], seconds: float) -> tuple[list[float], list[float]]:
    times, losses = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not times:
        began = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - began)
    return times, losses


def export(module: nn.Module, x: np.ndarray) -> onnx.ModelProto:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.from_numpy(x),), buffer, dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False, opset_version=17, input_names=["x"], output_names=["scores"],
        )  # fmt: skip
    return onnx.load_model_from_string(buffer.getvalue())


def prepare(name: str, folder: Path) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    build, shape, classes = NETWORKS[name]
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    module = build().train()
    start = {key: value.clone() for key, value in module.state_dict().items()}
    x, y = rng.standard_normal(shape).astype(np.float32), rng.integers(0, classes, shape[0])
    model = export(module, x)
    module.load_state_dict(start)  # tracing has updated the statistics of batch normalisation
    known = {key for key, _ in module.named_parameters()}
    artifacts.generate_artifacts(
        model,
        requires_grad=[t.name for t in model.graph.initializer if t.name in known],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=onnxblock.optim.AdamW(adam_mode=0),
        artifact_directory=folder,
    )
    return module, x, y


def measure(name: str, threads: int, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        module, x, y = prepare(name, folder)
        steps = {"Backpass": Ours(folder, x, y, threads), "torch eager": Eager(module, x, y, threads)}
        blocks = {key: lambda s, step=step: timed_block(step, s) for key, step in steps.items()}
        original = Original(folder, x, y, threads) if ORIGINAL else None
        if original is not None:
            blocks["onnxruntime-training"] = original.block
        times: dict[str, list[float]] = {key: [] for key in blocks}
        losses: dict[str, list[float]] = {key: [] for key in blocks}
        for turn in range(max(2, round(seconds / BLOCK))):
            for key in list(blocks)[:: 1 if turn % 2 == 0 else -1]:
                try:
                    found = blocks[key](BLOCK)
                except RuntimeError:
                    blocks.pop(key)
                    continue
                times[key] += found[0][2:] if turn == 0 else found[0]
                losses[key] += found[1]
        if original is not None:
            original.close()
        return row(name, threads, times, losses)


def row(name: str, threads: int, times: dict[str, list[float]], losses: dict[str, list[float]]) -> str:
    ours = float(np.median(times["Backpass"]))
    cells = [name, str(threads)]
    for key in ("Backpass", "torch eager", "onnxruntime-training"):
        found = times.get(key)
        cells.append("-" if not found else f"{1e3 * np.median(found):.2f} ({1e3 * min(found):.2f})")
    for key in ("torch eager", "onnxruntime-training"):
        found = times.get(key)
        cells.append("-" if not found else f"{ours / np.median(found):.2f}")
    cells.append(" / ".join(f"{found[4]:.5f}" if len(found) > 4 else "-" for found in losses.values()))
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=6.0, help="per network, engine and number of threads")
    parser.add_argument("--write", action="store_true", help=f"also put the table into {PAGE.parent.name}/{PAGE.name}")
    options = parser.parse_args()
    lines = [
        "Median of single steps (forward, backward, AdamW), minimum in brackets, in ms. Under 1: Backpass is faster.",
        "",
        "| network | threads | Backpass | torch eager | ORT training 1.19.2 | to eager | to it | fifth loss |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    print(*lines, sep="\n")
    for chosen in options.networks:
        for count in options.threads:
            lines.append(measure(chosen, count, options.seconds))
            print(lines[-1], flush=True)
    if options.write:
        PAGE.write_text("\n".join(["# Training steps", "", "Written by `benchmarks/train.py --write`.", *lines, ""]))
