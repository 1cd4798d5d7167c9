"""One engine training one network, on request: reads seconds from its input, answers with step times and losses.

python benchmarks/torch_worker.py ENGINE NETWORK THREADS DROPOUT OPTIMIZER

The first line it prints is the time of making the engine and of the first step, and how much of that torch took to
capture the module. Each answer: the times in seconds, then the losses. A step is forward, backward, what the optimizer
does, and zero_grad. OPTIMIZER is adam or none. "possible" instead of seconds: what a step of ours takes at least on
this machine, as its profile tells, in seconds.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_networks import make_batches

RATE = 1e-4
# What leaves rows out that nobody needs.
COMPUTE_LESS = ("skip_ignored_labels", "move_rows", "skip_padding", "move_slices")


def ortmodule(module: nn.Module) -> nn.Module:
    from backpass import ORTModule

    return ORTModule(module)


def all_rows(module: nn.Module) -> nn.Module:
    from backpass import ORTModule
    from backpass.ortmodule import RuntimeOptions

    return ORTModule(module, options=RuntimeOptions(disabled_passes=COMPUTE_LESS))


def ours_compiled(module: nn.Module) -> Any:
    began = time.perf_counter()
    import torch._dynamo  # which torch.compile does first

    loading.append(time.perf_counter() - began)
    from backpass.dynamo import backpass  # by name it is only known where Backpass is installed

    return torch.compile(module, backend=backpass)


def original(module: nn.Module) -> nn.Module:
    """Its threads neither follow OMP_NUM_THREADS nor the processors that a process is given."""
    from onnxruntime.training.ortmodule import ORTModule
    from onnxruntime.training.ortmodule._graph_execution_manager import GraphExecutionManager

    configured = GraphExecutionManager._get_session_config

    def with_threads(manager: Any) -> Any:
        options, *others = configured(manager)
        options.intra_op_num_threads = torch.get_num_threads()
        return options, *others

    GraphExecutionManager._get_session_config = with_threads
    return ORTModule(module)


ENGINES: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda module: module,
    "backpass": ortmodule,
    "backpass-dense": all_rows,
    "backpass-compile": ours_compiled,
    "inductor": lambda module: torch.compile(module, backend="inductor"),
    "original": original,
}


loading: list[float] = []


def captured_by_torch(engine: str, trained: Any) -> float:
    """Seconds that torch itself took to make graphs for Backpass: torch.export, and dynamo before it."""
    if engine.startswith("backpass") and engine != "backpass-compile":
        return sum(v.exported.torch_seconds for v in trained._manager.variants)
    if engine != "backpass-compile":
        return 0.0
    from backpass.dynamo.backend import record
    from torch._dynamo.utils import compilation_time_metrics

    compiled = sum(compilation_time_metrics["_compile.compile_inner"])
    ours = sum(graph.seconds - graph.torch_seconds for graph in record().graphs)
    return sum(loading) + compiled - ours


# ---- Optimizers
def our_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    from backpass.optim import AdamWMode, FusedAdam

    return FusedAdam(parameters, RATE, weight_decay=0.01, adam_w_mode=AdamWMode.ADAMW_TORCH)


def torch_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The fastest that torch has."""
    return torch.optim.AdamW(parameters, RATE, eps=1e-6, weight_decay=0.01, fused=True)


def original_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Its own one knows GPUs alone; where that is so, torch's."""
    try:
        from onnxruntime.training.optim import FusedAdam

        return FusedAdam(parameters, RATE, weight_decay=0.01)
    except Exception:  # whatever keeps it from running here
        return torch_adam(parameters)


ADAM = {"backpass": our_adam, "backpass-dense": our_adam, "backpass-compile": our_adam, "original": original_adam}


class NoOptimizer:
    def step(self) -> None: ...


def optimizer_for(engine: str, name: str, module: nn.Module) -> Any:
    if name == "none":
        return NoOptimizer()
    return ADAM.get(engine, torch_adam)([p for p in module.parameters() if p.requires_grad])


# ---- What is possible
def possible(module: nn.Module, batches: list[tuple[Any, ...]], optimizer: str) -> float:
    """Seconds that steps on these batches take at least, the mean of them. An update reads a weight, its gradient and
    two moments, and writes all but the gradient: once each, if nothing comes between."""
    from backpass import ORTModule
    from backpass.ortmodule import RuntimeOptions

    profiled = ORTModule(module, options=RuntimeOptions(profile=True))
    for _ in range(2):  # the first exports and builds
        profiled.take_profile()
        for batch in batches:
            profiled(*batch).backward()
            module.zero_grad()
    profile = profiled.take_profile()
    least = profile.summary().limit_us / len(batches)
    if optimizer != "none":
        weights = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
        least += profile.limits().memory_us(7 * weights)
    return 1e-6 * least


def timed(step: Callable[[], float]) -> tuple[float, float]:
    began = time.perf_counter()
    loss = step()
    return time.perf_counter() - began, loss


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    engine, network, threads, dropout = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    optimizer_name = sys.argv[5]
    os.sched_setaffinity(0, range(threads))  # whatever an engine thinks of the number
    torch.set_num_threads(threads)
    module, batches = make_batches(network, dropout)
    turns = itertools.cycle(batches)
    began = time.perf_counter()
    trained = ENGINES[engine](module)
    optimizer = optimizer_for(engine, optimizer_name, module)

    def step() -> float:
        loss = trained(*next(turns))
        loss.backward()
        optimizer.step()
        module.zero_grad()
        return float(loss)

    step()
    answers = sys.stdout
    sys.stdout = sys.stderr
    first = time.perf_counter() - began
    print(first, captured_by_torch(engine, trained), file=answers, flush=True)
    for line in sys.stdin:
        if line.strip() == "possible":
            print(possible(module, batches, optimizer_name), file=answers, flush=True)
            continue
        end = time.perf_counter() + float(line)
        found = [timed(step)]
        while time.perf_counter() < end:
            found.append(timed(step))
        print(*(t for t, _ in found), *(loss for _, loss in found), file=answers, flush=True)


if __name__ == "__main__":
    main()
