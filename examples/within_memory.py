"""Trains a network whose steps do not fit into memory: PyTorch gives up, Backpass computes values again and trains on.

python examples/within_memory.py                 each in a process that may not grow by more than 300 MB
python examples/within_memory.py --megabytes 0   no limit
"""

from __future__ import annotations

import argparse
import logging
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from backpass import ORTModule
from backpass.ortmodule import RuntimeOptions
from torch import nn

STEPS = 3
MEGABYTE = 1_000_000


class Network(nn.Module):
    """Blocks of a transformer without the attention. Returns its loss."""

    def __init__(self, blocks: int, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return nn.functional.cross_entropy(self.head(x), labels)


def limit_growth(megabytes: int) -> None:
    """As `ulimit -v` does: no more addresses than this process has, and so many besides."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + megabytes * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def step(model: Any, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(*batch)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(engine: str, blocks: int, rows: int, megabytes: int) -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(2)
    torch.manual_seed(0)
    network = Network(blocks)
    batch = torch.randn(rows, 64), torch.randint(0, 10, (rows,))
    # Half of what there is for values; the rest for graphs, gradients and code.
    options = RuntimeOptions(max_memory=MEGABYTE * megabytes / 2)
    model = ORTModule(network, options=options) if engine == "Backpass" else network
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    if megabytes:
        limit_growth(megabytes)
    try:
        losses = [step(model, batch, optimizer) for _ in range(STEPS)]
        print(f"{engine:8}: losses", *losses)
    except (MemoryError, RuntimeError) as error:
        print(f"{engine:8}: does not fit: {str(error).splitlines()[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=300, help="that a process may grow by, 0 for no limit")
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--rows", type=int, default=8192, help="of the batch")
    parser.add_argument("--engine", choices=["PyTorch", "Backpass"], help="train here, instead of both in processes")
    options = parser.parse_args()
    if options.engine:
        train(options.engine, options.blocks, options.rows, options.megabytes)
        return
    for engine in ("PyTorch", "Backpass"):
        subprocess.run([sys.executable, *sys.argv, "--engine", engine], check=True)


if __name__ == "__main__":
    main()
