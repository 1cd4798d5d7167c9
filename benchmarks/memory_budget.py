"""Training steps of PyTorch modules within memory budgets: for shares of what they would take, the planned peak, the
growth of resident memory, and the processor time of a step, processes taking turns.

python benchmarks/memory_budget.py                        the networks of memory.py (--write: also into docs/memory.md)
python benchmarks/memory_budget.py --networks gpt2 --shares 0.5 0.33 --turns 3
"""

from __future__ import annotations

import argparse
import re

import torch
from memory_process import MEGABYTE, ROWS, MemoryProcess, take_turns, write_table
from torch_networks import NETWORKS

SHARES = [1 / 3, 1 / 5]
TITLES = ["network", "share", "planned", "to all", "values", "to all", "step", "to all", "made again"]


def start(network: str, share: float, options: argparse.Namespace) -> MemoryProcess | str:
    """Or why there is no such plan."""
    budget = {"max_memory": share} if share else {}
    try:
        return MemoryProcess("backpass", network, options.threads, options.dropout, **budget)
    except RuntimeError as error:
        refused = re.search(r"max_memory: got .*? of \d+ bytes, expected at least (\S+);", str(error))
        if refused is None:
            raise
        return refused[1]


def row(network: str, share: float, budget: MemoryProcess, plain: MemoryProcess) -> str:
    step, base = min(budget.times), min(plain.times)
    cells = [network, f"{share:.2f}" if share else "all"]
    for some, whole in ((budget.planned, plain.planned), (budget.values, plain.values)):
        cells += [f"{some / MEGABYTE:.1f}", f"{some / whole:.2f}"]
    cells += [f"{1e3 * step:.0f} ms", f"{step / base:.2f}", made_again(budget)]
    return "| " + " | ".join(cells) + " |"


def made_again(budget: MemoryProcess) -> str:
    found = [re.search(r"(\d+ values kept, \d+ made again), about (.*) more work", note) for note in budget.notes]
    return next((f"{m[1]}: {m[2]} expected" for m in found if m), "")


def compare(network: str, options: argparse.Namespace) -> list[str]:
    plain = start(network, 0, options)
    assert isinstance(plain, MemoryProcess)
    found = {share: start(network, share, options) for share in options.shares}
    rivals = [rival for rival in found.values() if isinstance(rival, MemoryProcess)]
    take_turns([plain, *rivals], options.turns, options.steps)
    lines = [row(network, 0, plain, plain)]
    for share, rival in found.items():
        if isinstance(rival, str):
            cells = [network, f"{share:.2f}", f"least share: {rival}", *[""] * (len(TITLES) - 3)]
            lines.append("| " + " | ".join(cells) + " |")
        else:
            lines.append(row(network, share, rival, plain))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=ROWS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="also put the table into docs/memory.md")
    options = parser.parse_args()
    lines = [
        f"Megabytes; least processor time of {options.turns * options.steps} steps; {options.threads} threads.",
        "",
        "| " + " | ".join(TITLES) + " |",
        "| --- " * 2 + "| ---: " * (len(TITLES) - 3) + "| --- |",
    ]
    print(*lines, sep="\n", flush=True)
    for network in options.networks:
        rows = compare(network, options)
        print(*rows, sep="\n", flush=True)
        lines += rows
    if options.write:
        write_table("budgets", lines)


if __name__ == "__main__":
    main()
