"""Installs a wheel into a fresh environment, away from this repository, and does with it what a user does first.

    python tools/check_wheel.py dist/backpass-0.1.0-cp311-cp311-linux_x86_64.whl

PyTorch and onnxruntime are not installed there: training from artifacts needs neither.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

MAKE = """
import numpy as np, onnx
from onnx import numpy_helper, parser
model = parser.parse_model('''<ir_version: 8, opset_import: ["": 17]> g (float[N, 20] x) => (float[N, 5] y)
{ a = MatMul(x, w1) b = Add(a, b1) h = Relu(b) c = MatMul(h, w2) y = Add(c, b2) }''')
rng = np.random.default_rng(0)
for name, shape in {"w1": (20, 32), "b1": 32, "w2": (32, 5), "b2": 5}.items():
    model.graph.initializer.append(numpy_helper.from_array((0.2 * rng.standard_normal(shape)).astype("float32"), name))
onnx.save(model, "model.onnx")
"""

TRAIN = """
import importlib.util, sys
import numpy as np
from backpass.api import CheckpointState, Module, Optimizer
assert importlib.util.find_spec("torch") is None and importlib.util.find_spec("onnxruntime") is None
state = CheckpointState.load_checkpoint("checkpoint")
module = Module("training_model.onnx", state, "eval_model.onnx")
optimizer = Optimizer("optimizer_model.onnx", module)
optimizer.set_learning_rate(0.01)
rng = np.random.default_rng(1)
x = rng.standard_normal((64, 20)).astype(np.float32)
labels = np.argmax(x[:, :5], 1)
losses = []
for step in range(100):
    losses.append(float(module(x, labels)))
    optimizer.step()
    module.lazy_reset_grad()
assert losses[-1] < 0.2 * losses[0], losses
CheckpointState.save_checkpoint(state, "trained", include_optimizer_state=True)
module.export_model_for_inferencing("inference.onnx", ["y"])

import backpass
(y,) = backpass.InferenceSession("inference.onnx").run(None, {"x": x})
assert np.mean(np.argmax(y, 1) == labels) > 0.95

import backpass.compat
backpass.compat.install()
import onnxruntime
from onnxruntime.training.api import CheckpointState as Same
assert Same is CheckpointState and onnxruntime.get_available_providers() == ["CPUExecutionProvider"]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
"""


class Environment:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = folder / "environment" / "bin"
        venv.create(folder / "environment", with_pip=True)

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment prints; nothing of the caller's Python leaks into it."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, cwd=self._folder, env=clean, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)[:200]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


def check(wheel: Path, folder: Path) -> None:
    environment = Environment(folder)
    environment.run("pip", "install", "--quiet", "--disable-pip-version-check", str(wheel.resolve()))
    print(environment.run("backpass", "--version").strip())
    assert "artifacts" in environment.run("backpass", "--help")
    environment.run("python", "-c", MAKE)
    print(environment.run("backpass", "check", "model.onnx", "--trainable", "*").strip())
    training = ["--loss", "CrossEntropyLoss", "--optimizer", "AdamW", "--requires-grad", "*"]
    print(environment.run("backpass", "artifacts", "model.onnx", *training).strip())
    print(environment.run("python", "-c", TRAIN).strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    with tempfile.TemporaryDirectory() as folder:
        check(parser.parse_args().wheel, Path(folder))


if __name__ == "__main__":
    main()
