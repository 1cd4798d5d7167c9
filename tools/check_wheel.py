"""Installs a wheel into fresh environments, away from this repository, and does with it what README.md says.

    python tools/check_wheel.py build/wheel/backpass-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl

Nothing of the caller's environment leaks in. On the "device" there is the wheel and what it asks for, which is numpy;
the "workshop", where models are made, has the extra `onnx`. PyTorch and onnxruntime are in neither.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

from documents import blocks, commands  # noqa: E402

STEPS, BATCH, FEATURES = 100, 64, 20

MAKE = f"""
import numpy as np, onnx
from onnx import numpy_helper, parser
model = parser.parse_model('''<ir_version: 8, opset_import: ["": 17]> g (float[N, {FEATURES}] x) => (float[N, 5] y)
{{ a = MatMul(x, w1) b = Add(a, b1) h = Relu(b) c = MatMul(h, w2) y = Add(c, b2) }}''')
rng = np.random.default_rng(0)
for name, shape in {{"w1": ({FEATURES}, 32), "b1": 32, "w2": (32, 5), "b2": 5}}.items():
    model.graph.initializer.append(numpy_helper.from_array((0.2 * rng.standard_normal(shape)).astype("float32"), name))
onnx.save(model, "forward.onnx")
"""

TRAIN = f"""
import importlib.util
import numpy as np
from backpass.api import CheckpointState, Module, Optimizer

for package in ("onnx", "google.protobuf", "ml_dtypes", "torch", "onnxruntime"):
    assert importlib.util.find_spec(package.split(".")[0]) is None, package
state = CheckpointState.load_checkpoint("checkpoint")
module = Module("training_model.onnx", state, "eval_model.onnx")
optimizer = Optimizer("optimizer_model.onnx", module)
optimizer.set_learning_rate(0.01)
x = np.random.default_rng(1).standard_normal(({BATCH}, {FEATURES})).astype(np.float32)
labels = np.argmax(x[:, :5], 1)
open("data", "wb").write((x.tobytes() + labels.tobytes()) * 3)
losses = []
for step in range({STEPS}):
    losses.append(float(module(x, labels)))
    optimizer.step()
    module.lazy_reset_grad()
assert losses[-1] < 0.2 * losses[0], losses
CheckpointState.save_checkpoint(state, "trained", include_optimizer_state=True)
module.export_model_for_inferencing("inference.onnx", ["y"])

import backpass
(y,) = backpass.InferenceSession("inference.onnx").run(None, {{"x": x}})
assert np.mean(np.argmax(y, 1) == labels) > 0.95

import backpass.compat
backpass.compat.install()
import onnxruntime
from onnxruntime.training.api import CheckpointState as Same
assert Same is CheckpointState and onnxruntime.get_available_providers() == ["CPUExecutionProvider"]
loaded = {{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}}
for library in ("libdnnl", "libhwy", "libgomp"):
    found = [path for path in loaded if library in path]
    assert len(found) == 1 and "site-packages/backpass/lib/backpass/" in found[0], found
print(f"loss {{losses[0]:.3f}} -> {{losses[-1]:.3f}}")
"""


class Environment:
    """A fresh virtual environment, and a folder to work in."""

    def __init__(self, folder: Path, requirement: str) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        self._programs = folder / "environment" / "bin"
        venv.create(folder / "environment", with_pip=True)
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", requirement)

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment, or of the system, prints."""
        clean = {"PATH": f"{self._programs}:{os.environ['PATH']}", "HOME": str(self.folder)}
        command = [shutil.which(program, path=clean["PATH"]) or program, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=clean, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)[:200]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def packages(self) -> set[str]:
        lines = self.run("pip", "list", "--format=freeze", "--disable-pip-version-check").splitlines()
        return {line.split("==")[0] for line in lines} - {"pip", "setuptools"}


def python_of(page: Path, without: str) -> str:
    """The Python of a page but for the blocks that say they need more."""
    return "\n".join(b.text for b in blocks(page) if b.language == "python" and not re.search(without, b.text))


def check_contents(wheel: Path) -> None:
    assert "manylinux" in wheel.name, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name).name for name in archive.namelist()]
        metadata = Parser().parsestr(
            archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))).decode()
        )
    for library in ("libbackpass", "libdnnl", "libhwy", "libgomp"):
        assert len([name for name in names if name.startswith(library)]) == 1, names
    assert metadata["Requires-Python"]
    assert metadata["Summary"]
    assert metadata["License-Expression"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "# Backpass" in str(metadata.get_payload())
    assert [r for r in metadata.get_all("Requires-Dist") if "extra" not in r] == ["numpy>=1.26"]
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.0f} MB")


def check_training(workshop: Environment, device: Environment) -> None:
    workshop.run("python", "-c", MAKE)
    print(workshop.run("backpass", "check", "forward.onnx", "--trainable", "*").strip())
    training = ["--loss", "CrossEntropyLoss", "--optimizer", "AdamW", "--requires-grad", "*"]
    print(workshop.run("backpass", "artifacts", "forward.onnx", *training).strip())
    shutil.copytree(workshop.folder, device.folder, dirs_exist_ok=True)
    print(device.run("backpass", "--version").strip())
    print(device.run("python", "-c", TRAIN).strip())


def check_c(device: Environment) -> None:
    """README's road from the wheel to a C program, which goes on from what Python trained."""
    (device.folder / "examples").symlink_to(ROOT / "examples")
    device.run("bash", "-euc", commands(ROOT / "README.md", "--cmake-dir"))
    (device.folder / "trained").replace(device.folder / "checkpoint")
    losses = device.run("build/c/train", ".", "data", "3", str(BATCH), str(FEATURES)).split()
    print("in C, from there:", " ".join(losses))


def check_readme(workshop: Environment, device: Environment) -> None:
    page = ROOT / "README.md"
    workshop.run("python", str(ROOT / "examples" / "demo.py"), "--save", "model.onnx")
    workshop.run("python", "-c", python_of(page, without=r"backpass\[torch\]"))
    for name in ("model.onnx", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"):
        shutil.copy(workshop.folder / name, device.folder)
    device.run("python", "-c", python_of(page, without=r"backpass\[(torch|onnx)\]"))
    print("README.md: all of its Python that needs no torch")


def check(wheel: Path, folder: Path) -> None:
    check_contents(wheel)
    workshop = Environment(folder / "workshop", f"{wheel}[onnx]")
    device = Environment(folder / "device", str(wheel))
    assert device.packages() == {"backpass", "numpy"}, device.packages()
    check_training(workshop, device)
    check_c(device)
    check_readme(workshop, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    with tempfile.TemporaryDirectory() as folder:
        check(parser.parse_args().wheel.resolve(), Path(folder))


if __name__ == "__main__":
    main()
