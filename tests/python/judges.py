"""Cases that a judge could not judge, and why: counted while tests run, printed when they end.

unjudged.toml holds the numbers over all rows of op_rows/; test_judges.py keeps them from rising.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("unjudged.toml")

Counts = Counter[tuple[str, str]]  # (judge, reason) -> cases

passed_over: Counts = Counter()  # by this process


def pass_over(judge: str, reason: str) -> str:
    """Counts a case that the judge cannot judge. Returns "": nothing is known to be wrong with it."""
    passed_over[judge, reason] += 1
    return ""


def to_wire(counts: Counts) -> list[list[Any]]:
    """As a worker of a parallel run hands it to the process that prints."""
    return [[judge, reason, count] for (judge, reason), count in counts.items()]


def from_wire(items: Iterable[list[Any]]) -> Counts:
    return Counter({(judge, reason): count for judge, reason, count in items})


def summary(counts: Counts) -> list[str]:
    """One line per judge."""
    reasons: dict[str, list[str]] = {}
    for (judge, reason), count in sorted(counts.items()):
        reasons.setdefault(judge, []).append(f"{count} {reason}")
    return [f"not judged by {judge}: {', '.join(parts)}" for judge, parts in reasons.items()]


def recorded() -> Counts:
    table = tomllib.loads(RECORD.read_text())
    return Counter({(judge, reason): count for judge, reasons in table.items() for reason, count in reasons.items()})


def differences(counted: Counts, allowed: Counts, rows: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """What has risen, which is a fault, and what has fallen, which the record must follow so that it stays so."""
    problems = []
    for key in sorted(counted.keys() | allowed.keys()):
        judge, reason = key
        got, most = counted[key], allowed[key]
        if got > most:
            problems.append(
                f"{judge} passes over {got} cases ({reason}), at most {most} are allowed; let it judge the new one, "
                f"among: {', '.join(rows.get(key, []))}"
            )
        elif got < most:
            problems.append(f"{judge} passes over only {got} cases ({reason}): lower the {most} in {RECORD.name}")
    return problems
