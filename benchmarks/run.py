"""Backpass against onnxruntime on networks exported from torch: forward time, time to the first result, cost of a new
shape, memory, and loading a large model. Both run in this process, in alternating blocks.

python benchmarks/run.py                          everything
python benchmarks/run.py --models bert gpt2 --threads 1 --seconds 5
python benchmarks/run.py --quick                  small networks, few repetitions: does it work at all
python benchmarks/run.py --write                  also put the tables into docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent))

import large_model
from subjects import NAMES, OPSETS, Subject, subjects
from timing import Times, alternate, geometric_mean, once

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
STARTS = 3


def ours(path: Path, threads: int) -> Any:
    return backpass.InferenceSession(path, num_threads=threads)


def theirs(path: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


RIVALS = {"Backpass": ours, "onnxruntime": theirs}


# ---- Measurements: one row of a table each.
def forward(subject: Subject, threads: int, seconds: float) -> tuple[list[str], float]:
    """Steady state. The ratio of medians comes along for the mean."""
    sessions = {name: make(subject.path, threads) for name, make in RIVALS.items()}
    outputs = [session.run(None, subject.feeds) for session in sessions.values()]
    difference = max(float(np.abs(a - b).max()) for a, b in zip(*outputs, strict=True))
    works = {name: partial(session.run, None, subject.feeds) for name, session in sessions.items()}
    times = alternate(works, seconds)
    ratio = times["Backpass"].median / times["onnxruntime"].median
    cells = [f"{t.median * 1e3:.3f} ({t.minimum * 1e3:.3f})" for t in times.values()]
    return [subject.name, subject.extents, str(threads), *cells, f"{ratio:.2f}", f"{difference:.1e}"], ratio


def start(subject: Subject, threads: int) -> list[str]:
    """From the file to the first result."""
    samples: dict[str, list[float]] = {name: [] for name in RIVALS}
    for i in range(STARTS):
        for name, make in list(RIVALS.items())[:: 1 if i % 2 == 0 else -1]:
            samples[name].append(once(lambda make=make: make(subject.path, threads).run(None, subject.feeds)))
    return [subject.name, *(f"{statistics.median(s) * 1e3:.1f}" for s in samples.values())]


def new_shape(subject: Subject, threads: int) -> list[str]:
    """Our planning alone, then for both: the first run of extents not met before, less later runs of the same."""
    session = ours(subject.path, threads)
    session.plan(subject.feeds)
    planning = [once(partial(session.plan, feeds)) for feeds in subject.others]
    cells = [f"{statistics.median(planning) * 1e3:.2f}"]
    for make in RIVALS.values():
        session = make(subject.path, threads)
        session.run(None, subject.feeds)
        costs = []
        for feeds in subject.others:
            work = partial(session.run, None, feeds)
            first = once(work)
            costs.append(first - Times.of([once(work) for _ in range(5)]).median)
        cells.append(f"{max(0.0, statistics.median(costs)) * 1e3:.2f}")
    return [subject.name, *cells]


def arena(subject: Subject) -> list[str]:
    plan = ours(subject.path, 1).plan(subject.feeds)
    over = plan.peak_bytes / max(plan.lower_bound_bytes, 1) - 1
    numbers = [megabytes(plan.peak_bytes), megabytes(plan.lower_bound_bytes), f"{100 * over:.1f} %"]
    return [subject.name, *numbers, str(plan.steps), str(plan.views), str(plan.in_place)]


def loading(gigabytes: float) -> Iterable[list[str]]:
    for result in large_model.compare(gigabytes):
        memory = [megabytes(n) for n in (result.after_load, result.after_run, result.private_after_run)]
        yield [result.engine, f"{result.load_seconds * 1e3:.1f}", f"{result.first_run_seconds * 1e3:.1f}", *memory]


def megabytes(count: float) -> str:
    return f"{count / 2**20:.2f}"


# ---- The page.
def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def forward_section(chosen: list[Subject], options: argparse.Namespace) -> str:
    rows, ratios = [], {threads: [] for threads in options.threads}
    for subject in chosen:
        for threads in options.threads:
            row, ratio = forward(subject, threads, options.seconds)
            progress(row)
            rows.append(row)
            ratios[threads].append(ratio)
    header = ["network", "batch x sequence", "threads", "Backpass ms", "onnxruntime ms", "ratio", "largest difference"]
    means = [f"{threads} thread{'s' * (threads > 1)}: {geometric_mean(r):.2f}" for threads, r in ratios.items()]
    every = [r for values in ratios.values() for r in values]
    mean = f"Geometric mean of the ratios: **{geometric_mean(every):.2f}** ({', '.join(means)})."
    note = "Median of single calls, minimum in brackets. A ratio under 1 means that Backpass is faster."
    return "\n\n".join(["## Forward time", note, table(header, rows), mean])


def page(options: argparse.Namespace) -> str:
    chosen = subjects(options.models, "test" if options.quick else "bench", options.exporter)
    threads = max(options.threads)
    sections = [
        "# Benchmarks",
        f"Written by `make bench` with `--write`: {machine()}. Both engines run in one process, in alternating blocks.",
        forward_section(chosen, options),
        "## From the file to the first result",
        table(["network", "Backpass ms", "onnxruntime ms"], [start(s, threads) for s in chosen]),
        "## Extra time of the first run with new extents",
        table(["network", "planning ms", "Backpass ms", "onnxruntime ms"], [new_shape(s, threads) for s in chosen]),
        "## Arena: planned peak against the largest set of values alive at once",
        table(["network", "peak MB", "lower bound MB", "over", "steps", "views", "in place"], map(arena, chosen)),
    ]
    if options.gigabytes:
        engine = ["engine", "load ms", "first run ms", "MB after load", "MB after first run", "of them private"]
        sections += [
            f"## A model with {options.gigabytes:g} GB of external data",
            "Growth of resident memory of a fresh process. Private memory is what other processes cannot share.",
            table(engine, loading(options.gigabytes)),
        ]
    return "\n\n".join(sections) + "\n"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    versions = f"Backpass {backpass.__version__}, onnxruntime {ort.__version__}"
    return f"{model}, {os.cpu_count()} logical processors, {versions}"


def progress(cells: Sequence[str]) -> None:
    print("  ".join(f"{c:>20}" for c in cells), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--exporter", choices=OPSETS, default="script", help="which of torch's exporters")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0, help="per network, engine and number of threads")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the large model; 0 leaves it out")
    parser.add_argument("--quick", action="store_true", help="small networks, no repetitions to speak of")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.parent.name}/{PAGE.name}")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.gigabytes = min(options.seconds, 0.05), min(options.gigabytes, 1 / 16)
    text = page(options)
    print(text)
    if options.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
