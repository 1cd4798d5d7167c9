"""What a profiled session did: a table for people, a Chrome trace for tools."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backpass import _core, _html


class Profile:
    """Step records of one or more runs, in the order they happened."""

    def __init__(self, steps: Sequence[_core.StepRecord]) -> None:
        self.steps = list(steps)

    @property
    def total_us(self) -> float:
        return sum(step.duration_us for step in self.steps)

    def table(self, limit: int = 30) -> str:
        """Time by operator and shapes, most expensive first: calls, total and mean microseconds, share, GB/s."""
        rows = self._rows()
        lines = [f"{'operator':<24}{'calls':>6}{'total us':>12}{'mean us':>11}{'share':>8}{'GB/s':>8}  shapes"]
        for op, calls, time, share, rate, shapes in rows[:limit]:
            lines.append(f"{op:<24}{calls:>6}{time:>12.1f}{time / calls:>11.1f}{share:>8.1%}{rate:>8.1f}  {shapes}")
        if len(rows) > limit:
            lines.append(f"... and {len(rows) - limit} more")
        return "\n".join(lines)

    def _rows(self) -> list[tuple[str, int, float, float, float, str]]:
        """Operator, calls, microseconds, share, GB/s and shapes."""
        groups: dict[tuple[str, str], list[_core.StepRecord]] = defaultdict(list)
        for step in self.steps:
            groups[step.op, step.shapes].append(step)
        rows = []
        for (op, shapes), steps in groups.items():
            time = sum(s.duration_us for s in steps)
            rate = sum(s.bytes for s in steps) / max(time, 1e-3) / 1e3
            rows.append((op, len(steps), time, time / max(self.total_us, 1e-9), rate, shapes))
        return sorted(rows, key=lambda row: -row[2])

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
                "args": {"node": step.name, "shapes": step.shapes, "bytes": step.bytes},
            }
            for step in self.steps
        ]
        return {"displayTimeUnit": "ns", "traceEvents": events}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the Chrome trace as JSON."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header = ("operator", "calls", "total us", "mean us", "share", "GB/s", "shapes")
        rows = [
            (op, n, time, time / n, f"{share:.1%}", rate, shapes) for op, n, time, share, rate, shapes in self._rows()
        ]
        return _html.table(header, rows, f"{len(self.steps)} steps, {self.total_us:,.1f} us")
