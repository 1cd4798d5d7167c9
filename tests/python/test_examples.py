"""The programs in examples/ and benchmarks/ do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.slow
def test_cpp_example_is_built_with_find_package_and_runs(tmp_path: Path) -> None:
    build = next((b for b in (ROOT / "build" / "dev", ROOT / "build") if (b / "CMakeCache.txt").exists()), None)
    if build is None:
        pytest.skip("there is no CMake build to install from")
    prefix, model = tmp_path / "prefix", tmp_path / "model.onnx"
    run("cmake", "--install", build, "--component", "development", "--prefix", prefix)
    run("cmake", "-S", ROOT / "examples" / "cpp", "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    libraries = f"{prefix / 'lib'}:{Path(sys.prefix) / 'lib'}"  # oneDNN's wheel puts libdnnl there
    run("cmake", "--build", tmp_path / "build", LD_LIBRARY_PATH=libraries)
    run(sys.executable, ROOT / "examples" / "demo.py", "--save", model)
    text = run(tmp_path / "build" / "describe", model, "3", LD_LIBRARY_PATH=libraries)
    assert "input  image: tensor(float)" in text
    assert "output probabilities: [3,10]" in text


@pytest.mark.slow
def test_benchmark_works() -> None:
    text = run(sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--models", "mlp", "lstm_tagger")
    assert "Geometric mean" in text
    assert "external data" in text
