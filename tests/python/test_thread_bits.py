"""The same bits for any number of threads: convolutions and their gradients first, then whatever uses threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gradient_check
import numpy as np
import op_case
import pytest
import thread_bits
from thread_bits_convolutions import Sizes, differentiated, inferred

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("BACKPASS_FUZZ_SECONDS", "600"))


def sizes(
    x: tuple[int, ...], w: tuple[int, ...], stride: Any = 1, pad: Any = 0, dilation: int = 1, group: int = 1
) -> Sizes:
    def spread(v: Any) -> tuple[int, ...]:
        return v if isinstance(v, tuple) else (v,) * (len(x) - 2)

    return Sizes(x, w, spread(stride), spread(pad), spread(dilation), group)


# Sizes for which oneDNN, given the threads, sums in an order that depends on how many they are.
BACKWARD = [
    sizes((1, 16, 14, 14), (16, 16, 3, 3), 2, 1),
    sizes((2, 16, 14, 14), (17, 16, 3, 3), 2, 1),
    sizes((1, 32, 16, 16), (17, 32, 3, 3), 2),
    sizes((3, 16, 2, 16), (128, 16, 1, 5), (1, 2), (2, 1)),
]
FORWARD = [
    sizes((3, 6, 56, 56), (21, 2, 1, 1), 2, 1, group=3),
    sizes((32, 1, 8, 8), (96, 1, 3, 3), 2, 3),
    sizes((16, 48, 28, 5), (112, 3, 5, 2), 1, 2, group=16),
    sizes((2, 3, 16, 56), (48, 3, 1, 3), (1, 2), (2, 1)),
]
STANDARD = [
    sizes((2, 32, 9, 9), (48, 8, 3, 3), 1, 1, group=4),
    sizes((4, 32, 14, 14), (32, 8, 3, 3), 1, 1, group=4),
]
TRANSPOSED = [
    sizes((1, 16, 13, 13), (2, 16, 1, 1), 1, 1),
    sizes((4, 8, 257), (4, 8, 1), 2, 1),
    sizes((1, 48, 257), (4, 24, 3), 1, 3, group=2),
]
INFERRED = [
    sizes((1, 24, 13, 13), (192, 3, 1, 1), 3, 0, 3, group=8),
    sizes((5, 3, 56, 56), (12, 1, 2, 2), 3, 2, 2, group=3),
    sizes((2, 64, 64), (128, 4, 1), 1, 3, group=16),
]
# Parts of several kinds: runs of images with a rest, shares of groups and of channels, both, one image.
PARTS = [
    sizes((37, 16, 14, 14), (24, 16, 3, 3), 1, 1),
    sizes((3, 64, 14, 14), (128, 64, 3, 3), 1, 1),
    sizes((1, 64, 28, 28), (64, 64, 3, 3), 1, 1),
    sizes((2, 64, 14, 14), (64, 16, 3, 3), 1, 1, group=4),
    sizes((19, 128, 2, 2), (256, 128, 3, 3), 1, 1),
    sizes((1, 64, 56, 56), (64, 1, 3, 3), 2, 1, group=64),
    sizes((1, 16, 6, 20, 20), (16, 16, 3, 3, 3), 1, 1),
    sizes((1, 128, 300), (128, 128, 3), 2, 1),
    sizes((5, 96, 8, 8, 8), (32, 96, 1, 1, 1), 2),
]


@pytest.mark.parametrize("s", BACKWARD + FORWARD + PARTS, ids=str)
def test_convolution_and_gradients(s: Sizes) -> None:
    assert thread_bits.wrong_with(differentiated(np.random.default_rng(0), s)) == ""


@pytest.mark.parametrize("s", STANDARD, ids=str)
def test_gradients_by_standard_operators(s: Sizes) -> None:
    assert thread_bits.wrong_with(differentiated(np.random.default_rng(0), s, standard=True)) == ""


@pytest.mark.parametrize("s", TRANSPOSED, ids=str)
def test_transposed_convolution_and_gradients(s: Sizes) -> None:
    assert thread_bits.wrong_with(differentiated(np.random.default_rng(0), s, transposed=True)) == ""


@pytest.mark.parametrize("s", INFERRED + PARTS, ids=str)
def test_convolution_with_constant_weights(s: Sizes) -> None:
    assert thread_bits.wrong_with(inferred(np.random.default_rng(0), s)) == ""


@pytest.mark.parametrize("kind", ["convolutions", "operators"])
def test_some_random_models(kind: str) -> None:
    tried, found = thread_bits.findings(thread_bits.generators()[kind], seed=0, seconds=3)
    assert tried > 0
    assert not found, "\n".join(found)


def test_no_number_is_right_where_none_is_wanted() -> None:
    """Seed 780498: a loss whose only label is ignored."""
    trial = thread_bits.generators()["operators"](np.random.default_rng(780498))
    assert any(np.isnan(wanted).any() for wanted in trial.wanted.values())
    assert thread_bits.wrong_with(trial) == ""
    trial.wanted = {name: np.zeros_like(wanted) for name, wanted in trial.wanted.items()}
    assert "too far off" in thread_bits.wrong_with(trial)


# ---- Longer, and on the roads of lesser machines.
def instruction_sets() -> list[str]:
    """Those of this machine, by the names of BACKPASS_MAX_ISA."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return []
    return [name for name, flag in (("avx512", "avx512f"), ("avx2", "avx2"), ("sse4", "sse4_1")) if flag in flags]


def run_capped(instruction_set: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "BACKPASS_MAX_ISA": instruction_set, "ONEDNN_VERBOSE": "0"}
    command = [sys.executable, str(HERE / "thread_bits.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_many_random_models(instruction_set: str) -> None:
    """BACKPASS_FUZZ_SECONDS (600) in all; the seed comes from the time, and is printed with what is found."""
    seconds = SECONDS / len(instruction_sets())
    seed = int.from_bytes(os.urandom(4), "little")
    done = run_capped(instruction_set, "--seconds", str(seconds), "--seed", str(seed))
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]


REWRITES = """
import backpass, numpy, thread_bits
from onnx import helper
x, w = numpy.ones((1, 16, 9, 9), "float32"), numpy.ones((16, 16, 3, 3), "float32")
model = thread_bits.graph_model([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": w})
print(backpass.InferenceSession(model.SerializeToString()).rewrites())
"""


@pytest.mark.skipif("avx2" not in instruction_sets(), reason="the processor has only what is always used")
@pytest.mark.parametrize(("instruction_set", "layout"), [("avx2", "blocked layout of 8 channels"), ("sse4", "")])
def test_instruction_sets_can_be_capped(instruction_set: str, layout: str) -> None:
    env = {**os.environ, "BACKPASS_MAX_ISA": instruction_set}
    done = subprocess.run(
        [sys.executable, "-c", REWRITES], capture_output=True, text=True, check=True, env=env, cwd=HERE
    )
    assert layout in done.stdout
    assert ("blocked layout" in done.stdout) == bool(layout)


ROWS = [pytest.param(row, id=row.label) for row in op_case.all_rows() if row.oracle != "random"]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_every_operator_at_the_size_of_its_benchmark(row: op_case.Row) -> None:
    item = op_case.instance(row, row.dtypes[0], row.bench_case, row.opsets[0])
    models = [(item.model(), item.feeds)]
    subject = gradient_check.subject(row, row.bench_case, row.dtypes[0])
    if subject is not None:
        models.append((subject.gradient_model(standard_only=False), subject.feeds))
    for model, feeds in models:
        alone, *others = (bits(thread_bits.run(model, feeds, n)) for n in (1, 2, 3, 8))
        assert all(other == alone for other in others)


def bits(values: Any) -> Any:
    if isinstance(values, list):
        return [bits(v) for v in values]
    return values.tobytes() if isinstance(values, np.ndarray) and values.dtype != object else repr(values)
