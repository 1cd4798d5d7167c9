"""A full disk: whatever is being written fails with a clear error, and what was there before is intact.

The disk is a small tmpfs in a mount namespace of its own, so that nothing remains of it whatever happens to the test.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MOUNT = "mount -t tmpfs -o size=1m tmpfs {folder} && exec {command}"
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]

SCRIPT = """
import os, sys
import numpy as np
import onnx
from onnx import numpy_helper, parser
import backpass
from backpass import artifacts, onnxblock
from backpass._core import export_parameters
from backpass.api import CheckpointState, Module, Optimizer

folder, what = sys.argv[1:]

def model(width):
    shape = f"float[N, {width}]"
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({shape} x) => ({shape} y) {{ y = MatMul(x, w) }}'
    )
    made.graph.initializer.append(numpy_helper.from_array(np.ones((width, width), np.float32), "w"))
    return made

def generate(width):
    artifacts.generate_artifacts(
        model(width), requires_grad=["w"], loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )

def contents():
    return {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}

def path(name):
    return os.path.join(folder, name)

generate(128)  # 64 KiB of weights
state = CheckpointState.load_checkpoint(path("checkpoint"))
module = Module(path("training_model.onnx"), state, path("eval_model.onnx"))
optimizer = Optimizer(path("optimizer_model.onnx"), module)
module.export_model_for_inferencing(path("inference.onnx"), ["y"])
export_parameters(state._core, path("parameters.safetensors"))
if what == "external":
    state._core.uses_external_data = True
    CheckpointState.save_checkpoint(state, path("checkpoint"), include_optimizer_state=True)

x = np.ones((2, 128), np.float32)
module(x, x)
optimizer.step()
free = os.statvfs(folder)
with open(path("ballast"), "wb") as ballast:
    ballast.write(bytes(free.f_bavail * free.f_frsize - 20_000))  # less than any of the files needs
before = contents()
act = {
    "checkpoint": lambda: CheckpointState.save_checkpoint(state, path("checkpoint"), include_optimizer_state=True),
    "external": lambda: CheckpointState.save_checkpoint(state, path("checkpoint"), include_optimizer_state=True),
    "inference": lambda: module.export_model_for_inferencing(path("inference.onnx"), ["y"]),
    "safetensors": lambda: export_parameters(state._core, path("parameters.safetensors")),
    "artifacts": lambda: generate(256),
    "block": lambda: onnxblock.save_checkpoint(([model(256).graph.initializer[0]], []), path("checkpoint")),
}[what]
try:
    act()
except (OSError, backpass.InvalidInput) as error:
    print(error)
else:
    sys.exit("there was room")
assert contents() == before, "files changed"
CheckpointState.load_checkpoint(path("checkpoint"))
os.remove(path("ballast"))
if what not in ("artifacts", "block"):
    act()  # with room again
    assert contents() != before
module(x, x)
"""


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    try:
        probe = subprocess.run(
            [*NAMESPACE, MOUNT.format(folder=folder, command="true")], capture_output=True, text=True
        )
        refusal = probe.stderr.strip() if probe.returncode else ""
    except FileNotFoundError as missing:
        refusal = str(missing)
    if refusal:
        pytest.skip(f"no small disk can be mounted here: {refusal}")
    return folder


@pytest.mark.parametrize("what", ["checkpoint", "external", "inference", "safetensors", "artifacts", "block"])
def test_old_files_stay_and_the_error_says_why(what: str, small_disk: Path) -> None:
    command = MOUNT.format(folder=small_disk, command='"$@"')
    run = subprocess.run(
        [*NAMESPACE, command, "sh", sys.executable, "-c", SCRIPT, str(small_disk), what], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "No space left on device" in run.stdout
    assert str(small_disk) in run.stdout, "which file could not be written is not said"


TRAINERS = """
import os, resource, sys, warnings
import torch
from torch import nn
from backpass import IODescription, ModelDescription, ORTTrainer, artifacts, optim, save_checkpoint
from backpass.training import ORTTrainer as ORTTrainer2, ORTTrainerOptions

warnings.simplefilter("ignore")
folder = sys.argv[1]
path = lambda name: os.path.join(folder, name)
module = lambda: nn.Sequential(nn.Linear(4, 1500), nn.ReLU(), nn.Linear(1500, 3))
loss = lambda output, label: nn.functional.cross_entropy(output, label)
inputs = [IODescription("input", ["N", 4]), IODescription("label", ["N"], torch.int64)]
outputs = [IODescription("loss", []), IODescription("output", ["N", 3])]
rate = IODescription("Learning_Rate", [1])
one = ORTTrainer(module(), loss, ModelDescription(inputs, outputs), "AdamOptimizer", None, rate, "cpu")
described = {"inputs": [("input", ["N", 4]), ("label", ["N"])], "outputs": [("loss", [], True), ("output", ["N", 3])]}
options = ORTTrainerOptions({"device": {"id": "cpu"}})
two = ORTTrainer2(module(), described, optim.AdamConfig(), loss, options)
x, label = torch.ones(2, 4), torch.tensor([0, 1])
one.train_step(x, label, torch.tensor([0.1]))
two.train_step(x, label)
acts = {
    "run.ort.pt": lambda: save_checkpoint(one, folder, "run"),
    "two.ortcp": lambda: two.save_checkpoint(path("two.ortcp")),
    "one.onnx": lambda: one.save_as_onnx(path("one.onnx")),
    "two.onnx": lambda: two.save_as_onnx(path("two.onnx")),
    "training_model.onnx": lambda: artifacts.generate_artifacts(one.onnx_model_, artifact_directory=folder),
}
for name in acts:
    if name != "two.ortcp":  # which must not exist
        with open(path(name), "wb") as file:
            file.write(b"old")
before = sorted(os.listdir(folder))
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
for name, act in acts.items():
    try:
        act()
    except OSError as error:
        print(error)
    else:
        sys.exit(f"{name}: there was room")
    assert name == "two.ortcp" or open(path(name), "rb").read() == b"old", name
assert sorted(os.listdir(folder)) == before
"""


def test_files_of_trainers(tmp_path: Path) -> None:
    """A limit to the size of files fails their writes as a full disk does, in the middle."""
    run = subprocess.run([sys.executable, "-c", TRAINERS, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    names = ["run.ort.pt", "two.ortcp", "one.onnx", "two.onnx", "training_model.onnx"]
    assert run.stdout.splitlines() == [f"[Errno 27] File too large: '{tmp_path / name}'" for name in names]
