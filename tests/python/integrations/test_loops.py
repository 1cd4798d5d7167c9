"""The examples beside examples/text_model.py: trainers of others around an ORTModule, with and without it alike."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from backpass import ORTModule

EXAMPLES = Path(__file__).parents[3] / "examples"
TEXT = "\n\n".join(f"Word{n}\n\n   The quick ({n}) fox's word; it jumps over {{dog {n % 7}}}." for n in range(600))
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Options of a short training; nothing is dropped, so that losses can be compared."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    monkeypatch.setenv("GOMP_SPINCOUNT", "5000")
    (tmp_path / "text").write_text(TEXT)

    def make(name: str, **changes: Any) -> argparse.Namespace:
        AcceleratorState._reset_state(reset_partial_state=True)  # a process has one, for one kind of precision
        settings = {"steps": 4, "batch": 4, "vocabulary": 60, "dropout": 0.0, "plain": False, "resume": False,
                    "progress": False, "mixed_precision": "no"}  # fmt: skip
        folder = {"folder": tmp_path / name, "text": tmp_path / "text"}
        return argparse.Namespace(**{**settings, **folder, **changes})

    return make


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=1e-3, atol=1e-4, msg=name)


def test_lightning(chosen: Any) -> None:
    pytest.importorskip("lightning", reason="the loop is Lightning's")
    example = importlib.import_module("lightning_text")
    ours, trainer = example.train(chosen("ours"))
    theirs, their_trainer = example.train(chosen("theirs", plain=True))
    assert isinstance(ours.model, ORTModule)
    assert len(ours.losses) == 8  # two batches to an update
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=2e-5)
    metrics = [float(t.callback_metrics["valid_loss"]) for t in (trainer, their_trainer)]
    assert metrics[0] == pytest.approx(metrics[1], rel=2e-5)
    assert_close(weights(ours), weights(theirs))
    saved = torch.load(chosen("ours").folder / "last.ckpt", weights_only=False)["state_dict"]
    theirs.load_state_dict(saved)  # strict: the same names
    assert_close(weights(theirs), weights(ours))


@pytest.mark.slow
@pytest.mark.parametrize("goes_on_plain", [False, True])
def test_lightning_resumes(chosen: Any, goes_on_plain: bool) -> None:
    """As without Backpass: where an epoch was interrupted, Lightning goes on with its first batch."""
    pytest.importorskip("lightning", reason="the loop is Lightning's")
    example = importlib.import_module("lightning_text")
    courses = []
    for name, plain, plain_later in (("ours", False, goes_on_plain), ("theirs", True, True)):
        first, _ = example.train(chosen(name, plain=plain))
        rest, trainer = example.train(chosen(name, steps=8, resume=True, plain=plain_later))
        assert trainer.global_step == 8
        courses.append(first.losses + rest.losses)
    np.testing.assert_allclose(*courses, rtol=5e-5)


def test_accelerate(chosen: Any) -> None:
    example = importlib.import_module("accelerate_text")
    ours, held_out, model = example.train(chosen("ours"))
    theirs, their_held_out, plain = example.train(chosen("theirs", plain=True))
    assert isinstance(model, ORTModule)
    assert len(ours) == 8
    np.testing.assert_allclose(ours, theirs, rtol=2e-5)
    assert held_out == pytest.approx(their_held_out, rel=2e-5)
    assert_close(weights(model), weights(plain))


@pytest.mark.slow
def test_accelerate_resumes(chosen: Any) -> None:
    example = importlib.import_module("accelerate_text")
    straight, *_ = example.train(chosen("straight", steps=8))
    first, *_ = example.train(chosen("parts"))
    rest, *_ = example.train(chosen("parts", steps=8, resume=True))
    assert first + rest == straight


@pytest.mark.slow
def test_accelerate_with_mixed_precision(chosen: Any) -> None:
    example = importlib.import_module("accelerate_text")
    exact, *_ = example.train(chosen("exact", plain=True))
    theirs, *_ = example.train(chosen("theirs", plain=True, mixed_precision="bf16"))
    ours, _, model = example.train(chosen("ours", mixed_precision="bf16"))
    gap = np.abs(np.array(theirs) - exact).max()
    assert 0 < gap < 0.05
    np.testing.assert_allclose(ours, exact, atol=4 * gap)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("example", ["lightning_text", "accelerate_text", "transformers_text"])
def test_programs_explain_what_they_did(example: str, chosen: Any, tmp_path: Path) -> None:
    command = [
        sys.executable, EXAMPLES / f"{example}.py", "--steps=2", "--batch=4", "--vocabulary=60",
        f"--folder={tmp_path / 'out'}", f"--text={tmp_path / 'text'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "export 1, " in done.stdout
    assert "every operator runs in the engine" in done.stdout
