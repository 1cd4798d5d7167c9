"""Random models, run with several numbers of threads: each must give the same bits, and numbers that are right.

Usage: python tests/python/thread_bits.py [convolutions] [operators] [--seconds S] [--seed S]. Prints what is wrong, a
trial per paragraph, and how many were tried. Every trial has a seed of its own, which the paragraph names.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import backpass
import numpy as np
import onnx
from onnx import helper

Rng = np.random.Generator
Arrays = dict[str, np.ndarray]
THREADS = (1, 2, 3, 4, 8)  # more than most machines that run this have cores


@dataclass
class Trial:
    """A model with its feeds and, by name of output, what it should give and how far it may be off."""

    label: str
    model: onnx.ModelProto
    feeds: Arrays
    wanted: Mapping[str, np.ndarray] = field(default_factory=dict)
    bounds: Mapping[str, np.ndarray] = field(default_factory=dict)


def graph_model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Arrays,
    outputs: Sequence[str],
    constants: Arrays | None = None,
    opset: int = 23,
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    stored = [onnx.numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "trial", inputs, [onnx.ValueInfoProto(name=n) for n in outputs], stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def with_gradients(
    model: onnx.ModelProto, feeds: Arrays, wrt: Sequence[str], rng: Rng, standard: bool = False
) -> tuple[onnx.ModelProto, Arrays]:
    """The model that also gives `<name>_grad` for each name in `wrt`, and its feeds. `standard`: without the fused
    operators of training."""
    gradient = backpass.grad(model, list(wrt), seeds=True, standard_only=standard)
    arriving = {v.name for v in gradient.graph.input} - set(feeds)
    forward = dict(zip([v.name for v in model.graph.output], run(model, feeds, 1), strict=True))
    seeds = {n: rng.standard_normal(forward[n.removesuffix("_grad")].shape) for n in sorted(arriving)}
    return gradient, feeds | {n: a.astype(forward[n.removesuffix("_grad")].dtype) for n, a in seeds.items()}


def run(model: onnx.ModelProto, feeds: Arrays, threads: int) -> list[np.ndarray]:
    session = backpass.InferenceSession(model.SerializeToString(), num_threads=threads)
    return session.run(None, feeds)


def wrong_with(trial: Trial, threads: Sequence[int] = THREADS) -> str:
    """Which outputs change with the number of threads, and which are too far from what they should be."""
    names = [v.name for v in trial.model.graph.output]
    alone = run(trial.model, trial.feeds, threads[0])
    found = []
    for count in threads[1:]:
        for name, one, more in zip(names, alone, run(trial.model, trial.feeds, count), strict=True):
            if one.tobytes() != more.tobytes():
                found.append(f"{name} with {count} threads: {np.sum(one != more)} of {one.size} elements differ")
    for name, got in zip(names, alone, strict=True):
        if name in trial.wanted:
            wanted = trial.wanted[name]
            error = np.abs(got.astype(np.float64) - wanted) - trial.bounds[name]
            wrong = ~(error <= 0) & ~(np.isnan(got) & np.isnan(wanted))  # a mean over no label is no number
            if wrong.any():
                found.append(f"{name}: {np.sum(wrong)} of {got.size} elements too far off, by {error[wrong].max()}")
    return "; ".join(found)


# ---- Many of them.
def trials(generate: Callable[[Rng], Trial], seed: int, seconds: float) -> Iterator[tuple[int, Trial]]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield seed, generate(np.random.default_rng(seed))
        seed += 1


def findings(generate: Callable[[Rng], Trial], seed: int, seconds: float) -> tuple[int, list[str]]:
    """How many were tried, and what was wrong with which."""
    tried, found = 0, []
    for number, trial in trials(generate, seed, seconds):
        wrong = wrong_with(trial)
        tried += 1
        if wrong:
            found.append(f"seed {number}: {trial.label}\n  {wrong}")
    return tried, found


def generators() -> dict[str, Callable[[Rng], Trial]]:
    from thread_bits_convolutions import convolution
    from thread_bits_operators import operator

    return {"convolutions": convolution, "operators": operator}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["convolutions", "operators"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    total = 0
    for kind in arguments.kinds:
        tried, found = findings(generators()[kind], arguments.seed, arguments.seconds / len(arguments.kinds))
        print("\n".join([*found, f"{kind}: {len(found)} of {tried} wrong"]), flush=True)
        total += len(found)
    return min(total, 1)


if __name__ == "__main__":
    sys.exit(main())
