"""One engine training one network, in a process of its own: by how much resident memory grows.

python benchmarks/memory_worker.py ENGINE NETWORK THREADS DROPOUT [OPTIONS]

OPTIONS: of Backpass's ORTModule, as JSON: {"max_memory": 0.3}. The first line it prints is what was measured, as JSON.
It then answers each line, a number of steps, with the processor times of such steps.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_networks import make
from torch_worker import ENGINES

STEPS = 4


def status(field: str) -> int:
    """Bytes, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def settled() -> int:
    """Resident bytes when nothing is left over; the highest is counted from here on."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def wrapped(engine: str, module: nn.Module, options: dict[str, Any]) -> Any:
    if not options:
        return ENGINES[engine](module)
    from backpass import ORTModule
    from backpass.ortmodule import RuntimeOptions

    return ORTModule(module, options=RuntimeOptions(**options))


class Training:
    """Steps with Adam: its state and the gradients are there from the first step on."""

    def __init__(self, engine: str, module: nn.Module, inputs: tuple[Any, ...], **options: Any) -> None:
        self.module, self.inputs = module, inputs
        self.trained = wrapped(engine, module, options)
        # Written out, Adam would need temporary tensors as large as the largest parameter.
        self.optimizer = torch.optim.Adam(module.parameters(), lr=1e-4, fused=True)

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.trained(*self.inputs)
        loss.backward()
        self.optimizer.step()
        return float(loss)

    def bytes_of_optimizer(self) -> int:
        """And of the gradients."""
        states = [t for state in self.optimizer.state.values() for t in state.values()]
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        return sum(t.untyped_storage().nbytes() for t in (*states, *gradients))

    def prepare(self) -> int:
        """Ours: all that comes before the first step, the plan included, whose bytes are told."""
        manager = self.trained._manager
        call = manager._call(manager._look(), self.inputs, {})
        variant = manager._variant(call)
        feeds = variant.feeds_for(call)
        return int(variant.graph(feeds).session.plan([t.detach() for t in feeds]).peak_bytes)

    def notes(self) -> list[str]:
        """Ours: of passes that say what happens to memory."""
        sessions = [g.session for v in self.trained._manager.variants for g in v.graphs.values()]
        reports = [r for session in sessions for r in session.pass_reports()]
        return [f"{r.pass_name}: {r.what}" for r in reports if r.pass_name in ("recompute", "chunk_loss")]


class Summed(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def warm(engine: str) -> None:
    """Imports, threads, code that is read from disk: part of any program, not of a network."""
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 64), nn.LayerNorm(64), nn.Dropout(0.1)
    training = Training(engine, Summed(*layers), (torch.randn(2, 3, 8, 8),))
    training.step()
    training.step()


def measured(engine: str, network: str, dropout: float, options: dict[str, Any]) -> tuple[Training, dict[str, Any]]:
    """Bytes, all over those of the loaded model: when all is prepared, and the most that steps took."""
    warm(engine)
    module, inputs = make(network, dropout)
    before = settled()
    training = Training(engine, module, inputs, **options)
    planned = training.prepare() if engine == "backpass" else 0
    prepared = settled() - before
    losses = [training.step() for _ in range(STEPS)]
    growth = status("VmHWM") - before
    return training, {
        "prepared": prepared, "growth": growth, "optimizer": training.bytes_of_optimizer(), "planned": planned,
        "losses": losses, "notes": training.notes() if engine == "backpass" else [],
    }  # fmt: skip


def processor_time(step: Callable[[], float]) -> float:
    began = time.process_time()  # of all threads: other programs do not count
    step()
    return time.process_time() - began


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    engine, network, threads, dropout = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    options = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    os.sched_setaffinity(0, range(threads))  # whatever an engine thinks of the number
    torch.set_num_threads(threads)
    answers, sys.stdout = sys.stdout, sys.stderr
    training, found = measured(engine, network, dropout, options)
    print(json.dumps(found), file=answers, flush=True)
    for line in sys.stdin:
        print(*(processor_time(training.step) for _ in range(int(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
