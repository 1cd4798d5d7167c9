"""What a test run says at its end besides what passed and failed."""

from __future__ import annotations

import gc
import os
from typing import Any

# Before any test imports torch: its threads would spin for work on cores that the tests beside these need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("BACKPASS_VERIFY_PASSES", "1")  # whatever a test runs, each pass must leave a sound graph

import judges
import pytest


def pytest_collection_finish() -> None:
    """What was imported stays: to look through it takes each collection of garbage most of a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist
        session.config.workeroutput["passed_over"] = judges.to_wire(judges.passed_over)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    judges.passed_over.update(judges.from_wire(getattr(node, "workeroutput", {}).get("passed_over", [])))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if terminalreporter.stats.get("passed"):
        import gradient_check

        terminalreporter.write_line(gradient_check.summary())
    for line in judges.summary(judges.passed_over):
        terminalreporter.write_line(line)
