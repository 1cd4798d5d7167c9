"""What a test run says at its end besides what passed and failed."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("BACKPASS_VERIFY_PASSES", "1")  # whatever a test runs, each pass must leave a sound graph


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if terminalreporter.stats.get("passed"):
        import gradient_check

        terminalreporter.write_line(gradient_check.summary())
