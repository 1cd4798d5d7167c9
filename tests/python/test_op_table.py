"""docs/operators.md says what is true of this build."""

from __future__ import annotations

import sys
from pathlib import Path

import backpass

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import op_table  # noqa: E402


def test_every_operator_is_listed() -> None:
    page = op_table.PAGE.read_text()
    missing = [op["name"] for op in backpass.ops() if f"| {op['name']} | {op['since']} |" not in page]
    assert not missing, "run python tools/op_table.py"


def test_page_is_up_to_date() -> None:
    assert op_table.PAGE.read_text() == op_table.generate(), "run python tools/op_table.py"
