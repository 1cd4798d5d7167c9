"""The example that trains what does not fit: PyTorch fails, Backpass does not, and its losses are those of a run
without a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "within_memory.py"


def run(*options: str) -> dict[str, str]:
    """What each engine says."""
    done = subprocess.run([sys.executable, EXAMPLE, *options], capture_output=True, text=True, check=True)
    lines = [line.partition(":") for line in done.stdout.splitlines()]
    return {engine.strip(): said.strip() for engine, _, said in lines}


def losses(said: str) -> list[float]:
    word, *numbers = said.split()
    assert word == "losses", said
    return [float(number) for number in numbers]


@pytest.mark.slow
def test_trains_what_does_not_fit() -> None:
    limited, free = run(), run("--megabytes", "0")
    assert "can't allocate memory" in limited["PyTorch"]
    assert losses(limited["Backpass"]) == losses(free["Backpass"])
    assert losses(limited["Backpass"]) == pytest.approx(losses(free["PyTorch"]), rel=1e-5)
