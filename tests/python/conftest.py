"""What a test run says at its end besides what passed and failed."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if terminalreporter.stats.get("passed"):
        import gradient_check

        terminalreporter.write_line(gradient_check.summary())
