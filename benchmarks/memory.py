"""Memory of training steps with Adam: by how much resident memory grows over the loaded model, through Backpass's
ORTModule, torch eager and, where it is installed, ORTModule of onnxruntime-training 1.19.2, each in a process of its
own; and what Backpass had planned.

python benchmarks/memory.py                               everything (--write: also into docs/memory.md)
python benchmarks/memory.py --networks gpt2 --engines eager backpass --threads 1
BACKPASS_ORT_TRAINING_PYTHON=/path/to/python python benchmarks/memory.py   with the original
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
from memory_process import MEGABYTE, ROWS, MemoryProcess, write_table
from torch_front import ORIGINAL, machine
from torch_networks import NETWORKS

ENGINES = ["eager", "original", "backpass"]
TITLES = [
    "network", "gradients, Adam", "eager", "1.19.2", "Backpass", "values: eager", "1.19.2", "Backpass", "to eager",
    "planned", "measured", "off",
]  # fmt: skip


def measure(network: str, options: argparse.Namespace) -> dict[str, MemoryProcess]:
    found = {}
    for engine in options.engines:
        try:
            found[engine] = MemoryProcess(engine, network, options.threads, options.dropout)
            found[engine].close()
        except RuntimeError as error:
            print(f"{engine} on {network}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
    return found


def row(network: str, found: dict[str, MemoryProcess]) -> str:
    ours, eager = found["backpass"], found.get("eager")
    grown = [f"{found[e].growth / MEGABYTE:.0f}" if e in found else "-" for e in ENGINES]
    values = [f"{found[e].values / MEGABYTE:.0f}" if e in found else "-" for e in ENGINES]
    ratio = f"{ours.values / eager.values:.2f}" if eager else "-"
    planned, measured = ours.planned + ours.optimizer, ours.growth - ours.prepared
    cells = [network, f"{ours.optimizer / MEGABYTE:.0f}", *grown, *values, ratio]
    cells += [f"{planned / MEGABYTE:.1f}", f"{measured / MEGABYTE:.1f}", f"{100 * (measured / planned - 1):+.1f} %"]
    return "| " + " | ".join(cells) + " |"


def check_losses(network: str, found: dict[str, MemoryProcess]) -> None:
    """Without dropout all engines compute the same."""
    curves = [json.dumps([round(loss, 3) for loss in process.losses]) for process in found.values()]
    print(f"{network}: losses {' '.join(curves)}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=ROWS)
    parser.add_argument("--engines", nargs="+", default=[e for e in ENGINES if e != "original" or ORIGINAL])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--write", action="store_true", help="also put the table into docs/memory.md")
    options = parser.parse_args()
    lines = [
        f"Megabytes; {options.threads} threads, dropout {options.dropout}, {machine()}, torch {torch.__version__}.",
        "",
        "| " + " | ".join(TITLES) + " |",
        "| --- " + "| ---: " * (len(TITLES) - 1) + "|",
    ]
    print(*lines, sep="\n", flush=True)
    for network in options.networks:
        found = measure(network, options)
        if options.dropout == 0:
            check_losses(network, found)
        lines.append(row(network, found))
        print(lines[-1], flush=True)
    if options.write:
        write_table("steps", lines)


if __name__ == "__main__":
    main()
