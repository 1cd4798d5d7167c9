"""Draws the course of a training run as an SVG file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WIDTH, HEIGHT, MARGIN = 720, 360, 50


def draw(path: Path, log: list[tuple[int, float]], accuracy: float, title: str) -> None:
    """`log` holds (step, loss); the line is a running mean over 50 steps, the dots are single steps."""
    steps = np.array([step for step, _ in log], float)
    losses = np.array([loss for _, loss in log])
    top = float(np.percentile(losses, 99))
    x = MARGIN + (WIDTH - 2 * MARGIN) * steps / steps.max()

    def y(values: np.ndarray) -> np.ndarray:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * np.clip(values / top, 0, 1)

    mean = np.array([losses[max(0, i - 49) : i + 1].mean() for i in range(len(losses))])
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="1"/>' for a, b in zip(x[::10], y(losses)[::10], strict=True))
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[::5], y(mean)[::5], strict=True))
    ticks = "".join(_tick(top, part) for part in (0.0, 0.5, 1.0))
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="white"/><g fill="#9ecae1">{dots}</g>'
        f'<polyline points="{line}" fill="none" stroke="#08519c" stroke-width="2"/>{ticks}'
        f'<text x="{WIDTH / 2}" y="24" text-anchor="middle">{title}: loss over {int(steps.max())} steps, '
        f"test accuracy {100 * accuracy:.2f} %</text>"
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 14}" text-anchor="middle">step</text></svg>\n'
    )


def _tick(top: float, part: float) -> str:
    at = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * part
    return (
        f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{at}" y2="{at}" stroke="#ddd"/>'
        f'<text x="{MARGIN - 6}" y="{at + 4}" text-anchor="end" font-size="12">{top * part:.2f}</text>'
    )
