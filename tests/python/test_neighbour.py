"""Another process that uses a core must not hold up small steps, whose threads cannot all have one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import backpass
import numpy as np
import pytest
from onnx import parser

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
    samples: dict[int, list[float]] = {threads: [] for threads in sessions}
    for _ in range(40):
        for threads, session in sessions.items():
            for _ in range(10):
                start = time.perf_counter()
                session.run(None, feeds)
                samples[threads].append(time.perf_counter() - start)
    one, two = (statistics.median(times) for times in samples.values())
    assert two < 3 * one, f"one thread {one * 1e3:.3f} ms, two threads {two * 1e3:.3f} ms"
