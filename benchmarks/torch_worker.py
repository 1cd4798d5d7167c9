"""One engine training one network, on request: reads seconds from its input, answers with step times and losses.

python benchmarks/torch_worker.py ENGINE NETWORK THREADS DROPOUT

The first line it prints is the time of making the engine and of the first step. Each answer: the times in seconds,
then the losses. A step is forward, backward and zero_grad: the optimizer is torch's in all engines and would only add.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_networks import make


def ortmodule(module: nn.Module) -> nn.Module:
    from backpass import ORTModule

    return ORTModule(module)


def ours_compiled(module: nn.Module) -> Any:
    from backpass.dynamo import backpass  # by name it is only known where Backpass is installed

    return torch.compile(module, backend=backpass)


def original(module: nn.Module) -> nn.Module:
    from onnxruntime.training.ortmodule import ORTModule

    return ORTModule(module)


ENGINES: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda module: module,
    "backpass": ortmodule,
    "backpass-compile": ours_compiled,
    "inductor": lambda module: torch.compile(module, backend="inductor"),
    "original": original,
}


def timed(step: Callable[[], float]) -> tuple[float, float]:
    began = time.perf_counter()
    loss = step()
    return time.perf_counter() - began, loss


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    engine, network, threads, dropout = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    os.sched_setaffinity(0, range(threads))  # whatever an engine thinks of the number
    torch.set_num_threads(threads)
    module, inputs = make(network, dropout)
    began = time.perf_counter()
    trained = ENGINES[engine](module)

    def step() -> float:
        loss = trained(*inputs)
        loss.backward()
        module.zero_grad()
        return float(loss)

    step()
    answers = sys.stdout
    sys.stdout = sys.stderr
    print(time.perf_counter() - began, file=answers, flush=True)
    for line in sys.stdin:
        end = time.perf_counter() + float(line)
        found = [timed(step)]
        while time.perf_counter() < end:
            found.append(timed(step))
        print(*(t for t, _ in found), *(loss for _, loss in found), file=answers, flush=True)


if __name__ == "__main__":
    main()
