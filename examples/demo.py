"""Makes a small convolutional classifier, checks it, shows how it will run, runs it for two batch sizes and compares
every number with onnxruntime. Ends with a non-zero status when they differ.

python examples/demo.py [--save model.onnx]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOLERANCE = 1e-5
BATCHES = (1, 16)
REPEATS = 20


# ---- The model: two convolutions with a residual branch, pooling, a linear layer. The batch size stays open.
class Weights:
    """Random initializers, named as they are asked for."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.tensors: list[TensorProto] = []

    def add(self, name: str, *shape: int, low: float = -0.3, high: float = 0.3) -> str:
        values = self.rng.uniform(low, high, shape).astype(np.float32)
        self.tensors.append(numpy_helper.from_array(values, name))
        return name

    def normalisation(self, name: str, channels: int) -> list[str]:
        parts = [self.add(f"{name}.{p}", channels) for p in ("scale", "bias", "mean")]
        return [*parts, self.add(f"{name}.variance", channels, low=0.5, high=1.5)]


def make_model() -> onnx.ModelProto:
    w = Weights()
    node = helper.make_node
    nodes = [
        node("Conv", ["image", w.add("w1", 16, 1, 3, 3)], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c1", *w.normalisation("bn1", 16)], ["n1"], "norm1"),
        node("Relu", ["n1"], ["r1"], "relu1"),
        node("MaxPool", ["r1"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", w.add("w2", 16, 16, 3, 3)], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c2", *w.normalisation("bn2", 16)], ["n2"], "norm2"),
        node("Add", ["n2", "p1"], ["a2"], "residual"),
        node("Relu", ["a2"], ["r2"], "relu2"),
        node("GlobalAveragePool", ["r2"], ["g"], "pool2"),
        node("Flatten", ["g"], ["f"], "flatten"),
        node("Gemm", ["f", w.add("w3", 16, 10, low=-2, high=2), w.add("b3", 10)], ["scores"], "linear"),
        node("Softmax", ["scores"], ["probabilities"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        w.tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


# ---- The tour.
def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def show_check(model: bytes) -> bool:
    title("1. Check: everything wrong with the model, at once")
    report = backpass.check(model)
    print(report)
    return report.ok


def show_plan(session: backpass.InferenceSession, feeds: dict[str, Any]) -> None:
    title("2. Plan: what will run, and in how much memory")
    for arg in (*session.get_inputs(), *session.get_outputs()):
        print(f"{arg.name}: {arg.type} {arg.shape}")
    print("".join(f"rewritten: {line}\n" for line in session.rewrites()))
    plan = session.plan(feeds)
    print(str(plan).rstrip())
    print(f"exact peak: {plan.peak_bytes:,} bytes (no plan can do with less than {plan.lower_bound_bytes:,})")


def milliseconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def show_runs(session: backpass.InferenceSession, rival: Any) -> bool:
    title("3. Run: the same session for two batch sizes, beside onnxruntime")
    print(f"{'batch':>5} {'Backpass':>12} {'onnxruntime':>12} {'difference':>12}")
    close = True
    for batch in BATCHES:
        feeds = image(batch)
        difference = float(np.abs(session.run(None, feeds)[0] - rival.run(None, feeds)[0]).max())
        ours, theirs = (milliseconds(partial(s.run, None, feeds)) for s in (session, rival))
        print(f"{batch:>5} {ours:>9.2f} ms {theirs:>9.2f} ms {difference:>12.1e}")
        close = close and difference <= TOLERANCE
    return close


def image(batch: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"image": np.random.default_rng(batch).standard_normal((batch, 1, 28, 28), dtype=np.float32)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="write the model to this file, and stop")
    options = parser.parse_args()

    model = make_model()
    if options.save:
        onnx.save(model, options.save)
        return 0
    import onnxruntime as ort

    print(f"Backpass {backpass.__version__}: a classifier of {len(model.graph.node)} nodes, made on the spot")
    serialized = model.SerializeToString()
    if not show_check(serialized):
        return 1
    session = backpass.InferenceSession(serialized)
    show_plan(session, image(BATCHES[0]))
    close = show_runs(session, ort.InferenceSession(serialized, providers=["CPUExecutionProvider"]))
    print(
        "\nEvery output agrees with onnxruntime." if close else f"\nMISMATCH: outputs differ by more than {TOLERANCE}"
    )
    return 0 if close else 1


if __name__ == "__main__":
    sys.exit(main())
