"""The course of a training run as a picture: loss and test accuracy over the steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

WINDOW = 50


@dataclass
class Course:
    """What happened: by step, the loss of its batch, and the share of the test images that was right after it."""

    losses: dict[int, float] = field(default_factory=dict)
    accuracies: dict[int, float] = field(default_factory=dict)
    killed_at: int | None = None
    resumed_at: int | None = None


def figure(course: Course, title: str) -> Figure:
    picture = Figure(figsize=(9, 6), layout="constrained")
    upper, lower = picture.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    picture.suptitle(title)
    steps, losses = (np.array(part, float) for part in zip(*sorted(course.losses.items()), strict=True))
    upper.plot(steps, losses, ".", markersize=2, color="#9ecae1", label="loss of a batch")
    upper.plot(steps, _running_mean(losses), color="#08519c", label=f"mean of {WINDOW} steps")
    upper.set(ylabel="training loss", xlim=(0, steps[-1]), ylim=(0, None))
    tested, rights = zip(*sorted(course.accuracies.items()), strict=True)
    lower.plot(tested, [100 * right for right in rights], "o-", markersize=3, color="#238b45", label="test accuracy")
    lower.set(ylabel="test accuracy in %", xlabel="step")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        _mark_interruption(axes, course)
        axes.legend(loc="best")
    return picture


def draw(path: Path, course: Course, title: str) -> None:
    figure(course, title).savefig(path, dpi=120)


def _running_mean(values: np.ndarray) -> np.ndarray:
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - WINDOW, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def _mark_interruption(axes, course: Course) -> None:
    if course.killed_at is None or course.resumed_at is None:
        return
    axes.axvline(course.killed_at, color="#cb181d", linestyle="--", label=f"killed at step {course.killed_at}")
    axes.axvline(course.resumed_at, color="#fd8d3c", linestyle=":", label=f"resumed at step {course.resumed_at}")
