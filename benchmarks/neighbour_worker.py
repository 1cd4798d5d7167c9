"""Training steps in a process of their own, for benchmarks/neighbour.py: each line read is a number of seconds,
answered by the times of the steps taken meanwhile.

python benchmarks/neighbour_worker.py SUBJECT THREADS FOLDER

Subjects: `mlp` and `cnn` through the native API, from artifacts in the folder, without torch in the process;
`mlp+torch` and `cnn+torch` where torch has started OpenMP's threads before and uses them between steps, which is not
part of the times;
`mlp ORTModule` and `llama ORTModule` with FusedAdam; `mlp eager` and `llama eager`.
`prepare` in place of a subject writes the artifacts.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

NATIVE = {"mlp": "mlp", "cnn": "mnist_cnn"}  # names in train.py
Step = Callable[[], object]
between: list[Step] = []  # what is done before each step, and not timed


def prepare(folder: Path) -> None:
    import train

    for name, network in NATIVE.items():
        (folder / name).mkdir()
        _, x, y = train.prepare(network, folder / name)
        np.savez(folder / name / "batch.npz", x=x, y=y)


def native(name: str, threads: int, folder: Path) -> Step:
    import backpass
    from backpass.api import CheckpointState, Module, Optimizer

    options = backpass.SessionOptions()
    options.num_threads = threads
    state = CheckpointState.load_checkpoint(folder / name / "checkpoint")
    module = Module(folder / name / "training_model.onnx", state, session_options=options)
    optimizer = Optimizer(folder / name / "optimizer_model.onnx", module)
    batch = np.load(folder / name / "batch.npz")
    x, y = batch["x"], batch["y"]

    def step() -> None:
        module(x, y)
        optimizer.step()
        module.lazy_reset_grad()

    return step


def beside_torch(name: str, threads: int, folder: Path) -> Step:
    import torch

    torch.set_num_threads(threads)
    source = torch.randn(1 << 18)
    between.append(lambda: source.mul(2.0))
    between[0]()  # OpenMP's threads are there first
    return native(name, threads, folder)


def torch_module(name: str, threads: int) -> tuple[object, tuple[object, ...]]:
    import torch
    import torch_networks
    import train
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if name == "llama":
        return torch_networks.make("llama", 0.0)

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = train.NETWORKS["mlp"][0]()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.body(x), y)

    return WithLoss(), (torch.randn(64, 784), torch.randint(0, 10, (64,)))


def through_torch(name: str, engine: str, threads: int) -> Step:
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    module, inputs = torch_module(name, threads)
    if engine == "ORTModule":
        from backpass import ORTModule
        from backpass.optim import FusedAdam

        trained, optimizer = ORTModule(module), FusedAdam(module.parameters(), 1e-3)
    else:
        trained, optimizer = module, torch.optim.AdamW(module.parameters(), 1e-3, fused=True)

    def step() -> None:
        trained(*inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def make(subject: str, threads: int, folder: Path) -> Step:
    name, _, engine = subject.partition(" ")
    if engine:
        return through_torch(name, engine, threads)
    name, plus, _ = subject.partition("+")
    return (beside_torch if plus else native)(name, threads, folder)


def main() -> None:
    subject, threads, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if subject == "prepare":
        prepare(folder)
        return
    step = make(subject, threads, folder)
    for _ in range(5):
        step()
    answers, sys.stdout = sys.stdout, sys.stderr
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        times = []
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end or not times:
            for work in between:
                work()
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        print(*times, file=answers, flush=True)


if __name__ == "__main__":
    main()
