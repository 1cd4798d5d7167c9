"""Steps whose numbers of tokens and labels are new every time: by how much resident memory grows, which share of a step
goes into looking, planning and binding, and how long the first step takes, beside the same network computing all rows.

python benchmarks/token_counts.py                         BERT, 1000 steps with 1000 counts
python benchmarks/token_counts.py --steps 50 --layers 1   a short one
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings

import numpy as np
import torch
from memory_worker import settled
from padded_networks import BATCHES, NAMES, Batch, Text, draw, encoder
from torch import nn
from torch_networks import WithLoss
from torch_worker import all_rows, ortmodule

ROWS, LENGTH, WORDS = 8, 128, 30522
MEGABYTE = 1_000_000


def batches_of(steps: int) -> list[Batch]:
    """Each with another number of tokens, from a tenth to all but a tenth of the places."""
    counts = np.random.default_rng(2).permutation(np.linspace(ROWS * LENGTH // 10, ROWS * LENGTH * 9 // 10, steps))
    drawn = draw(Text(ROWS, LENGTH, 1.0, 0.15, WORDS, 0))
    made = []
    for i, count in enumerate(counts):
        words, _, labels = drawn[i % BATCHES]
        shorter = np.diff(np.linspace(0, count, ROWS + 1).round())
        valid = torch.arange(LENGTH)[None] < torch.from_numpy(shorter)[:, None]
        made.append((words * valid, valid.long(), labels.where(valid, torch.tensor(-100))))
    return made


def network(layers: int, width: int) -> nn.Module:
    return WithLoss(encoder("Bert", "MaskedLM", layers, width, 0.1), NAMES).train()


class Training:
    """One engine on one copy of the network."""

    def __init__(self, wrap: object, module: nn.Module) -> None:
        self.module, self.trained = module, wrap(module)  # type: ignore[operator]

    def step(self, batch: Batch) -> float:
        """Processor seconds of it."""
        began = time.process_time()
        self.trained(*batch).backward()
        self.module.zero_grad()
        return time.process_time() - began


def bound_share(training: Training, batches: list[Batch]) -> float:
    """What steps with new counts take over steps with the same batches again, as a share of them. The counts of the
    second round are planned already."""
    first = sum(training.step(batch) for batch in batches)
    again = min(sum(training.step(batch) for batch in batches) for _ in range(2))
    return first / again - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    batches = batches_of(options.steps)
    ours, dense = (Training(wrap, network(options.layers, options.width)) for wrap in (ortmodule, all_rows))
    firsts = {name: training.step(batches[0]) for name, training in (("all rows", dense), ("fewer rows", ours))}
    print("first step, processor seconds: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in firsts.items()))
    held = [settled()]
    for tenth in np.array_split(np.arange(len(batches)), 10):
        for i in tenth:
            ours.step(batches[i])
        held.append(settled())
    grown = [round((bytes_held - held[1]) / MEGABYTE, 1) for bytes_held in held[1:]]
    print(f"resident memory after each tenth of {options.steps} steps, over that after the first, MB: {grown}")
    session = next(iter(ours.trained._manager.variants[0].graphs.values())).session
    print(f"graphs chosen: {[(list(c.passes), c.runs) for c in session.densities().choices]}")
    print(f"a new count adds {bound_share(ours, batches_of(40)[:20]):.2%} to the processor time of a step")


if __name__ == "__main__":
    main()
