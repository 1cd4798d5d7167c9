"""Random graphs with selections, with the passes that move them and without: values and gradients must be the same.

python tests/python/move_fuzz.py --first 0 --count 20000
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

import backpass
import moved_graphs
import numpy as np
import onnxruntime
import torch
from backpass import _core

PASSES = ("slice_concats", "move_slices", "merge_slices", "slices_to_split")
RANDOM_SEED = 5
ENOUGH = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-10}  # of the largest


def options(passes: Sequence[str]) -> _core.SessionOptions:
    return _core.SessionOptions(disabled_passes=[p for p in PASSES if p not in passes], verify_passes=True)


def session_of(graph: moved_graphs.Drawn, passes: Sequence[str]) -> tuple[_core.ModuleSession, list[str]]:
    """With what the passes did."""
    wrt = [n for n, v in graph.drawing.feeds.items() if v.dtype == graph.drawing.dtype]
    session = _core.ModuleSession.from_bytes(graph.model(), wrt, options(passes))
    return session, [r.what for r in session.pass_reports() if r.pass_name in PASSES]


def trained(graph: moved_graphs.Drawn, session: _core.ModuleSession) -> list[np.ndarray | None]:
    """Outputs and gradients."""
    d = graph.drawing
    feeds = [torch.from_numpy(v.copy()) for v in d.feeds.values()]
    outputs, pending = session.forward(feeds, True, RANDOM_SEED)
    rng = np.random.default_rng(1)
    seeds = [torch.from_numpy(rng.uniform(-1, 1, tuple(o.shape)).astype(d.dtype)) for o in outputs]
    are_wanted = session.differentiable_outputs()
    gradients = []
    if any(are_wanted):
        gradients = session.backward(pending, [s if w else None for s, w in zip(seeds, are_wanted, strict=True)])
    return [None if t is None else t.numpy() for t in (*outputs, *gradients)]


def inferred(graph: moved_graphs.Drawn, passes: Sequence[str]) -> list[np.ndarray]:
    disabled = [p for p in PASSES if p not in passes]
    session = backpass.InferenceSession(graph.model(), disabled_passes=disabled, verify_passes=True)
    return [np.asarray(v) for v in session.run(None, graph.drawing.feeds)]


def enough(graph: moved_graphs.Drawn) -> float:
    """Where float64 goes through float32, gradients that meet there add up in another order."""
    narrow = any(n.op_type == "Cast" for n in graph.drawing.nodes)
    return ENOUGH[np.dtype(np.float32 if narrow else graph.drawing.dtype)]


def difference(
    found: Sequence[np.ndarray | None], expected: Sequence[np.ndarray | None], what: str, most: float
) -> str:
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a is None or b is None:
            # A gradient of nothing but zeros may be left out.
            rest = b if a is None else a
            if rest is not None and np.any(rest):
                return f"{what} {i}: one is not there"
        elif a.shape != b.shape:
            return f"{what} {i}: shapes {a.shape} and {b.shape}"
        elif a.size and not np.allclose(a, b, 0, most * max(1, np.nanmax(np.abs(b))), equal_nan=True):
            return f"{what} {i}: differs by {np.nanmax(np.abs(a - b))}"
    return ""


def against_onnxruntime(graph: moved_graphs.Drawn, found: Sequence[np.ndarray]) -> str:
    """What it refuses, it need not run; with empty tensors some of its kernels crash."""
    d = graph.drawing
    if d.is_random or d.has_other_domain or any(0 in s for s in d.shapes.values()):
        return ""
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    quiet.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(graph.model(), quiet, providers=["CPUExecutionProvider"])
        expected = session.run(None, d.feeds)
    except Exception:
        return ""
    judged[True] += 1
    return difference(found, expected, "onnxruntime, output", enough(graph))


judged: Counter[bool] = Counter()


def problem_of(seed: int, with_ort: bool = False) -> tuple[str, list[str]]:
    """What is wrong with this seed's graph, and what the passes did in it. Graphs that they left alone are not run.
    Where float32 differs, float64 tells whether that is rounding: norms of nearly equal numbers."""
    problem, reports = problem_in(moved_graphs.draw(seed), with_ort)
    if "differs by" in problem:
        problem, reports = problem_in(moved_graphs.draw(seed, wide=True), with_ort)
    return problem, reports


def problem_in(graph: moved_graphs.Drawn, with_ort: bool) -> tuple[str, list[str]]:
    try:
        session, reports = session_of(graph, PASSES)
    except backpass.Error as e:
        return refused_without(graph, e), ["refused"]
    if not reports:
        return "", []
    try:
        expected = trained(graph, session_of(graph, ())[0])
    except backpass.Error:
        return "", ["refused"]
    try:
        problem = difference(trained(graph, session), expected, "output or gradient", enough(graph))
        if not problem and not graph.drawing.is_random:
            results = inferred(graph, PASSES)
            problem = difference(results, expected[: len(results)], "inferred output", enough(graph))
            if not problem and with_ort:
                problem = against_onnxruntime(graph, results)
    except backpass.Error as e:
        problem = f"{type(e).__name__}: {e}"
    return problem, reports


def refused_without(graph: moved_graphs.Drawn, error: backpass.Error) -> str:
    """A graph that is refused with the passes has to be refused without them."""
    try:
        trained(graph, session_of(graph, ())[0])
    except backpass.Error:
        return ""
    return f"{type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    wrong, done = 0, Counter[str]()
    for seed in range(arguments.first, arguments.first + arguments.count):
        problem, reports = problem_of(seed, with_ort=seed % 4 == 0)
        done.update(["graphs", *(["graphs changed"] if reports and reports != ["refused"] else [])])
        done.update(w for r in reports for w in r.replace("[", " ").split() if w[0].isupper() or w == "refused")
        if seed % 1000 == 999:
            print(f"up to {seed}", flush=True)
        if problem:
            wrong += 1
            print(f"WRONG seed {seed}: {problem}", flush=True)
    print(", ".join(f"{what} {n}" for what, n in done.most_common()))
    print(f"finished, {wrong} wrong, {judged[True]} judged by onnxruntime")


if __name__ == "__main__":
    main()
