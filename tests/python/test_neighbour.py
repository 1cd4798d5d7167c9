"""Another process that uses a core must not hold up small steps, whose threads cannot all have one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import backpass
import numpy as np
import pytest
from backpass import artifacts
from backpass.api import CheckpointState, Module, Optimizer
from onnx import parser
from onnx.numpy_helper import from_array

# Chains of work that two threads would share, each piece some microseconds.
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[64,256] x, float[256,256] w) => (float[64,256] y) {
  a = MatMul(x, w)  b = Tanh(a)  c = MatMul(b, w)  d = Tanh(c)  e = MatMul(d, w)  y = Softmax(e)
}"""


@pytest.fixture
def neighbours() -> Iterator[None]:
    """A busy process for each core but one."""
    count = max(1, len(os.sched_getaffinity(0)) - 1)
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    time.sleep(0.2)
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("neighbours")
def test_threads_cost_nothing_beside_a_busy_neighbour() -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((64, 256), np.float32), "w": rng.standard_normal((256, 256), np.float32)}
    model = parser.parse_model(MODEL).SerializeToString()
    sessions = {threads: backpass.InferenceSession(model, num_threads=threads) for threads in (1, 2)}
    compare({threads: partial(session.run, None, feeds) for threads, session in sessions.items()})


SHARE = 1.6  # of what one thread takes, that a step may take beside a neighbour


def compare(steps: dict[int, Callable[[], object]]) -> None:
    """Two threads must not be much slower than one, for which a core is left."""
    samples: dict[int, list[float]] = {threads: [] for threads in steps}
    for _ in range(40):
        for threads, step in steps.items():
            for _ in range(10):
                start = time.perf_counter()
                step()
                samples[threads].append(time.perf_counter() - start)
    one, two = (statistics.median(times) for times in samples.values())
    assert two < SHARE * one, f"one thread {one * 1e3:.3f} ms, two threads {two * 1e3:.3f} ms"


PERCEPTRON = """<ir_version: 8, opset_import: ["": 17]> g (float[64,256] x) => (float[64,16] y) {
  h = MatMul(x, a)  i = Add(h, b)  r = Relu(i)  s = MatMul(r, c)  y = Add(s, d)
}"""


def native_step(folder: Path, threads: int) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    shapes = {"a": (256, 128), "b": (128,), "c": (128, 16), "d": (16,)}
    weights = [from_array(rng.standard_normal(s, np.float32) * np.float32(0.1), n) for n, s in shapes.items()]
    model = parser.parse_model(PERCEPTRON)
    model.graph.initializer.extend(weights)
    place = folder / str(threads)
    place.mkdir()
    artifacts.generate_artifacts(
        model, requires_grad=list(shapes), loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=place,
    )  # fmt: skip
    options = backpass.SessionOptions()
    options.num_threads = threads
    module = Module(place / "training_model.onnx", CheckpointState.load_checkpoint(place / "checkpoint"),
                    session_options=options)  # fmt: skip
    optimizer = Optimizer(place / "optimizer_model.onnx", module)
    x, y = rng.standard_normal((64, 256), np.float32), rng.integers(0, 16, 64)

    def step() -> None:
        module(x, y)
        optimizer.step()
        module.lazy_reset_grad()

    return step


@pytest.mark.usefixtures("neighbours")
def test_a_training_step_beside_a_busy_neighbour(tmp_path: Path) -> None:
    compare({threads: native_step(tmp_path, threads) for threads in (1, 2)})


@pytest.mark.usefixtures("neighbours")
def test_a_training_step_beside_torchs_threads_and_a_busy_neighbour(tmp_path: Path) -> None:
    """OpenMP's threads were there first, and have had work just before."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    source = torch.randn(1 << 18)
    source.mul(2.0)
    try:
        compare({threads: native_step(tmp_path, threads) for threads in (1, 2)})
    finally:
        torch.set_num_threads(before)
