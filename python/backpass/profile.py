"""What a profiled session did: a table for people, a Chrome trace for tools."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backpass import _core, _html

_HEADER = ("operator", "calls", "ms", "share", "GF/s", "GB/s", "limit", "reached")


class Profile:
    """Step records of one or more runs, in the order they happened.

    Printed, it is a table: what each kind of step took, at what rates, and which part of that time the machine needs at
    least. The limit of a step is the longer of two times: its arithmetic at the rate of large products, and reading and
    writing its operands at the rate of a copy. Rates of this machine are measured when they are first needed
    (`machine_limits`). A step may go beyond its limit: operands in a nearer cache than its size tells.
    """

    def __init__(self, steps: Sequence[_core.StepRecord]) -> None:
        self.steps = list(steps)

    @property
    def total_us(self) -> float:
        return sum(step.duration_us for step in self.steps)

    def summary(self, by: str = "operator", peak_gflops: float = 0.0, memory_gbs: float = 0.0) -> _core.ProfileSummary:
        """Rows by ``"operator"`` or by operator and ``"shapes"``, with times, work and limits as numbers."""
        if by not in ("operator", "shapes"):
            raise ValueError(f"by: got {by!r}, expected 'operator' or 'shapes'")
        return _core.summarize(self.steps, self.limits(peak_gflops, memory_gbs), by == "shapes")

    def limits(self, peak_gflops: float = 0.0, memory_gbs: float = 0.0) -> _core.MachineLimits:
        """Of this machine with the threads of these steps; what is 0 is measured."""
        threads = max((step.threads for step in self.steps), default=1)
        return _core.told_limits(peak_gflops, memory_gbs, threads)

    def table(self, limit: int = 30, by: str = "shapes", peak_gflops: float = 0.0, memory_gbs: float = 0.0) -> str:
        """Time by operator (and shapes, unless ``by="operator"``), most expensive first: calls, milliseconds, share,
        rates, what limits it (arithmetic or memory) and the part of the limit that was reached. The last line is what
        all steps would take at their limits.

        peak_gflops, memory_gbs: of the machine, 10^9 operations and 10^9 bytes a second; 0 to measure them.
        """
        found = self.summary(by, peak_gflops, memory_gbs)
        shown = by == "shapes"
        lines = [
            f"{'operator':<28}{'calls':>6}{'ms':>11}{'share':>8}{'GF/s':>8}{'GB/s':>8}  {'limit':<10}{'reached':>8}"
            + ("  shapes" if shown else "")
        ]
        for row in found.rows[:limit]:
            op, calls, ms, share, gflops, gbs, bound, reached = _cells(row, found)
            lines.append(
                f"{op:<28}{calls:>6}{ms:>11.3f}{share:>8}{gflops:>8.1f}{gbs:>8.1f}  {bound:<10}{reached:>8}"
                + (f"  {row.shapes}" if shown else "")
            )
        if not self.steps:
            lines.append("no steps were recorded: there were none, or options without profile=True")
        if len(found.rows) > limit:
            lines.append(f"... and {len(found.rows) - limit} more")
        return "\n".join([*lines, self._possible(found, self.limits(peak_gflops, memory_gbs))])

    @staticmethod
    def _possible(found: _core.ProfileSummary, limits: _core.MachineLimits) -> str:
        return (
            f"possible: {found.limit_us / 1e3:.3f} ms of {found.duration_us / 1e3:.3f} ms "
            f"({found.limit_us / max(found.duration_us, 1e-9):.2f}) at {limits!r}"
        )

    def chrome_trace(self) -> dict[str, Any]:
        """The records as a trace object for chrome://tracing or Perfetto."""
        events = [
            {
                "name": step.op,
                "cat": "step",
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "ts": step.start_us,
                "dur": step.duration_us,
                "args": {"node": step.name, "shapes": step.shapes, "bytes": step.bytes, "flops": step.flops},
            }
            for step in self.steps
        ]
        return {"displayTimeUnit": "ns", "traceEvents": events}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the Chrome trace as JSON."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")

    def __add__(self, other: Profile) -> Profile:
        return Profile([*self.steps, *other.steps])

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        found = self.summary("shapes")
        rows = [(*_cells(row, found), row.shapes) for row in found.rows]
        return _html.table((*_HEADER, "shapes"), rows, self._possible(found, self.limits()))


def _cells(row: _core.ProfileRow, found: _core.ProfileSummary) -> tuple[str, int, float, str, float, float, str, str]:
    time = max(row.duration_us, 1e-3)
    share = f"{row.duration_us / max(found.duration_us, 1e-9):.1%}"
    bound = "" if row.limit_us == 0 else "arithmetic" if row.arithmetic_us > row.memory_us else "memory"
    reached = f"{row.limit_us / time:.2f}" if bound else ""
    return (
        row.op,
        row.calls,
        row.duration_us / 1e3,
        share,
        row.flops / time / 1e3,
        row.bytes / time / 1e3,
        bound,
        reached,
    )
