"""The programs in examples/ and benchmarks/ do what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backpass import _core, artifacts
from backpass.api import CheckpointState, Module, Optimizer
from onnx import helper, numpy_helper

ROOT = Path(__file__).parents[2]


def run(*command: Any, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_demo_agrees_with_onnxruntime() -> None:
    text = run(sys.executable, ROOT / "examples" / "demo.py")
    assert "no problems" in text
    assert "exact peak: " in text
    assert "Every output agrees with onnxruntime." in text


def test_fashion_is_killed_resumes_and_exports(tmp_path: Path) -> None:
    debian = Path("/usr/share/datasets/fashion-mnist")
    if not debian.exists() and importlib.util.find_spec("sklearn") is None:
        pytest.skip(f"neither {debian} (Debian's dataset-fashion-mnist) nor scikit-learn's digits are installed")
    script = ROOT / "examples" / "fashion.py"
    text = run(sys.executable, script, "--folder", tmp_path, "--epochs", "1", "--images", "3200")
    assert "network: no problems" in text
    assert int(re.search(r"killed in the middle; the checkpoint is that of step (\d+)", text)[1]) >= 10
    assert "onnxruntime's scores differ by at most" in text
    accuracy = float(re.search(r"test accuracy ([\d.]+) %", text)[1])
    assert accuracy > 40  # of ten classes, after 50 steps
    assert (tmp_path / "course.svg").read_text().startswith("<svg")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The C and C++ examples, built as a user would; and where their libraries are."""
    imported = Path(_core.__file__).parents[2]  # sanitizers have a build of their own, with other roundings
    builds = (imported, ROOT / "build" / "dev", ROOT / "build")
    build = next((b for b in builds if (b / "CMakeCache.txt").exists()), None)
    if build is None:
        pytest.skip("there is no CMake build to install from")
    folder = tmp_path_factory.mktemp("programs")
    prefix = folder / "prefix"
    run("cmake", "--install", build, "--component", "development", "--prefix", prefix)
    onednn = next(f for f in metadata.files("onednn-cpu-gomp") if f.name.startswith("libdnnl.so"))
    libraries = f"{prefix / 'lib'}:{Path(onednn.locate()).resolve().parent}"
    for language in ("c", "cpp"):
        run("cmake", "-S", ROOT / "examples" / language, "-B", folder / language, f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", folder / language, LD_LIBRARY_PATH=libraries)
    return folder, libraries


def test_cpp_example_describes_a_model(programs: tuple[Path, str], tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    run(sys.executable, ROOT / "examples" / "demo.py", "--save", model)
    text = run(programs[0] / "cpp" / "describe", model, "3", LD_LIBRARY_PATH=programs[1])
    assert "input  image: tensor(float)" in text
    assert "output probabilities: [3,10]" in text


def test_cpp_example_registers_an_operator(programs: tuple[Path, str], tmp_path: Path) -> None:
    import torch

    node = helper.make_node("Swish", ["x"], ["y"], domain="example", alpha=2.0)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("example", 1)]
    infos = {dtype: [helper.make_tensor_value_info(n, dtype, [7]) for n in "xy"] for dtype in (1, 11)}
    for dtype, (x, y) in infos.items():
        graph = helper.make_graph([node], "g", [x], [y])
        path = tmp_path / f"{dtype}.onnx"
        path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    program = programs[0] / "cpp" / "custom_operator"
    lines = run(program, tmp_path / "1.onnx", "x", LD_LIBRARY_PATH=programs[1]).splitlines()
    found = {line.split()[0]: np.array(line.split()[1:], np.float32) for line in lines}
    leaf = torch.linspace(-1, 1, 7, requires_grad=True)
    expected = leaf * torch.sigmoid(2 * leaf)
    expected.sum().backward()
    np.testing.assert_allclose(found["output"], expected.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["gradient"], leaf.grad, rtol=1e-5, atol=1e-6)
    refused = subprocess.run(
        [program, tmp_path / "11.onnx", "x"],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": programs[1]},
    )
    assert refused.returncode == 1
    assert "[example.Swish 'y'] Swish: expected float32" in refused.stderr


STEPS, BATCH, FEATURES, CLASSES = 12, 5, 6, 3


def make_artifacts(folder: Path) -> None:
    rng = np.random.default_rng(1)
    weights = {"w1": (FEATURES, 8), "b1": (8,), "w2": (8, CLASSES), "b2": (CLASSES,)}
    tensors = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "w2", "b2"], ["scores"]),
    ]
    x = helper.make_tensor_value_info("x", 1, ["n", FEATURES])
    scores = helper.make_tensor_value_info("scores", 1, ["n", CLASSES])
    graph = helper.make_graph(nodes, "g", [x], [scores], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    artifacts.generate_artifacts(
        model,
        requires_grad=list(weights),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


def test_python_c_and_cpp_train_alike_bit_for_bit(programs: tuple[Path, str], tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    batches = [
        (rng.standard_normal((BATCH, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, BATCH))
        for _ in range(STEPS)
    ]
    (tmp_path / "data").write_bytes(b"".join(x.tobytes() + y.tobytes() for x, y in batches))
    losses, exported = {}, {}
    for language in ("c", "cpp"):
        folder = tmp_path / language
        make_artifacts(folder)
        program = programs[0] / language / "train"
        sizes = (str(STEPS), str(BATCH), str(FEATURES))
        text = run(program, folder, tmp_path / "data", *sizes, "scores", LD_LIBRARY_PATH=programs[1])
        losses[language] = [np.float32(line) for line in text.split()]
        exported[language] = (folder / "inference.onnx").read_bytes()
    folder = tmp_path / "python"
    make_artifacts(folder)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    losses["python"] = []
    for x, y in batches:
        losses["python"].append(np.float32(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    module.export_model_for_inferencing(folder / "inference.onnx", ["scores"])
    assert losses["python"][-1] < losses["python"][0]
    assert losses["c"] == losses["cpp"] == losses["python"]
    assert exported["c"] == exported["cpp"] == (folder / "inference.onnx").read_bytes()
    error = subprocess.run(
        [programs[0] / "c" / "train", tmp_path, "x", "1", "1", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": programs[1]},
    )
    assert error.returncode == 1
    assert "checkpoint" in error.stderr


@pytest.mark.slow
def test_benchmark_works() -> None:
    text = run(sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--models", "mlp", "lstm_tagger")
    assert "Geometric mean" in text
    assert "external data" in text
