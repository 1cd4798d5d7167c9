"""Backpass and onnxruntime-training-cpu 1.19.2 train each other's artifacts and go on from each other's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ort_training.interpreters import OURS, THEIRS, make, needs_original, train
from ort_training.networks import MODELS, STEPS

pytestmark = [pytest.mark.slow, needs_original]
HALF = STEPS // 2


def assert_same_parameters(one: Path, other: Path) -> None:
    a, b = (np.load(f"{path}.npz") for path in (one, other))
    assert a.files == b.files
    wanted = np.concatenate([a[name].ravel() for name in a.files])
    got = np.concatenate([b[name].ravel() for name in a.files])
    assert np.linalg.norm(got - wanted) <= 1e-4 * np.linalg.norm(wanted)


@pytest.mark.parametrize("maker", [THEIRS, OURS])
@pytest.mark.parametrize("model", list(MODELS))
def test_same_losses_here_and_there(model: str, maker: str, tmp_path: Path) -> None:
    make(maker, tmp_path, model)
    folder = tmp_path / model

    def run(package: str, checkpoint: str, first: int, end: int, saved: str) -> dict[str, Any]:
        return train(package, folder, folder / checkpoint, first, end, tmp_path / saved)

    expected = run(THEIRS, "checkpoint", 0, STEPS, "there")
    here = run(OURS, "checkpoint", 0, STEPS, "here")
    assert len(expected["losses"]) == STEPS
    np.testing.assert_allclose(here["losses"], expected["losses"], rtol=1e-4)
    assert_same_parameters(tmp_path / "there", tmp_path / "here")
    assert here["evaluated"] is not None
    # Of batch normalisation, the original cannot load the eval model that it makes itself.
    assert (expected["evaluated"] is None) == (model == "resnet" and maker == THEIRS)
    if expected["evaluated"] is not None:
        assert here["evaluated"] == pytest.approx(expected["evaluated"], rel=1e-4)

    for first, then in ((THEIRS, OURS), (OURS, THEIRS)):
        run(first, "checkpoint", 0, HALF, "half")
        second = run(then, tmp_path / "half", HALF, STEPS, "whole")
        np.testing.assert_allclose(second["losses"], expected["losses"][HALF:], rtol=1e-4)
        assert_same_parameters(tmp_path / "there", tmp_path / "whole")
