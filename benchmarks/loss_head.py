"""Language models with and without the pass `chunk_loss`, which computes scores and loss some rows at a time: bytes of
the arena, growth of resident memory, processor time of a step, processes taking turns.

python benchmarks/loss_head.py
python benchmarks/loss_head.py --networks bert_masked --threads 1
"""

from __future__ import annotations

import argparse

import torch
from memory_process import MEGABYTE, MemoryProcess, take_turns
from torch_networks import NETWORKS

RIVALS: dict[str, dict[str, list[str]]] = {"at once": {"disabled_passes": ["chunk_loss"]}, "some rows at a time": {}}


def compare(network: str, options: argparse.Namespace) -> None:
    rivals = {
        name: MemoryProcess("backpass", network, options.threads, options.dropout, **settings)
        for name, settings in RIVALS.items()
    }
    take_turns(list(rivals.values()), options.turns, options.steps)
    base = min(rivals["at once"].times)
    for name, rival in rivals.items():
        is_chunked = any(note.startswith("chunk_loss") for note in rival.notes)
        print(
            f"| {network} | {name}{'' if is_chunked or name == 'at once' else ' (not applied)'} "
            f"| {rival.planned / MEGABYTE:.1f} | {rival.values / MEGABYTE:.1f} "
            f"| {1e3 * min(rival.times):.0f} | {min(rival.times) / base:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["tutorial", "gpt2", "bert_masked"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    print("| network | scores | planned MB | values MB | step ms | to all at once |\n| --- " + "| --- " * 5 + "|")
    for network in options.networks:
        compare(network, options)


if __name__ == "__main__":
    main()
