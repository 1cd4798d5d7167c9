"""What it costs to hand tensors between torch and the engine, beside the work itself.

    python benchmarks/handover.py [--parameters 200] [--tensors 300] [--rounds 200]

Steps of a module that has many parameters and next to nothing to compute (their sum), forward and backward, in turns:
through ORTModule, through an empty torch.autograd.Function that takes the same tensors and gives back gradients made
beforehand, and in eager torch. Then tensors crossing one way and the other by themselves. Medians of processor time,
one thread.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from backpass import _core
from backpass.ortmodule import FallbackPolicy, ORTModule, RuntimeOptions
from torch import nn


class Sum(nn.Module):
    """The sum of all its parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.full((8,), 0.5)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, *self.parts]).sum()


class Empty(torch.autograd.Function):
    """The least that any engine behind torch's autograd costs."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return result.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, None, *(torch.empty_like(t) for t in ctx.saved_tensors[1:]))


def microseconds(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor time of one call of each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + 10):
        for name, run in contenders.items():
            begin = time.process_time()
            run()
            if round_ >= 10:
                times[name].append((time.process_time() - begin) * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def steps(count: int, rounds: int) -> None:
    module = Sum(count)
    strict = RuntimeOptions(fallback_policy=FallbackPolicy.FALLBACK_DISABLE)
    ours = ORTModule(Sum(count), options=strict)
    x, result = torch.zeros(1), torch.zeros(())
    parameters = list(module.parameters())

    def step(forward: Callable[[], torch.Tensor], owner: nn.Module) -> Callable[[], None]:
        def run() -> None:
            for parameter in owner.parameters():
                parameter.grad = None
            forward().backward()

        return run

    contenders = {
        "ORTModule, forward and backward": step(lambda: ours(x), ours),
        "empty autograd.Function": step(lambda: Empty.apply(result, x, *parameters), module),
        "eager": step(lambda: module(x), module),
        "ORTModule, forward without gradients": torch.no_grad()(lambda: ours(x)),
    }
    found = microseconds(contenders, rounds)
    print(f"{count} parameters of 8 elements, microseconds per step")
    for name, value in found.items():
        print(f"  {name:<40}{value:>9.0f}")
    difference = found["ORTModule, forward and backward"] - found["empty autograd.Function"]
    print(f"  {'ORTModule beyond the empty function':<40}{difference:>9.0f}")


def crossings(count: int, rounds: int) -> None:
    tensors = [torch.ones(8, 16) for _ in range(count)]
    inside = [_core.tensor_from_torch(t) for t in tensors]
    found = microseconds(
        {
            "torch to engine": lambda: [_core.tensor_from_torch(t) for t in tensors],
            "engine to torch": lambda: [_core.tensor_to_torch(t) for t in inside],
        },
        rounds,
    )
    print(f"{count} tensors, microseconds for all")
    for name, value in found.items():
        print(f"  {name:<40}{value:>9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=200)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("backpass.ortmodule").setLevel(logging.ERROR)
    steps(given.parameters, given.rounds)
    crossings(given.tensors, given.rounds)


if __name__ == "__main__":
    main()
