"""Trains the same model with train.py and with train_ort.py, and draws both courses over steps and over seconds.

Both start from the same weights, read the same text in the same order, and take plain steps of gradient descent with
the same rate (ORTTrainer's SGDOptimizer clips nothing, so neither does train.py here).

python compare.py [--steps 600] [--vocabulary 28782] [--dropout 0.2] [--threads 2] [--seed 1]
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np
from course import options

matplotlib.use("Agg")
from matplotlib.figure import Figure

RATE = 0.25  # without clipping, 1 diverges
HERE = Path(__file__).parent
SCRIPTS = {"torch": "train.py", "ORTTrainer": "train_ort.py"}


@dataclass(frozen=True)
class Record:
    losses: list[float]
    seconds: list[float]
    valid: list[tuple[int, float, float]]  # step, seconds, loss of held out text

    def step_time(self) -> float:
        """Seconds of a step, without the first, which captures the model."""
        return median(b - a for a, b in pairwise(self.seconds))


def train(script: str, arguments: list[str]) -> None:
    command = [sys.executable, HERE / script, *arguments]
    if subprocess.run(command).returncode:
        raise SystemExit(f"{script} failed")


def perplexity(record: Record) -> np.ndarray[Any, Any]:
    """Of the text read, at every step: over its last steps, at most 25."""
    sums = np.cumsum([0.0, *record.losses])
    width = np.minimum(np.arange(1, len(sums)), 25)
    return np.exp((sums[1:] - sums[np.arange(1, len(sums)) - width]) / width)


def figure(records: dict[str, Record], title: str) -> Figure:
    drawn = Figure(figsize=(11, 4.5), layout="constrained")
    drawn.suptitle(title)
    by_step, by_second = drawn.subplots(1, 2, sharey=True)
    for number, (name, record) in enumerate(records.items()):
        line: dict[str, Any] = {
            "color": f"C{number}",
            "linestyle": "--" if number else "-",
            "linewidth": 2 - number / 2,
        }
        steps, seconds, losses = (np.array(column) for column in zip(*record.valid, strict=True))
        for axes, x, held_out in (
            (by_step, np.arange(1, len(record.losses) + 1), steps),
            (by_second, record.seconds, seconds),
        ):
            axes.plot(x, perplexity(record), label=f"{name}: {record.step_time() * 1e3:.0f} ms a step", **line)
            axes.plot(held_out, np.exp(losses), "ox"[number], color=line["color"], label=f"{name}, held out text")
    by_step.set(xlabel="step", ylabel="perplexity", yscale="log")
    by_second.set(xlabel="seconds of training")
    by_step.legend()
    return drawn


def main() -> None:
    chosen = options(__doc__, lr=RATE)
    arguments = [*sys.argv[1:], f"--lr={chosen.lr}", "--clip=0"]
    for script in SCRIPTS.values():
        train(script, arguments)
    records = {name: Record(**json.loads((chosen.folder / f"{name}.json").read_text())) for name in SCRIPTS}
    ours, torchs = records["ORTTrainer"], records["torch"]
    gap = max(abs(a - b) for a, b in zip(ours.losses, torchs.losses, strict=True))
    print(f"largest difference between losses of the same step: {gap:.1e}; dropout is {chosen.dropout}")
    print(
        f"perplexity of held out text: {math.exp(torchs.valid[-1][2]):.1f} by torch, {math.exp(ours.valid[-1][2]):.1f}"
    )
    print(f"a step takes {torchs.step_time() * 1e3:.1f} ms by torch, {ours.step_time() * 1e3:.1f} ms by ORTTrainer")
    picture = chosen.folder / "perplexity.png"
    title = f"A transformer of {chosen.vocabulary:,} words, dropout {chosen.dropout}"
    figure(records, title).savefig(picture, dpi=120)
    print(f"drawn in {picture}")


if __name__ == "__main__":
    main()
