"""Steps in bfloat16 against steps in float32, in one process that takes turns.

python benchmarks/bf16.py [--networks bert_classify,gpt2] [--seconds 6] [--profile]

Three engines train copies of one network on one thread: Backpass in float32, Backpass under torch.autocast, and torch
eager under torch.autocast. A step is forward, backward and zero_grad. With ``BACKPASS_MAX_ISA=avx2`` Backpass takes the
road of a processor without bfloat16 arithmetic; torch has no such cap here unless ``ONEDNN_MAX_CPU_ISA`` sets one.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from timing import Times, once
from torch import nn
from torch_networks import NETWORKS

MIN_STEPS = 4
ROWS = ("bert_classify", "gpt2", "tutorial", "mnist")


class Mnist(nn.Module):
    """The convolutional network of PyTorch's MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), labels)


def make(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    if name == "mnist":
        return Mnist(), (torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))
    module, inputs = NETWORKS[name](0.0)
    return module.train(), inputs


class Engine:
    """Trains its own copy of a network with a small step of plain descent, so that losses can be compared."""

    def __init__(self, wrap: Callable[[nn.Module], Any], narrow: bool, module: nn.Module, inputs: Any) -> None:
        self.module = copy.deepcopy(module)
        self.trained = wrap(self.module)
        self.narrow, self.inputs = narrow, inputs

    def step(self) -> float:
        loss = self.gradients()
        self.module.zero_grad()
        return loss

    def gradients(self) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.narrow):
            loss = self.trained(*self.inputs)
        loss.backward()
        return float(loss)

    def losses(self, count: int) -> list[float]:
        found = []
        for _ in range(count):
            found.append(self.gradients())
            with torch.no_grad():
                for p in self.module.parameters():
                    if p.grad is not None:
                        p.sub_(0.01 * p.grad)
            self.module.zero_grad()
        return found

    def planned(self) -> float:
        """MiB of the plan of a step; nan for torch."""
        if self.trained is self.module:
            return float("nan")
        (variant,) = self.trained._manager.variants
        (graph,) = set(variant.graphs.values())
        return float(graph.session.plan(self._tensors(graph)).peak_bytes) / 2**20

    def _tensors(self, graph: Any) -> list[torch.Tensor]:
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        users = iter(self.inputs)
        return [state[v.name] if v.name in state else next(users) for v in graph.session.inputs()]


def ours(profile: bool) -> Callable[[nn.Module], Any]:
    from backpass import ORTModule
    from backpass.ortmodule import RuntimeOptions

    return lambda module: ORTModule(module, options=RuntimeOptions(profile=profile))


def row(name: str, seconds: float, profile: bool) -> None:
    module, inputs = make(name)
    engines = {
        "float32": Engine(ours(profile), False, module, inputs),
        "bf16": Engine(ours(profile), True, module, inputs),
        "eager bf16": Engine(lambda m: m, True, module, inputs),
    }
    losses = {key: engine.losses(3) for key, engine in engines.items()}
    if profile:
        show_profiles(engines)
        return
    times = in_turns({key: engine.step for key, engine in engines.items()}, seconds)
    least = {key: 1000 * t.minimum for key, t in times.items()}
    cells = [f"{least[key]:10.1f}" for key in engines] + [f"{least['bf16'] / least['float32']:8.2f}"]
    cells += [f"{least['eager bf16'] / least['bf16']:8.2f}"]
    cells += [f"{engines[key].planned():8.0f}" for key in ("float32", "bf16")]
    print(f"{name:14}", *cells, "  ", *(f"{losses[key][-1]:.4f}" for key in engines), flush=True)


def in_turns(steps: dict[str, Callable[[], Any]], seconds: float) -> dict[str, Times]:
    """One step of each at a time: steps are long, and caches are cold to all of them alike."""
    samples: dict[str, list[float]] = {key: [] for key in steps}
    end = time.perf_counter() + seconds * len(steps)
    while len(samples["float32"]) < MIN_STEPS or time.perf_counter() < end:
        for key, step in steps.items():
            samples[key].append(once(step))
    return {key: Times.of(values) for key, values in samples.items()}


def show_profiles(engines: dict[str, Engine]) -> None:
    for key, engine in engines.items():
        if engine.trained is engine.module:
            continue
        engine.trained.explain()
        for _ in range(3):
            once(engine.step)
        print(f"---- {key}, three steps")
        text = engine.trained.explain()
        print(text[text.rindex(" rewrites") :] if " rewrites" in text else text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(ROWS))
    parser.add_argument("--seconds", type=float, default=6.0, help="for each engine")
    parser.add_argument("--profile", action="store_true", help="print where the time of our steps goes, and no table")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(f"instructions: {os.environ.get('BACKPASS_MAX_ISA', 'all')}, one thread; minima in ms", file=sys.stderr)
    if not arguments.profile:
        print(
            f"{'network':14}    float32       bf16 eager bf16  bf16/f32 eager/bf16 MiB f32 MiB bf16  losses of step 3"
        )
    for name in arguments.networks.split(","):
        row(name, arguments.seconds, arguments.profile)


if __name__ == "__main__":
    main()
