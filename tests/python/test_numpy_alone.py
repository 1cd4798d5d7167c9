"""On a device there is numpy alone: training from artifacts works, and what does not work says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import backpass
import numpy as np
import onnx
import pytest
from backpass import _core, artifacts
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2]


class Device:
    """A folder of work, and a Python that finds numpy and Backpass, but no onnx, protobuf, ml_dtypes or torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self._packages = folder / "packages"
        engine = Path(_core.__file__)
        parts = [*(ROOT / "python" / "backpass").iterdir(), engine, engine.parent / "lib"]
        (self._packages / "backpass").mkdir(parents=True)
        for part in parts:
            if part.exists() and part.name != "__pycache__":
                (self._packages / "backpass" / part.name).symlink_to(part)
        for part in Path(np.__file__).parents[1].glob("numpy*"):
            (self._packages / part.name).symlink_to(part)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=self.folder,
            env={"PYTHONPATH": str(self._packages), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )

    def succeed(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def device(tmp_path: Path) -> Device:
    device = Device(tmp_path)
    found = device.run("-c", "import onnx")
    assert "No module named 'onnx'" in found.stderr, found
    return device


def classifier(dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", dtype, ["n", 3])
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Cast", ["m"], ["y"], to=dtype)]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


TRAIN = """
import sys
import numpy as np
import backpass
from backpass.api import CheckpointState, Module, Optimizer

state = CheckpointState.load_checkpoint("checkpoint")
module = Module("training_model.onnx", state, "eval_model.onnx")
optimizer = Optimizer("optimizer_model.onnx", module)
optimizer.set_learning_rate(0.1)
x = np.random.default_rng(1).standard_normal((32, 4)).astype(np.float32)
labels = np.argmax(x[:, :3], 1)
losses = []
for step in range(50):
    losses.append(float(module(x, labels)))
    optimizer.step()
    module.lazy_reset_grad()
assert losses[-1] < 0.5 * losses[0], losses
assert float(module.eval()(x, labels)) < losses[0]
assert module.plan((32, 4), (32,)).peak_bytes == module.plan(x, labels).peak_bytes
CheckpointState.save_checkpoint(state, "checkpoint", include_optimizer_state=True)
module.export_model_for_inferencing("trained.onnx", ["y"])
assert backpass.check("trained.onnx").ok
(y,) = backpass.InferenceSession("trained.onnx").run(None, {"x": x})

import backpass.compat
backpass.compat.install()
import onnxruntime
from onnxruntime.training.api import Module as Same
assert Same is Module
assert np.array_equal(onnxruntime.InferenceSession("trained.onnx").run(None, {"x": x})[0], y)
assert not {"onnx", "google.protobuf", "ml_dtypes", "torch"} & set(sys.modules)
"""


def test_trains_evaluates_saves_exports(device: Device) -> None:
    artifacts.generate_artifacts(
        classifier(),
        requires_grad=["w"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=device.folder,
    )
    device.succeed("-c", TRAIN)


@pytest.mark.parametrize(
    "code",
    [
        "import backpass.artifacts",
        "from backpass import artifacts",
        "import backpass.onnxblock.loss",
        "import backpass.backend",
        "from backpass import ORTModule",
        "import backpass.dynamo",
        "from backpass.torch import to_onnx",
        "import backpass; backpass.grad('model.onnx', wrt=['x'])",
        "import backpass.compat; backpass.compat.install(); from onnxruntime.training import artifacts",
        "import backpass._ort as ort; ort.InferenceSession('model.onnx').get_modelmeta()",
        "import backpass._ort as ort; ort.InferenceSession(b'..AdamWOptimizer..')",
    ],
)
def test_what_needs_onnx_says_what_to_install(device: Device, code: str) -> None:
    onnx.save(classifier(), device.folder / "model.onnx")
    done = device.run("-c", code)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith("pip install 'backpass[onnx]'"), done.stderr


def test_what_needs_torch_says_what_to_install(device: Device) -> None:
    """onnx is there, torch is not."""
    (device._packages / "onnx.py").write_text("")
    done = device.run("-c", "from backpass import ORTModule")
    assert done.stderr.strip().splitlines()[-1].endswith("pip install 'backpass[torch]'"), done.stderr


def test_what_is_listed_can_be_had(device: Device) -> None:
    """help(), and editors that complete names, ask for all of them."""
    device.succeed("-c", "import backpass, inspect, pydoc; inspect.getmembers(backpass); pydoc.render_doc(backpass)")
    assert "ORTModule" in dir(backpass)


def test_command_line(device: Device) -> None:
    onnx.save(classifier(), device.folder / "model.onnx")
    assert device.succeed("-m", "backpass", "--version").startswith("backpass ")
    assert "no problems" in device.succeed("-m", "backpass", "check", "model.onnx")
    assert "CrossEntropyLoss" in device.succeed("-m", "backpass", "artifacts", "--help")
    for command in (["check", "model.onnx", "--trainable", "*"], ["artifacts", "model.onnx", "--requires-grad", "w"]):
        done = device.run("-m", "backpass", *command)
        assert done.returncode == 1
        assert done.stderr.startswith("backpass: this part of Backpass"), done.stderr
        assert "Traceback" not in done.stderr


def test_types_that_numpy_has_not(device: Device) -> None:
    """As arrays they need ml_dtypes; as tensors they do not, nor do sizes of plans."""
    onnx.save(classifier(TensorProto.BFLOAT16), device.folder / "model.onnx")
    device.succeed(
        "-c",
        """
import numpy as np, backpass
session = backpass.InferenceSession("model.onnx")
feeds = {"x": np.ones((2, 4), np.float32)}
(tensor,) = session.run_tensors(None, feeds)
assert tensor.shape == (2, 3) or list(tensor.shape) == [2, 3]
try:
    session.run(None, feeds)
except backpass.Unsupported as error:
    assert "array of bfloat16" in str(error) and "pip install ml_dtypes" in str(error), error
else:
    raise AssertionError("no error")
""",
    )
