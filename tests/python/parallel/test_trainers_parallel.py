"""Both generations of ORTTrainer on several processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from faces import train
from launch import BACKENDS, launch, results


def run_processes(backend: str, size: int, folder: Path, kinds: str) -> None:
    """Kinds are numbers of generation, accumulated steps and stage of ZeRO."""
    launch(backend, size, "trainers", folder, kinds, timeout=600)
    for kind in kinds.split(","):
        alone = train(None, int(kind[0]), size, int(kind[1]), 0)
        ranks = results(folder, size, f"{kind}_")
        for name in alone.keys() - {"losses"}:
            assert len({rank[name].tobytes() for rank in ranks}) == 1, name
            np.testing.assert_allclose(ranks[0][name], alone[name], rtol=1e-3, atol=1e-5, err_msg=name)
        losses = np.mean([rank["losses"] for rank in ranks], 0)
        np.testing.assert_allclose(losses, alone["losses"], rtol=1e-6, atol=1e-6)


def test_two_processes(tmp_path: Path) -> None:
    run_processes("gloo", 2, tmp_path, "121,210")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_processes(backend: str, size: int, tmp_path: Path) -> None:
    run_processes(backend, size, tmp_path, "110,111,120,121,210,211,220,221" if size < 8 else "121,211")
