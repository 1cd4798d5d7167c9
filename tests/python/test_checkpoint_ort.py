"""Checkpoints go both ways between Backpass and onnxruntime-training-cpu 1.19.2."""

from __future__ import annotations

import json

import numpy as np
import pytest
from backpass._core import CheckpointState, Tensor
from ort_training.interpreters import THEIRS, make, needs_original, run, train
from ort_training.networks import STEPS

pytestmark = [pytest.mark.slow, needs_original]
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
batches = np.load(folder + "/batches.npz")
loss = float(module(*(batches[str(i)][0] for i in range(len(batches.files)))))
optimizer.step()
CheckpointState.save_checkpoint(state, target, include_optimizer_state=True)
print(json.dumps({"parameters": found, "frozen": frozen, "properties": properties, "loss": loss}))
"""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifacts")
    make(THEIRS, folder, *MODELS)
    for model in MODELS:
        place = folder / model
        trained = train(THEIRS, place, place / "checkpoint", 0, STEPS, place / "after")
        (place / "evaluated.json").write_text(json.dumps(trained["evaluated"]))
    return folder


def arrays(state):
    return {name: state.parameter(name).array() for name in state.parameter_names}


@pytest.mark.parametrize("model", MODELS)
def test_theirs_is_read_here(artifacts, model):
    state = CheckpointState.load(artifacts / model / "after")
    expected = dict(np.load(artifacts / model / "after.npz"))
    found = arrays(state)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    (group,) = state.optimizer_groups
    assert (group.name, group.step) == ("group0", STEPS)
    assert set(group.momentums) == set(found)
    assert all(sorted(momentums) == ["momentum0", "momentum1"] for momentums in group.momentums.values())


@pytest.mark.parametrize("external", [False, True], ids=["one file", "two files"])
@pytest.mark.parametrize("model", MODELS)
def test_ours_is_read_and_trained_there(artifacts, tmp_path, model, external):
    folder = artifacts / model
    state = CheckpointState.load(folder / "after")
    state.add_parameter("unused", Tensor.from_array(np.arange(3, dtype=np.float32), 1, [3]), requires_grad=False)
    for name, value in {"i": 2**40, "f": 0.5, "s": "text"}.items():
        state.set_property(name, value)
    state.resume.learning_rate = 0.25
    state.uses_external_data = external
    for _ in range(3):  # in two files, tensors move about
        state.save(tmp_path / "ours", include_optimizer_state=True)
    said = json.loads(run(THEIRS, "-c", OTHER, folder, tmp_path / "ours", tmp_path / "theirs").splitlines()[-1])
    assert said["frozen"] == ["unused"]
    for name, values in arrays(state).items():
        np.testing.assert_array_equal(np.array(said["parameters"][name], np.float32), values)
    assert {key: said["properties"][key] for key in ("i", "f", "s")} == {"i": 2**40, "f": 0.5, "s": "text"}
    eval_loss = json.loads((folder / "evaluated.json").read_text())  # of the same parameters and batch
    assert said["loss"] == pytest.approx(eval_loss, rel=1e-5)
    back = CheckpointState.load(tmp_path / "theirs")
    assert back.properties == state.properties
    assert back.uses_external_data == external
    assert back.optimizer_groups[0].step == STEPS + 1
    assert back.resume.learning_rate is None  # it trained on without us
