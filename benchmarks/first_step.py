"""From the first call to the end of the first training step: Backpass against torch.compile with inductor.

python benchmarks/first_step.py                     both networks (--write: also into docs/torch_first_step.md)
python benchmarks/first_step.py --networks gpt2_base --rounds 1

Each start is a process of its own, with empty caches; "again" is a second start with the export that the first one
left in ORTMODULE_CACHE_DIR. Engines take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from torch_front import HERE, Worker, machine
from torch_networks import NETWORKS

PAGE = HERE.parent / "docs" / "torch_first_step.md"
COLUMNS = ["ORTModule", "again", "torch.compile(backpass)", "torch.compile(inductor)", "eager"]


def started(engine: str, network: str, threads: int) -> tuple[float, float]:
    """Seconds to the end of the first step, and of a later one."""
    worker = Worker(engine, network, threads, 0.1)
    worker.turn(2.0)
    worker.close()
    return worker.first, statistics.median(worker.times)


def one_round(network: str, threads: int) -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        os.environ["ORTMODULE_CACHE_DIR"] = str(Path(folder) / "exports")
        (Path(folder) / "exports").mkdir()
        engines = ["backpass", "backpass", "backpass-compile", "inductor", "eager"]
        return [started(engine, network, threads) for engine in engines]


def row(network: str, rounds: list[list[tuple[float, float]]]) -> str:
    cells = [network]
    for column in range(len(COLUMNS)):
        firsts, steps = zip(*(found[column] for found in rounds), strict=True)
        cells.append(f"{statistics.median(firsts):.1f} ({statistics.median(steps):.2f})")
    ours, inductor = (statistics.median(found[i][0] for found in rounds) for i in (0, 3))
    return "| " + " | ".join([*cells, f"{inductor / ours:.1f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["bert_base", "gpt2_base"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"also put the table into docs/{PAGE.name}")
    options = parser.parse_args()
    lines = [
        f"Seconds from the first call to the end of the first step, median of {options.rounds}; in brackets a later",
        f"step, which is part of it. {options.threads} threads, a batch of 2 x 128 tokens. {machine()}.",
        "",
        "| network | " + " | ".join(COLUMNS) + " | inductor / ORTModule |",
        "| --- " * (len(COLUMNS) + 2) + "|",
    ]
    print(*lines, sep="\n", flush=True)
    for network in options.networks:
        rounds = [one_round(network, options.threads) for _ in range(options.rounds)]
        lines.append(row(network, rounds))
        print(lines[-1], flush=True)
    if options.write:
        title = ["# The first step", "", "Written by `benchmarks/first_step.py --write`.", ""]
        PAGE.write_text("\n".join([*title, *lines]) + "\n")


if __name__ == "__main__":
    main()
