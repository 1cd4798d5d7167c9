"""The programs in examples/ and benchmarks/ do what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from backpass import _core, artifacts
from backpass.api import CheckpointState, Module, Optimizer
from documents import blocks, commands
from onnx import helper, numpy_helper

ROOT = Path(__file__).parents[2]


def run(*command: Any, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_bare(*command: Any, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """With nothing in the environment that could help."""
    home = "" if folder is None else str(folder)
    bare = {"PATH": os.environ["PATH"], "HOME": home}
    return subprocess.run(command, cwd=folder, env=bare, capture_output=True, text=True)


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
    killed_at, saved = map(int, re.search(r"killed at step (\d+); the checkpoint is that of step (\d+)", text).groups())
    assert 20 <= saved <= killed_at < 50
    assert f"resuming at step {saved}" in text
    assert re.search(r"training: 100%\|#+\| 50/50 \[00:\d\d<00:00, .*loss=", text)  # tqdm's, on a line of its own
    assert "\r" not in text
    assert "onnxruntime's scores differ by at most" in text
    accuracy = float(re.search(r"test accuracy ([\d.]+) %", text)[1])
    assert accuracy > 40  # of ten classes, after 50 steps
    assert (tmp_path / "course.png").read_bytes().startswith(b"\x89PNG")


def test_picture_shows_the_whole_course(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from fashion_picture import Course, figure

    losses = {step: 3.0 / step for step in range(1, 301)}
    accuracies = {100: 0.5, 200: 0.7, 300: 0.8}
    loss, accuracy = figure(Course(losses, accuracies, killed_at=230, resumed_at=200), "title").axes
    (dots, mean, *marks), (curve, *_) = loss.lines, accuracy.lines
    assert (dots.get_xydata() == list(losses.items())).all()
    assert loss.get_ylim()[0] <= 0
    assert loss.get_ylim()[1] >= 3.0
    np.testing.assert_allclose(mean.get_ydata()[[0, 99]], [3.0, np.mean([losses[s] for s in range(51, 101)])])
    np.testing.assert_allclose(curve.get_xydata(), [[100, 50], [200, 70], [300, 80]])
    assert [mark.get_xdata()[0] for mark in marks] == [230, 200]
    assert [text.get_text() for text in loss.get_legend().get_texts()][2:] == [
        "killed at step 230",
        "resumed at step 200",
    ]
    assert (loss.get_ylabel(), accuracy.get_ylabel(), accuracy.get_xlabel()) == (
        "training loss",
        "test accuracy in %",
        "step",
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ examples, built by the commands in README.md, and the C example, from a copy of the prefix they made."""
    imported = Path(_core.__file__).parents[2]  # sanitizers have a build of their own, with other roundings
    builds = (imported, ROOT / "build" / "dev", ROOT / "build")
    build = next((b for b in builds if (b / "CMakeCache.txt").exists()), None)
    if build is None:
        pytest.skip("there is no CMake build to install from")
    folder = tmp_path_factory.mktemp("programs")
    (folder / "build").mkdir()
    (folder / "build" / "dev").symlink_to(build)
    (folder / "examples").symlink_to(ROOT / "examples")
    run(sys.executable, ROOT / "examples" / "demo.py", "--save", folder / "model.onnx")
    done = run_bare("bash", "-euxc", commands(ROOT / "README.md", "--component development"), folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "output probabilities: [4,10]" in done.stdout
    shutil.copytree(folder / "backpass", folder / "moved")
    for command in (
        ("-S", "examples/c", "-B", "build/c", f"-DCMAKE_PREFIX_PATH={folder / 'moved'}"),
        ("--build", "build/c"),
    ):
        done = run_bare("cmake", *command, folder=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build"


def test_programs_need_nothing_outside_of_their_prefix(programs: Path) -> None:
    for program, prefix in ((programs / "cpp" / "describe", "backpass"), (programs / "c" / "train", "moved")):
        libraries = dict(re.findall(r"(\S+) => (\S+)", run_bare("ldd", program).stdout))
        place = programs.parent / prefix / "lib"
        assert Path(libraries["libbackpass.so"]).parent == place
        for library in ("libdnnl.so.3", "libhwy.so.1", "libgomp.so.1"):
            assert Path(libraries[library]).resolve() == place / "backpass" / library
        assert sorted(p.name for p in (place / "backpass").iterdir()) == ["libdnnl.so.3", "libgomp.so.1", "libhwy.so.1"]


def test_cpp_of_the_readme_runs(programs: Path) -> None:
    (code,) = [b.text for b in blocks(ROOT / "README.md") if b.language == "cpp"]
    includes, body = code.split("\n\n", 1)
    folder = programs.parent
    (folder / "readme.cpp").write_text(f"{includes}\nint main() {{\n{body}  return outputs.size() == 1 ? 0 : 1;\n}}\n")
    prefix = folder / "backpass"
    flags = ("-std=c++20", f"-I{prefix}/include", f"-L{prefix}/lib", "-lbackpass", f"-Wl,-rpath,{prefix}/lib")
    for command in (("c++", "readme.cpp", *flags, "-o", "readme"), (folder / "readme",)):
        done = run_bare(*command, folder=folder)
        assert done.returncode == 0, done.stdout + done.stderr


def test_cpp_example_describes_a_model(programs: Path) -> None:
    text = run_bare(programs / "cpp" / "describe", programs.parent / "model.onnx", "3").stdout
    assert "input  image: tensor(float)" in text
    assert "output probabilities: [3,10]" in text


def test_cpp_example_registers_an_operator(programs: Path, tmp_path: Path) -> None:
    import torch

    node = helper.make_node("Swish", ["x"], ["y"], domain="example", alpha=2.0)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("example", 1)]
    infos = {dtype: [helper.make_tensor_value_info(n, dtype, [7]) for n in "xy"] for dtype in (1, 11)}
    for dtype, (x, y) in infos.items():
        graph = helper.make_graph([node], "g", [x], [y])
        path = tmp_path / f"{dtype}.onnx"
        path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    program = programs / "cpp" / "custom_operator"
    lines = run_bare(program, tmp_path / "1.onnx", "x").stdout.splitlines()
    found = {line.split()[0]: np.array(line.split()[1:], np.float32) for line in lines}
    leaf = torch.linspace(-1, 1, 7, requires_grad=True)
    expected = leaf * torch.sigmoid(2 * leaf)
    expected.sum().backward()
    np.testing.assert_allclose(found["output"], expected.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["gradient"], leaf.grad, rtol=1e-5, atol=1e-6)
    refused = run_bare(program, tmp_path / "11.onnx", "x")
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


def test_python_c_and_cpp_train_alike_bit_for_bit(programs: Path, tmp_path: Path) -> None:
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
        program = programs / language / "train"
        sizes = (str(STEPS), str(BATCH), str(FEATURES))
        text = run_bare(program, folder, tmp_path / "data", *sizes, "scores").stdout
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
    error = run_bare(programs / "c" / "train", tmp_path, "x", "1", "1", "1")
    assert error.returncode == 1
    assert "checkpoint" in error.stderr


def loss_model() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    weight = numpy_helper.from_array(rng.standard_normal((FEATURES, CLASSES)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", 1, ["n", FEATURES]),
        helper.make_tensor_value_info("labels", 7, ["n"]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("loss", 1, [])], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_c_example_trains_a_model_and_goes_on_from_its_checkpoint(programs: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, labels = rng.standard_normal((BATCH, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, BATCH)
    (tmp_path / "data").write_bytes((x.tobytes() + labels.tobytes()) * STEPS)
    onnx.save(loss_model(), tmp_path / "model.onnx")

    def trained(steps: int, checkpoint: str) -> list[str]:
        sizes = (str(steps), str(BATCH), str(FEATURES))
        given = (tmp_path / "model.onnx", "loss", tmp_path / "data", *sizes, tmp_path / checkpoint)
        return run_bare(programs / "c" / "train_model", *given).stdout.split()

    whole = trained(STEPS, "whole")
    assert float(whole[-1]) < float(whole[0])
    assert trained(STEPS // 2, "halves") + trained(STEPS // 2, "halves") == whole


@pytest.mark.slow
def test_benchmark_works() -> None:
    text = run(sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--models", "mlp", "lstm_tagger")
    assert "Geometric mean" in text
    assert "external data" in text


def test_products_are_timed_beside_libraries() -> None:
    """One small product; the gate opens and shuts."""
    script = [sys.executable, str(ROOT / "benchmarks" / "gemm.py"), "--shape", "8,16,24,nt", "--seconds", "0.05"]
    lines = run(*script, "--gate", "1e-9").splitlines()
    assert lines[1].split()[-6:] == ["ours", "onednn", "torch", "openblas", "ratio", "(med.)"]
    assert lines[2].split()[:2] == ["8x16x24", "nt"]
    assert lines[3].startswith("geometric mean")
    shut = subprocess.run([*script, "--gate", "1e9"], capture_output=True, text=True)
    assert shut.returncode == 1, shut.stderr
    assert shut.stdout.splitlines()[-1].startswith("below 1000000000.0: ")


def test_step_times_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import speed_chart

    group = speed_chart.Bars("mlp, 1 thread", {"backpass": 0.5, "eager": 1.0, "original": None}, 0.25)
    failed = speed_chart.Bars("cnn, 1 thread", {"backpass": None, "eager": 1.0, "original": None}, None)
    assert speed_chart.draw([group, failed], tmp_path / "chart.svg")
    assert "<svg" in (tmp_path / "chart.svg").read_text()
    assert not speed_chart.draw([failed], tmp_path / "none.svg")
