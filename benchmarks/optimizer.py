"""Optimizer steps of this engine and of torch, in one run: FusedAdam against torch.optim.AdamW and Adam.

    python benchmarks/optimizer.py                       # processor time and wall time per step, per thread count
    python benchmarks/optimizer.py --threads 2 --rounds 200

Subjects take turns, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from backpass.optim import AdamWMode, FusedAdam

WORKLOADS = {
    "10 x 1M": [(1_000_000,)] * 10,
    "200 small": [(100,)] * 200,
    "GPT-2 layer by layer": [(768, 2304), (2304,), (768, 768), (768,), (768, 3072), (3072,), (3072, 768), (768,)] * 12,
}
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
SUBJECTS: dict[str, Make] = {
    "backpass FusedAdam": lambda p: FusedAdam(p, lr=1e-4, weight_decay=0.01, adam_w_mode=AdamWMode.ADAMW_TORCH),
    "torch AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "torch AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True),
}


def parameters(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape).to(dtype)
    return made


def least_times(shapes: list[tuple[int, ...]], dtype: torch.dtype, rounds: int) -> dict[str, tuple[float, float]]:
    """(processor, wall) seconds of a step."""
    optimizers = {name: make(parameters(shapes, dtype)) for name, make in SUBJECTS.items()}
    best = {name: (float("inf"), float("inf")) for name in optimizers}
    for _ in range(rounds):
        for name, optimizer in optimizers.items():
            wall, processor = time.perf_counter(), time.process_time()
            optimizer.step()
            took = time.process_time() - processor, time.perf_counter() - wall
            best[name] = (min(best[name][0], took[0]), min(best[name][1], took[1]))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16", "float16"], default="float32")
    arguments = parser.parse_args()
    dtype: Any = getattr(torch, arguments.dtype)
    print(f"{'workload':24}{'threads':>8}  {'optimizer':24}{'processor ms':>14}{'wall ms':>10}{'ours is':>10}")
    for name in arguments.workloads:
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            times = least_times(WORKLOADS[name], dtype, arguments.rounds)
            ours = times["backpass FusedAdam"]
            for subject, (processor, wall) in times.items():
                row = f"{name:24}{threads:8}  {subject:24}{processor * 1e3:14.3f}{wall * 1e3:10.3f}"
                print(f"{row}{processor / ours[0]:9.2f}x", flush=True)


if __name__ == "__main__":
    main()
