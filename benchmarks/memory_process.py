"""A process that trains one network with one engine, measured: see memory_worker.py. And where its tables go."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

from torch_front import HERE, NEEDS, ORIGINAL

PAGE = HERE.parent / "docs" / "memory.md"
MEGABYTE = 1_000_000
ROWS = ["resnet18", "bert_classify", "bert_masked", "gpt2", "tutorial", "unet"]


class MemoryProcess:
    """Bytes over those of the loaded model, and processor times of steps on request."""

    def __init__(self, engine: str, network: str, threads: int, dropout: float, **options: Any) -> None:
        python = ORIGINAL if engine == "original" else sys.executable
        command = [python, HERE / "memory_worker.py", engine, network, threads, dropout, json.dumps(options)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **NEEDS.get(engine, {})}
        if engine == "original":
            environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment,
        )  # fmt: skip
        self.times: list[float] = []
        found = json.loads(self._answer())
        self.growth: int = found["growth"]
        self.prepared: int = found["prepared"]
        """What graphs and code take before the first step."""
        self.optimizer: int = found["optimizer"]
        """Gradients and Adam's state."""
        self.planned: int = found["planned"]
        self.losses: list[float] = found["losses"]
        self.notes: list[str] = found["notes"]

    @property
    def values(self) -> int:
        """All that grew but gradients and Adam's state."""
        return self.growth - self.optimizer

    def _answer(self) -> str:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read()[-2000:])
        return line

    def turn(self, steps: int) -> None:
        """One step more than is counted: the first meets the caches of another process."""
        assert self.process.stdin is not None
        print(steps + 1, file=self.process.stdin, flush=True)
        self.times += [float(word) for word in self._answer().split()][1:]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def take_turns(rivals: list[MemoryProcess], turns: int, steps: int) -> None:
    for turn in range(turns):
        for rival in rivals[:: 1 if turn % 2 == 0 else -1]:
            rival.turn(steps)
    for rival in rivals:
        rival.close()


def write_table(name: str, lines: list[str]) -> None:
    """Into the page, between the marks of this name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    text = PAGE.read_text()
    old = re.search(re.escape(begin) + ".*?" + re.escape(end), text, re.DOTALL)
    assert old is not None, f"{PAGE.name} has no {begin.strip()}"
    PAGE.write_text(text[: old.start()] + begin + "\n".join(["", *lines, "", end]) + text[old.end() :])
