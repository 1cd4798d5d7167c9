"""Damaged one-node models: refused alike by the plan and the reference interpreter, or run alike (see mutation.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(p.stem for p in (HERE / "op_rows").glob("*.py") if p.stem != "__init__")
COUNT = 40  # models per row


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_damaged_models_are_refused_or_run_alike(file: str) -> None:
    """In a process of its own: what crashes is named by the last line it wrote."""
    command = [sys.executable, str(HERE / "mutation.py"), file, "--count", str(COUNT)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    lines = done.stdout.splitlines()
    findings = [line for line in lines if not line.startswith("trying ")]
    last = lines[-1] if lines else ""
    assert done.returncode == 0, f"ended with {done.returncode} at: {last}\n{done.stderr[-2000:]}"
    assert findings == ["finished, 0 wrong"], "\n".join(findings)
