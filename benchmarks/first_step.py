"""From the first call to the end of the first training step: Backpass against torch.compile with inductor.

python benchmarks/first_step.py                     everything (--write: also into docs/torch_first_step.md)
python benchmarks/first_step.py --networks bert_base --rounds 1 --engines ORTModule again eager

Each start is a process of its own, with empty caches; "again" is a second start with the export that the first one
left in ORTMODULE_CACHE_DIR. Engines take turns. What a start takes beyond a step is split: what torch took to capture
the module, which no change of Backpass makes shorter, and the rest (imports, conversion, gradient, plan, and memory
that is touched for the first time).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from torch_front import HERE, Worker, machine
from torch_networks import NETWORKS, make

PAGE = HERE.parent / "docs" / "torch_first_step.md"
ENGINES = {
    "ORTModule": "backpass",
    "again": "backpass",
    "torch.compile(backpass)": "backpass-compile",
    "torch.compile(inductor)": "inductor",
    "eager": "eager",
}
Start = tuple[float, float, float]
"""Seconds to the end of the first step, of a later one, and of torch's capture."""


def started(engine: str, network: str, threads: int) -> Start:
    worker = Worker(ENGINES[engine], network, threads, argparse.Namespace(dropout=0.1, optimizer="none"))
    worker.turn(2.0)
    worker.close()
    return worker.first, statistics.median(worker.times), worker.captured


def one_round(network: str, options: argparse.Namespace) -> dict[str, Start]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        os.environ["ORTMODULE_CACHE_DIR"] = str(Path(folder) / "exports")
        (Path(folder) / "exports").mkdir()
        return {engine: started(engine, network, options.threads) for engine in options.engines}


def rows(network: str, rounds: list[dict[str, Start]]) -> list[str]:
    found = []
    for engine in rounds[0]:
        first, step, captured = (statistics.median(r[engine][i] for r in rounds) for i in range(3))
        cells = [network, engine, first, step, first - step]
        split = [captured, first - step - captured] if ENGINES[engine].startswith("backpass") else ["-", "-"]
        shown = [c if isinstance(c, str) else f"{c:.2f}" for c in (*cells, *split)]
        found.append("| " + " | ".join(shown) + " |")
    return found


def write_artifacts(folder: Path) -> None:
    """BERT of 4 layers of 512, as generate_artifacts leaves it, and a batch."""
    import numpy as np
    from backpass import artifacts
    from backpass.torch import to_onnx

    module, tensors = make("bert_classify", 0.1)
    model = to_onnx(module, tensors, stop_gradient=True)
    stored = {tensor.name for tensor in model.graph.initializer}
    trained = [name for name, _ in module.named_parameters() if name in stored]
    artifacts.generate_artifacts(model, trained, artifact_directory=folder, optimizer=artifacts.OptimType.AdamW)
    np.savez(folder / "batch.npz", *[t.numpy() for t in tensors])


def without_torch(*task: object, threads: int, rounds: int) -> list[float]:
    """Medians of what start_worker.py prints."""
    command = [sys.executable, str(HERE / "start_worker.py"), *map(str, task)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    found = [
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
        for _ in range(rounds)
    ]
    return [statistics.median(map(float, column)) for column in zip(*found, strict=True)]


def native(options: argparse.Namespace) -> list[str]:
    settings = {"threads": options.threads, "rounds": 2 * options.rounds + 1}
    of_numpy, imported = without_torch("import", **settings)
    with tempfile.TemporaryDirectory() as folder:
        write_artifacts(Path(folder))
        first, step = without_torch("artifacts", folder, **settings)
    return [
        f"`import backpass` takes {imported:.3f} s, of which numpy's own import is {of_numpy:.3f} s. From artifacts on",
        "disk (BERT, 4 layers of 512, AdamW, 16 x 128 tokens) to the end of the first step, imports included, it takes",
        f"{first:.2f} s; a later step takes {step:.2f} s, so that the start is {first - step:.2f} s.",
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=["bert_base", "gpt2_base"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"also put the table into docs/{PAGE.name}")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    lines = [*native(options), ""]
    titles = ["network", "engine", "first step", "a later one", "beyond it", "captured by torch", "the rest"]
    lines += [
        f"Seconds from the first call to the end of the first step, imports included, median of {options.rounds}, and",
        f"what of them torch took to capture the module. {options.threads} threads, a batch of 2 x 128 tokens.",
        f"{machine()}.",
        "",
        "| " + " | ".join(titles) + " |",
        "| --- " * len(titles) + "|",
    ]
    print(*lines, sep="\n", flush=True)
    for network in options.networks:
        found = rows(network, [one_round(network, options) for _ in range(options.rounds)])
        lines += found
        print(*found, sep="\n", flush=True)
    if options.write:
        title = ["# The first step", "", "Written by `benchmarks/first_step.py --write`.", ""]
        PAGE.write_text("\n".join([*title, *lines]) + "\n")


if __name__ == "__main__":
    main()
