"""What train.py and train_ort.py have in common beside data and model: their options, and the record of a training."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import corpus
import torch

bptt, batch_size = 35, 20
Batch = tuple[torch.Tensor, torch.Tensor]


def options(description: str | None, lr: float) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--steps", type=int, default=600, help="of 35 words in each of 20 columns (%(default)s)")
    add("--vocabulary", type=int, default=10_000, help="words the model knows (%(default)s; the original knew 28782)")
    add("--dropout", type=float, default=0.2, help="(%(default)s)")
    add("--lr", type=float, default=lr, help="learning rate (%(default)s), times 0.95 after each epoch")
    add("--threads", type=int, default=0, help="(as many as torch takes)")
    add("--seed", type=int, default=1, help="of weights and dropout (%(default)s)")
    add("--evaluate-every", type=int, default=200, metavar="STEPS", help="(%(default)s)")
    add("--evaluate-batches", type=int, default=40, metavar="BATCHES", help="of held out text (%(default)s)")
    add("--folder", type=Path, default=Path("build/getting_started"), help="of the text, and for records (%(default)s)")
    add("--text", type=Path, help="another text to train with")
    add("--clip", type=float, default=0.5, help="longest gradient, train.py alone; 0: any (%(default)s)")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    return chosen


class Data:
    """The batches of a training."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        text = corpus.load(chosen.vocabulary, chosen.text, chosen.folder)
        print(text.describe(), flush=True)
        self.train = corpus.batchify(text.train, batch_size)
        self.valid = list(corpus.batches(corpus.batchify(text.valid, batch_size), bptt))[: chosen.evaluate_batches]
        if len(self.train) <= bptt or not self.valid:
            raise SystemExit(f"{text.source} is too short: a batch takes {batch_size} columns of {bptt} words and one")

    def steps(self, count: int) -> Iterator[tuple[int, int, Batch]]:
        """Number of the step, from 1, of the epoch, from 0, and the batch."""
        step = 0
        for epoch in range(count):
            for batch in corpus.batches(self.train, bptt):
                if step == count:
                    return
                step += 1
                yield step, epoch, batch


class Course:
    """The record of a training: loss and time of every step, loss of held out text now and then."""

    def __init__(self, name: str, chosen: argparse.Namespace) -> None:
        self._name, self._chosen = name, chosen
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._valid: list[tuple[int, float, float]] = []
        self._start = time.perf_counter()
        self._away = 0.0

    def run(
        self,
        steps: Iterable[tuple[int, int, Batch]],
        train: Callable[[int, Batch], torch.Tensor],
        evaluate: Callable[[], float],
    ) -> None:
        """Trains by `train(epoch, batch)`; the clock stands still while `evaluate()` looks at held out text."""
        for step, epoch, batch in steps:
            self._losses.append(train(epoch, batch).item())
            self._seconds.append(time.perf_counter() - self._start - self._away)
            if step % self._chosen.evaluate_every == 0 or step == self._chosen.steps:
                begin = time.perf_counter()
                self._valid.append((step, self._seconds[-1], evaluate()))
                self._away += time.perf_counter() - begin
                self._tell(step)

    def _tell(self, step: int) -> None:
        recent = self._losses[-self._chosen.evaluate_every :]
        spent = self._seconds[-1] - (self._seconds[-len(recent) - 1] if len(recent) < step else 0)
        loss, valid = sum(recent) / len(recent), self._valid[-1][2]
        print(
            f"{self._name} | step {step:5d} | {spent * 1e3 / len(recent):6.1f} ms a step | loss {loss:5.2f} | "
            f"perplexity {math.exp(loss):8.2f} | of held out text {math.exp(valid):8.2f}",
            flush=True,
        )

    def save(self) -> Path:
        record: dict[str, Any] = {"losses": self._losses, "seconds": self._seconds, "valid": self._valid}
        self._chosen.folder.mkdir(parents=True, exist_ok=True)
        path: Path = self._chosen.folder / f"{self._name}.json"
        path.write_text(json.dumps(record))
        return path
