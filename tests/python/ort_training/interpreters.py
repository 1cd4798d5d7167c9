"""The two interpreters of interoperability tests, and how scripts of this folder are run by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
ORIGINAL = os.environ.get("BACKPASS_ORT_TRAINING_PYTHON", "")
OURS, THEIRS = "backpass", "onnxruntime.training"

needs_original = pytest.mark.skipif(
    not ORIGINAL,
    reason="BACKPASS_ORT_TRAINING_PYTHON names no interpreter with onnxruntime-training-cpu 1.19.2, onnx 1.16.2 and "
    "numpy < 2, which need an environment of their own",
)


def run(package: str, *arguments: Any) -> str:
    """What a script, or a program after -c, prints."""
    command = [sys.executable if package == OURS else ORIGINAL, *map(str, arguments)]
    environment = dict(os.environ)
    if package == THEIRS:
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make(package: str, folder: Path, *models: str) -> None:
    run(package, FOLDER / "make_artifacts.py", package, folder, *models)


def train(package: str, folder: Path, checkpoint: Path, first: int, end: int, saved: Path) -> dict[str, Any]:
    told = run(package, FOLDER / "train.py", package, folder, checkpoint, first, end, saved)
    result: dict[str, Any] = json.loads(told.splitlines()[-1])
    return result
