"""How rivals are timed: in one process, in alternating blocks, so that both meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BLOCK_SECONDS = 0.1
PAUSE_SECONDS = 0.01  # lets the other's waiting threads fall asleep
MIN_ROUNDS = 4

Work = Callable[[], Any]


@dataclass(frozen=True)
class Times:
    """Seconds of single calls."""

    median: float
    minimum: float
    calls: int

    @staticmethod
    def of(seconds: list[float]) -> Times:
        return Times(statistics.median(seconds), min(seconds), len(seconds))


def once(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(rivals: Mapping[str, Work], seconds: float) -> dict[str, Times]:
    """Times each rival for about `seconds`. Rounds of one block each, in reversed order every other round; the first
    call of a block warms caches and threads and does not count."""
    block = {name: _block_size(work) for name, work in rivals.items()}
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    end = time.perf_counter() + seconds * len(rivals)
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < end:
        for name in list(rivals)[:: 1 if rounds % 2 == 0 else -1]:
            time.sleep(PAUSE_SECONDS)
            once(rivals[name])
            samples[name] += [once(rivals[name]) for _ in range(block[name])]
        rounds += 1
    return {name: Times.of(values) for name, values in samples.items()}


def _block_size(work: Work) -> int:
    work()
    return max(3, min(500, int(BLOCK_SECONDS / max(once(work), 1e-6))))


def geometric_mean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")
