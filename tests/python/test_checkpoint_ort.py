"""Checkpoints go both ways between Backpass and onnxruntime-training-cpu 1.19.2."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from backpass._core import CheckpointState, Tensor

PYTHON = os.environ.get("BACKPASS_ORT_TRAINING_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON,
        reason="BACKPASS_ORT_TRAINING_PYTHON does not name an interpreter with onnxruntime-training-cpu 1.19.2, "
        "onnx 1.16.2 and numpy < 2, which need an environment of their own",
    ),
]
MODELS = ["mlp", "cnn", "lstm", "gru", "transformer", "embedding"]

# Loads a checkpoint, says what it found, trains one step on given inputs, saves.
OTHER = """
import json, sys
import numpy as np
from onnxruntime.training.api import CheckpointState, Module, Optimizer
folder, source, target = sys.argv[1:]
state = CheckpointState.load_checkpoint(source)
found = {name: np.array(p.data).tolist() for name, p in state.parameters}
frozen = [name for name, p in state.parameters if not p.requires_grad]
properties = dict(state.properties)
module = Module(folder + "/training_model.onnx", state, folder + "/eval_model.onnx")
optimizer = Optimizer(folder + "/optimizer_model.onnx", module)
optimizer.set_learning_rate(0.01)
steps = np.load(folder + "/steps.npz")
loss = float(module(*(steps[name][0] for name in steps["input_names"])))
optimizer.step()
CheckpointState.save_checkpoint(state, target, include_optimizer_state=True)
print(json.dumps({"parameters": found, "frozen": frozen, "properties": properties, "loss": loss}))
"""


def other(*arguments):
    run = subprocess.run([PYTHON, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifacts")
    other(Path(__file__).parent / "ort_training/make_artifacts.py", folder)
    return folder


def arrays(state):
    return {name: state.parameter(name).array() for name in state.parameter_names}


@pytest.mark.parametrize("model", MODELS)
def test_theirs_is_read_here(artifacts, model):
    state = CheckpointState.load(artifacts / model / "checkpoint_after")
    steps = np.load(artifacts / model / "steps.npz")
    expected = {key.removeprefix("after/"): steps[key] for key in steps.files if key.startswith("after/")}
    found = arrays(state)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    (group,) = state.optimizer_groups
    assert (group.name, group.step) == ("group0", 20)
    assert set(group.momentums) == set(found)
    assert all(sorted(momentums) == ["momentum0", "momentum1"] for momentums in group.momentums.values())


@pytest.mark.parametrize("external", [False, True], ids=["one file", "two files"])
@pytest.mark.parametrize("model", MODELS)
def test_ours_is_read_and_trained_there(artifacts, tmp_path, model, external):
    folder = artifacts / model
    state = CheckpointState.load(folder / "checkpoint_after")
    state.add_parameter("unused", Tensor.from_array(np.arange(3, dtype=np.float32), 1, [3]), requires_grad=False)
    for name, value in {"i": 2**40, "f": 0.5, "s": "text"}.items():
        state.set_property(name, value)
    state.resume.learning_rate = 0.25
    state.uses_external_data = external
    for _ in range(3):  # in two files, tensors move about
        state.save(tmp_path / "ours", include_optimizer_state=True)
    said = json.loads(other("-c", OTHER, folder, tmp_path / "ours", tmp_path / "theirs").splitlines()[-1])
    assert said["frozen"] == ["unused"]
    for name, values in arrays(state).items():
        np.testing.assert_array_equal(np.array(said["parameters"][name], np.float32), values)
    assert {key: said["properties"][key] for key in ("i", "f", "s")} == {"i": 2**40, "f": 0.5, "s": "text"}
    eval_loss = float(np.load(folder / "steps.npz")["eval_loss"])  # of the same parameters and batch
    assert said["loss"] == pytest.approx(eval_loss, rel=1e-5)
    back = CheckpointState.load(tmp_path / "theirs")
    assert back.properties == state.properties
    assert back.uses_external_data == external
    assert back.optimizer_groups[0].step == 21
    assert back.resume.learning_rate is None  # it trained on without us
