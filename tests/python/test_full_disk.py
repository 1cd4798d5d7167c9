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
