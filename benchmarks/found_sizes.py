"""Three linear layers behind a Compress, forward and backward, with a number of valid rows that is new every time,
against the same layers behind a Gather of rows whose number is given and planned before: processor times of rounds
through all numbers, taking turns.

python benchmarks/found_sizes.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import backpass
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 256


def model(finds_rows: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = []
    nodes = [helper.make_node("Compress" if finds_rows else "Gather", ["x", "chosen"], ["taken"], axis=0)]
    value = "taken"
    for i in range(3):
        matrix = (rng.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        nodes += [
            helper.make_node("MatMul", [value, f"w{i}"], [f"y{i}"]),
            helper.make_node("Relu", [f"y{i}"], [f"z{i}"]),
        ]
        value = f"z{i}"
    nodes.append(helper.make_node("ReduceSum", [value], ["loss"], keepdims=0))
    chosen = (TensorProto.BOOL, ["rows"]) if finds_rows else (TensorProto.INT64, ["count"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])
    inputs = [x, helper.make_tensor_value_info("chosen", *chosen)]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "layers", inputs, [loss], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return backpass.grad(made, wrt=["w0", "w1", "w2"])


def session(made: onnx.ModelProto, threads: int, kept: int) -> backpass.InferenceSession:
    options = backpass.SessionOptions()
    options.num_threads = threads
    options.binding_cache = kept
    return backpass.InferenceSession(made.SerializeToString(), options)


def rounds(threads: int, rows: int, sizes: list[int]) -> dict[str, Callable[[], object]]:
    finding = session(model(True), threads, kept=1)
    given = session(model(False), threads, kept=2 * len(sizes))
    x = np.random.default_rng(1).standard_normal((rows, WIDTH)).astype(np.float32)
    masks = [np.arange(rows) < size for size in sizes]
    numbers = [np.flatnonzero(mask) for mask in masks]
    return {
        "given": lambda: [given.run(None, {"x": x, "chosen": rows}) for rows in numbers],
        "found": lambda: [finding.run(None, {"x": x, "chosen": mask}) for mask in masks],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--sizes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    sizes = np.linspace(options.rows // 2, options.rows, options.sizes, dtype=int).tolist()
    rivals = rounds(options.threads, options.rows, sizes)
    best = dict.fromkeys(rivals, float("inf"))
    for _ in range(options.rounds):
        for name, work in rivals.items():
            began = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - began)
    steps = {name: 1e3 * seconds / len(sizes) for name, seconds in best.items()}
    print(f"{options.threads} threads, {sizes[0]} to {sizes[-1]} of {options.rows} rows, ms of processor time per run")
    print(f"rows given {steps['given']:.2f}, rows found {steps['found']:.2f}: {steps['found'] / steps['given']:.3f}")


if __name__ == "__main__":
    main()
