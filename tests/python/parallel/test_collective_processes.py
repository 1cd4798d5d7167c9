"""Collective operators between real processes; test_collectives.py has every operator over threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import BACKENDS, launch


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes(backend: str, tmp_path: Path) -> None:
    launch(backend, 2, "collectives", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_processes(backend: str, size: int, tmp_path: Path) -> None:
    launch(backend, size, "collectives", tmp_path)
