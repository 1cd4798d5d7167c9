"""How many rows of a loss over many classes are best worked on together: processor time of the loss with its gradients,
one thread, the least of interleaved runs, beside what the engine chooses and scores of all rows at once.

    python benchmarks/chunked_loss.py
    BACKPASS_MAX_ISA=avx2 python benchmarks/chunked_loss.py --rounds 9
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from backpass import InferenceSession
from onnx import TensorProto, helper

CHUNKS = (64, 128, 176, 240, 304, 512, 1024)
HEADS = ((1024, 128, 8192), (1024, 384, 30522), (512, 768, 50257), (512, 1024, 128256))


def joined(rows: int, features: int, classes: int, chunk: int) -> bytes:
    node = helper.make_node(
        "LinearCrossEntropy", ["x", "w", "l"], ["loss", "dx", "dw"], domain="backpass", transB=1, rows_at_once=chunk
    )
    return model([node], rows, features, classes)


def apart(rows: int, features: int, classes: int) -> bytes:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["s"], transB=1),
        helper.make_node("SoftmaxCrossEntropyLoss", ["s", "l"], ["loss", "p"]),
        helper.make_node("SoftmaxCrossEntropyLossGrad", ["one", "p", "l"], ["d"], domain="com.microsoft"),
        helper.make_node("Gemm", ["d", "w"], ["dx"]),
        helper.make_node("Gemm", ["d", "x"], ["dw"], transA=1),
    ]
    return model(nodes, rows, features, classes)


def model(nodes: list[Any], rows: int, features: int, classes: int) -> bytes:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, features]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [classes, features]),
        helper.make_tensor_value_info("l", TensorProto.INT64, [rows]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("loss", "dx", "dw")]
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(nodes, "head", inputs, outputs, [one])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("backpass", 1), helper.make_opsetid("com.microsoft", 1)]
    found: bytes = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    return found


def measured(rows: int, features: int, classes: int, chunks: tuple[int, ...], rounds: int) -> dict[str, float]:
    """Milliseconds."""
    random = np.random.default_rng(0)
    feeds = {
        "x": random.normal(size=(rows, features)).astype(np.float32),
        "w": (random.normal(size=(classes, features)) / features**0.5).astype(np.float32),
        "l": random.integers(0, classes, rows),
    }
    how: dict[str, Any] = {"num_threads": 1}
    sessions = {"whole": InferenceSession(apart(rows, features, classes), disabled_passes=["chunk_loss"], **how)}
    sessions["chosen"] = InferenceSession(joined(rows, features, classes, 0), **how)
    for chunk in chunks:
        sessions[str(chunk)] = InferenceSession(joined(rows, features, classes, chunk), **how)
    least = dict.fromkeys(sessions, float("inf"))
    for _ in range(rounds):
        for name, session in sessions.items():
            begin = time.process_time()
            session.run(None, feeds)
            least[name] = min(least[name], 1000 * (time.process_time() - begin))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--head", help="rows,features,classes instead of all of them")
    args = parser.parse_args()
    heads = [tuple(map(int, args.head.split(",")))] if args.head else HEADS
    for rows, features, classes in heads:
        chunks = tuple(c for c in CHUNKS if c <= rows)
        least = measured(rows, features, classes, chunks, args.rounds)
        print(f"{rows} x {features} x {classes}: " + ", ".join(f"{k} {v:.0f}" for k, v in least.items()), flush=True)


if __name__ == "__main__":
    main()
