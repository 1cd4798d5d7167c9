"""Random graphs of shape arithmetic over symbolic extents, run with many extents in one session.

The judges: onnxruntime, the same graph with numbers for symbols, and finite differences for gradient models. Everything
is piecewise linear in the input, so that finite differences are exact unless two steps of them differ.

Usage: python tests/python/shape_fuzz.py [--seconds S] [--seed N] [--count N]. Prints what is wrong, a run per
paragraph; the last line counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import backpass
import numpy as np
import onnx
import onnxruntime
from shape_graph import ShapeGraph
from shape_graphs import GraphMaker

Arrays = dict[str, np.ndarray]
Extents = dict[str, int]
EXTENTS = (0, 1, 1, 2, 3, 4, 5, 7)
RUNS = 7  # per graph
ALSO_GRADIENT = 0.5
# Refused on purpose, whatever onnxruntime makes of it.
STRICTER = ("longer than the padded input", "expected to keep some", "output extent would be", "expected none below 0",
            "no element to repeat", "[Concat")  # fmt: skip


@dataclasses.dataclass
class Finding:
    seed: int
    extents: Extents
    what: str

    def __str__(self) -> str:
        return f"seed {self.seed} with {self.extents}: {self.what}"


@dataclasses.dataclass
class Tally:
    graphs: int = 0
    runs: int = 0
    gradients: int = 0
    refused: int = 0
    stricter: int = 0
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.graphs} graphs, {self.runs} runs and {self.gradients} gradients with results, "
            f"{self.refused} refused by onnxruntime, {self.stricter} by us alone on purpose, {len(self.findings)} wrong"
        )


# ---- Running: a list of results, or the message of a refusal.
Outcome = list[np.ndarray] | str


def guarded(run: Callable[[], list[np.ndarray]]) -> Outcome:
    try:
        return run()
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:300]}"


def ort_session(model: onnx.ModelProto) -> Any:
    """Without its optimizer, which does shape arithmetic of its own, and silent about what it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Lazy:
    """A session made at the first run; what stops it from being made is the outcome of every run."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._session: Any = None

    def run(self, feeds: Arrays) -> Outcome:
        def work() -> list[np.ndarray]:
            if self._session is None:
                self._session = self._make()
            return [np.asarray(r) for r in self._session.run(None, feeds)]

        return guarded(work)


def ours(model: onnx.ModelProto) -> Lazy:
    return Lazy(lambda: backpass.InferenceSession(model.SerializeToString(), num_threads=1))


def with_numbers(model: onnx.ModelProto, extents: Extents) -> onnx.ModelProto:
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_value = extents[dim.dim_param]
    del fixed.graph.value_info[:]
    return fixed


def difference(a: Outcome, b: Outcome, tolerance: float = 1e-4) -> str:
    """What differs between two outcomes; "" when nothing does. Two refusals agree."""
    if isinstance(a, str) or isinstance(b, str):
        return "" if isinstance(a, str) and isinstance(b, str) else f"{brief(a)} against {brief(b)}"
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.shape != y.shape:
            return f"output {i}: shape {x.shape} against {y.shape}"
        if not np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"output {i}: {brief([x])} against {brief([y])}"
    return ""


def is_stricter(outcome: Outcome) -> bool:
    return isinstance(outcome, str) and any(reason in outcome for reason in STRICTER)


def is_empty_for_ort(outcome: Outcome) -> bool:
    """onnxruntime has no windows over nothing, and no products of nothing that broadcast."""
    reasons = ("Computed output dimension is <= 0", "right operand cannot broadcast", "left operand cannot broadcast")
    return isinstance(outcome, str) and any(reason in outcome for reason in reasons)


def brief(outcome: Outcome) -> str:
    if isinstance(outcome, str):
        return outcome
    return "; ".join(np.array2string(a.ravel()[:8], precision=4) + f" {a.shape}" for a in outcome)


# ---- One graph.
class Judge:
    """Runs one graph, in one session of each kind, with as many extents as it is asked to."""

    def __init__(self, graph: ShapeGraph, seed: int, tally: Tally, differentiate: bool = True) -> None:
        self.rng = np.random.default_rng(seed + 1_000_000)
        self.seed = seed
        self.tally = tally
        self.graph = graph
        self.model = graph.model()
        self.forward = (Lazy(lambda: ort_session(self.model)), ours(self.model))
        self.gradient: tuple[Lazy, Lazy, Lazy] | None = None
        self.refusal = ""  # of the gradient model
        tally.graphs += 1
        if differentiate:
            self._differentiate()

    def feeds(self, extents: Extents) -> Arrays:
        arrays = {}
        for name, shape in self.graph.inputs.items():
            dims = [extents[d] if isinstance(d, str) else d for d in shape]
            size = int(np.prod(dims))
            # In 64ths, which add up without rounding; seldom alike.
            numbers = self.rng.permutation(size) - size // 3 + self.rng.integers(6, 26, size) / 64
            arrays[name] = numbers.astype(np.float32).reshape(dims)
        return arrays

    def _report(self, extents: Extents, what: str) -> None:
        self.tally.findings.append(Finding(self.seed, extents, what))

    def run(self, extents: Extents) -> None:
        feeds = self.feeds(extents)
        expected, got = (judge.run(feeds) for judge in self.forward)
        static = ours(with_numbers(self.model, extents)).run(feeds)
        for outcome in (got, static):
            if isinstance(outcome, str) and outcome.startswith("InternalBug"):
                self._report(extents, outcome)
        if isinstance(expected, str):
            self.tally.refused += 1
            both = not isinstance(got, str) and not isinstance(static, str)
            if both and "reshape_helper" not in expected and (wrong := difference(got, static)):
                self._report(extents, f"symbols and numbers differ: {wrong} (onnxruntime: {expected})")
            return
        if is_stricter(static):
            self.tally.stricter += 1
            return
        self.tally.runs += 1
        if wrong := difference(got, expected):
            also = difference(static, expected)
            self._report(extents, f"forward: {wrong}" + (f" (with numbers too: {also})" if also else ""))
        elif wrong := difference(static, expected):
            self._report(extents, f"forward with numbers: {wrong}")
        elif self.refusal and "depends on none" not in self.refusal:
            self._report(extents, f"grad() refuses: {self.refusal}")
            self.refusal = ""
        elif self.gradient is not None:
            self._gradient(extents, feeds)

    # ---- Gradients with respect to x.
    def _differentiate(self) -> None:
        losses = self.graph.losses
        try:
            standard = backpass.grad(self.model, ["x"], losses)
            fused = backpass.grad(self.model, ["x"], losses, standard_only=False)
        except (backpass.Unsupported, backpass.InvalidInput) as e:
            self.refusal = str(e)[:300]
            return
        self.gradient = (Lazy(lambda: ort_session(standard)), ours(standard), ours(fused))

    def _gradient(self, extents: Extents, feeds: Arrays) -> None:
        assert self.gradient is not None
        by_ort, by_us, by_fused = (g.run(feeds) for g in self.gradient)
        if is_stricter(by_us) and 0 in extents.values():
            self.tally.stricter += 1
            return
        if isinstance(by_us, str):
            self._report(extents, f"gradient: {by_us}")
            return
        self.tally.gradients += 1
        if wrong := difference(by_fused, by_us):
            self._report(extents, f"gradient, fused against standard: {wrong}")
        if not is_empty_for_ort(by_ort) and (wrong := difference(by_ort, by_us)):
            self._report(extents, f"gradient, onnxruntime's run against ours: {wrong}")
        slope = by_us[-1]
        direction = self.rng.choice([-1.0, 1.0], size=slope.shape).astype(np.float32)
        expected, noise = self._slope(feeds, direction, 0.25)
        again, _ = self._slope(feeds, direction, 0.0625)
        tolerance = 2e-3 * (1 + abs(expected)) + noise
        if slope.size and abs(expected - again) < tolerance:  # not where an edge lies between, nor where it is NaN
            found = float(np.sum(slope * direction))
            if not abs(found - expected) < tolerance:
                self._report(extents, f"gradient along {direction.ravel()[:6]}: {found} against {expected}")

    def _slope(self, feeds: Arrays, direction: np.ndarray, step: float) -> tuple[float, float]:
        """And how far rounding may have moved it."""
        values = []
        size = 0.0
        for sign in (1, -1):
            moved = {**feeds, "x": feeds["x"] + np.float32(sign * step) * direction}
            results = self.forward[0].run(moved)
            if isinstance(results, str):
                return float("nan"), 0
            chosen = [r for r, name in zip(results, self.graph.outputs, strict=True) if name in self.graph.losses]
            values.append(sum(float(r.astype(np.float64).sum()) for r in chosen))
            size = sum(float(np.abs(r.astype(np.float64)).sum()) for r in chosen)
        return (values[0] - values[1]) / (2 * step), 1e-6 * size / step


def judge_random(seed: int, tally: Tally) -> None:
    rng = np.random.default_rng(seed + 2_000_000)
    judge = Judge(GraphMaker(seed), seed, tally, bool(rng.random() < ALSO_GRADIENT))
    for _ in range(RUNS):
        judge.run({s: int(rng.choice(EXTENTS)) for s in judge.graph.symbols})


def hunt(first_seed: int, seconds: float = float("inf"), count: int | None = None) -> Tally:
    """Seeds from first_seed on, for a time or a number of graphs."""
    tally = Tally()
    end = time.monotonic() + seconds
    while time.monotonic() < end and (count is None or tally.graphs < count):
        judge_random(first_seed + tally.graphs, tally)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--show", action="store_true", help="print the graphs of the findings")
    options = parser.parse_args()
    tally = hunt(options.seed, options.seconds, options.count)
    shown: set[int] = set()
    for finding in tally.findings:
        print(finding)
        if options.show and finding.seed not in shown:
            shown.add(finding.seed)
            print(onnx.printer.to_text(GraphMaker(finding.seed).model()))
    print(f"seeds {options.seed} to {options.seed + tally.graphs - 1}: {tally}")


if __name__ == "__main__":
    main()
