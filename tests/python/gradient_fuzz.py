"""Gradients of random graphs against finite differences, run by the plan, by the reference interpreter, with fused
operators, with symbolic extents, and by onnxruntime.

Usage: python tests/python/gradient_fuzz.py [--seconds S] [--first SEED] [--seeds SEED ...]. Prints what is wrong, a
graph per paragraph; the last line of an unfinished output names the seed that crashed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import backpass
import gradient_check
import judges
import numpy as np
import onnx
import op_oracle
from random_graphs import Drawn, draw
from random_nodes import FAMILIES

Arrays = dict[str, np.ndarray]
ATTEMPTS = 3  # at other inputs: a kink that a difference stepped over is not there again


class Trial:
    """One graph with numbers to run it on."""

    def __init__(self, graph: Drawn, feeds: Arrays) -> None:
        self.graph, self.feeds = graph, feeds
        self.model = graph.model()
        self.session = backpass.InferenceSession(self.model.SerializeToString())
        self.wrt = list(feeds)
        rng = np.random.default_rng(1)
        self.forward = self.session.run(graph.outputs, feeds)
        self.seeds = [np.asarray(rng.standard_normal(y.shape)) for y in self.forward]

    def gradient_model(self, **options: bool) -> onnx.ModelProto:
        model = self.graph.model(symbolic=options.pop("symbolic", False))
        return backpass.grad(model, self.wrt, outputs=self.graph.outputs, seeds=True, **options)

    def run(self, model: onnx.ModelProto, runner: Any) -> list[np.ndarray]:
        given = {**self.feeds, **{f"{n}_grad": v for n, v in zip(self.graph.outputs, self.seeds, strict=True)}}
        used = {i.name for i in model.graph.input}
        names = [f"{n}_grad" for n in self.wrt]
        # Copies: onnxruntime's BatchNormalization writes new running statistics over those it is given.
        found: list[np.ndarray] = runner(model).run(names, {k: v.copy() for k, v in given.items() if k in used})
        return found

    def against_differences(self, gradients: Sequence[np.ndarray]) -> str:
        return gradient_check.finite_differences(
            lambda f: self.session.run(self.graph.outputs, f), self.feeds, self.wrt, self.seeds, gradients
        )


def planned(model: onnx.ModelProto) -> Any:
    return backpass.InferenceSession(model.SerializeToString())


def interpreted(model: onnx.ModelProto) -> Any:
    return backpass.InferenceSession(model.SerializeToString(), reference=True)


def same(trial: Trial, got: Sequence[np.ndarray], want: Sequence[np.ndarray], what: str) -> str:
    return gradient_check.all_close(trial.wrt, got, want, 1e-9, what)


def is_standard(graph: Drawn) -> bool:
    """False where an operator has no float64 in the standard, or where onnx infers other extents than runs have: before
    opset 22, of pools that round up."""
    model = graph.model()
    double = onnx.TensorProto.DOUBLE
    results = {n: v.shape for n, v in graph.sketch.values.items() if n not in graph.feeds}
    infos = {n: onnx.helper.make_tensor_value_info(n, double, s) for n, s in results.items()}
    model.graph.value_info.extend(info for n, info in infos.items() if n not in graph.outputs)
    for output in model.graph.output:
        output.CopyFrom(infos[output.name])
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def with_symbols(trial: Trial, gradients: Sequence[np.ndarray]) -> str:
    """Where every extent has a name of its own, nobody knows which are equal: some gradients are then refused."""
    try:
        model = trial.gradient_model(symbolic=True)
    except backpass.Unsupported:
        return judges.pass_over("symbolic extents in random graphs", "refused by name")
    return same(trial, trial.run(model, planned), gradients, "symbolic extents")


def problem_in(trial: Trial) -> str:
    standard = trial.gradient_model()
    onnx.checker.check_model(standard, full_check=is_standard(trial.graph))
    gradients = trial.run(standard, planned)
    return (
        trial.against_differences(gradients)
        or same(trial, trial.run(standard, interpreted), gradients, "reference interpreter")
        or same(trial, trial.run(trial.gradient_model(standard_only=False), planned), gradients, "fused")
        or with_symbols(trial, gradients)
        or against_onnxruntime(trial, standard, gradients)
    )


def has_empty(graph: Drawn) -> bool:
    """Several of onnxruntime's kernels (1.31.1) divide by zero where a tensor has no elements, Einsum among them."""
    return any(v.size == 0 for v in graph.sketch.values.values())


def against_onnxruntime(trial: Trial, model: onnx.ModelProto, gradients: Sequence[np.ndarray]) -> str:
    """What it cannot run in float64, or runs forward otherwise, it need not run backward."""
    judge = "onnxruntime in random graphs"
    if has_empty(trial.graph):
        return judges.pass_over(judge, "may crash without elements")
    try:
        forward = op_oracle.ort_session(trial.model).run(
            trial.graph.outputs, {k: v.copy() for k, v in trial.feeds.items()}
        )
    except Exception:
        return judges.pass_over(judge, "model refused")
    if not all(np.allclose(a, b, 1e-6, 1e-6) for a, b in zip(forward, trial.forward, strict=True)):
        return judges.pass_over(judge, "computed otherwise")
    try:
        found = trial.run(model, op_oracle.ort_session)
    except Exception:
        return judges.pass_over(judge, "gradient model refused")
    return gradient_check.all_close(trial.wrt, found, gradients, 1e-6, "onnxruntime")


def problem_of(seed: int) -> tuple[str, set[str]]:
    """What is wrong with the gradients of this seed's graph, and the operators in it."""
    graph = draw(seed, FAMILIES)
    rng = np.random.default_rng([seed, 1])
    problem = ""
    for attempt in range(ATTEMPTS):
        feeds = graph.feeds
        if attempt:
            feeds = {n: v + 0.01 * rng.standard_normal(v.shape) for n, v in feeds.items()}
        try:
            problem = problem_in(Trial(graph, feeds))
        except (backpass.Error, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as e:
            problem = f"{type(e).__name__}: {e}"
        if not problem:
            break
    return f"{problem}\n{graph}" if problem else "", graph.sketch.kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, help="seed to start from")
    parser.add_argument("--seeds", type=int, nargs="*", help="these only")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    wrong, seen = 0, Counter[str]()
    seed = arguments.first
    for seed in arguments.seeds or range(arguments.first, sys.maxsize):
        if time.monotonic() > end:
            break
        print(f"trying {seed}", flush=True)
        problem, kinds = problem_of(seed)
        seen.update(kinds)
        if problem:
            wrong += 1
            print(f"WRONG seed {seed}: {problem}", flush=True)
    print("operators:", ", ".join(f"{op} {n}" for op, n in seen.most_common()))
    print(f"finished, {wrong} wrong, up to seed {seed}")


if __name__ == "__main__":
    main()
