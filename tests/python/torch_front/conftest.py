"""Every test draws the same numbers, whichever ran before it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def one_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All runs of a network come from one capture, and frameworks, which talk a lot, are quiet."""
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
