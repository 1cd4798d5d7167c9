"""Backpass trains what onnxruntime-training 1.19.2 prepared: the same losses for twenty steps, the same parameters."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from backpass.api import CheckpointState, Module, Optimizer

PYTHON = os.environ.get("BACKPASS_ORT_TRAINING_PYTHON", "")
MAKER = Path(__file__).parent / "ort_training" / "make_artifacts.py"
MODELS = ("mlp", "cnn", "lstm", "gru", "transformer", "embedding")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON:
        pytest.skip("BACKPASS_ORT_TRAINING_PYTHON names no interpreter that has onnxruntime-training-cpu 1.19.2")
    made = tmp_path_factory.mktemp("ort")
    subprocess.run([PYTHON, MAKER, made], check=True)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_parameters_are_the_original_s(name: str, folder: Path) -> None:
    files, steps = folder / name, np.load(folder / name / "steps.npz")
    state = CheckpointState.load_checkpoint(files / "checkpoint")
    module = Module(files / "training_model.onnx", state, files / "eval_model.onnx")
    optimizer = Optimizer(files / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(float(steps["learning_rate"]))
    inputs = [steps[n] for n in module.input_names()]
    for t, expected in enumerate(steps["losses"].ravel()):
        results = module(*(x[t] for x in inputs))
        loss = results[0] if isinstance(results, tuple) else results
        assert float(np.asarray(loss).ravel()[0]) == pytest.approx(float(expected), rel=1e-4)
        optimizer.step()
        module.lazy_reset_grad()
    names = [key.removeprefix("after/") for key in steps.files if key.startswith("after/")]
    wanted = np.concatenate([steps[f"after/{name}"].ravel() for name in names])
    got = np.concatenate([state.parameters[name].data.ravel() for name in names])
    assert np.linalg.norm(got - wanted) <= 1e-4 * np.linalg.norm(wanted)
