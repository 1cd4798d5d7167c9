"""Step times as bars, one group for each network, relative to ours. Needs matplotlib."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

OURS = "backpass"
COLOURS = {"backpass": "#1f77b4", "eager": "#ff7f0e", "inductor": "#2ca02c", "original": "#9467bd"}


@dataclass(frozen=True)
class Bars:
    label: str
    seconds: dict[str, float | None]  # by engine; none: it failed
    possible: float | None  # for ours


def draw(groups: list[Bars], path: Path) -> bool:
    """False where there is nothing to draw with, or nothing to compare with."""
    groups = [g for g in groups if g.seconds.get(OURS) is not None]
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError:
        print("without matplotlib there is no chart", file=sys.stderr)
        return False
    if not groups:
        return False
    matplotlib.rcParams["svg.hashsalt"] = "backpass"  # the same picture for the same numbers
    engines = list(groups[0].seconds)
    figure = Figure(figsize=(9, 1 + 0.22 * len(groups) * (len(engines) + 1)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(engines)
    for number, engine in enumerate(engines):
        places, lengths = [], []
        for g, group in enumerate(groups):
            if (seconds := group.seconds[engine]) is not None:
                places.append(g + (number - (len(engines) - 1) / 2) * height)
                lengths.append(seconds / (group.seconds[OURS] or 1.0))
        bars = axes.barh(places, lengths, height, label=engine, color=COLOURS.get(engine))
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    marked = [(g, group.possible / (group.seconds[OURS] or 1.0)) for g, group in enumerate(groups) if group.possible]
    if marked:
        rows, lengths = zip(*marked, strict=True)
        ends = [row - 0.45 for row in rows], [row + 0.45 for row in rows]
        axes.vlines(lengths, *ends, color="black", linestyle=":", label="possible, for ours")
    axes.set_yticks(range(len(groups)), [g.label for g in groups])
    axes.invert_yaxis()
    axes.set_xlabel("step time relative to Backpass (minima); shorter is faster")
    figure.legend(loc="outside upper center", ncols=len(engines) + 1, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True
