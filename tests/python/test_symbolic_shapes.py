"""Shape arithmetic over symbols: one session, many extents, against onnxruntime, the same graph with numbers, and
finite differences of what `grad` gives (see shape_fuzz.py).

Each graph of the table has a rule that once stated an extent for all numbers which only holds for some.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence

import backpass
import numpy as np
import pytest
import shape_fuzz
from onnx import TensorProto
from shape_graph import FAR, ShapeGraph

Graph = Callable[[ShapeGraph], str | None]
EXTENTS = (0, 1, 2, 3, 5, 8)
SECONDS = float(os.environ.get("BACKPASS_SHAPE_FUZZ_SECONDS", "600"))


def sliced(g: ShapeGraph, start: int | str, end: int | str, step: int = 1, axis: int = 0, x: str = "x") -> str:
    bounds = [b if isinstance(b, str) else g.ints(b) for b in (start, end)]
    return str(g.op("Slice", x, *bounds, g.ints(axis), g.ints(step)))


def extent(g: ShapeGraph, axis: int, x: str = "x") -> str:
    return str(g.op("Shape", x, start=axis, end=axis + 1))


def reshaped(g: ShapeGraph, *target: str | int, x: str = "x", allowzero: int = 0) -> str:
    parts = [t if isinstance(t, str) else g.ints(t) for t in target]
    return str(g.op("Reshape", x, g.op("Concat", *parts, axis=0), allowzero=allowzero))


def pooled(kind: str, kernel: int, stride: int, pads: Sequence[int], ceil_mode: int = 0) -> Graph:
    def make(g: ShapeGraph) -> str:
        image = g.op("Unsqueeze", "x", g.ints(0, 1))
        return str(g.op(kind, image, kernel_shape=[kernel], strides=[stride], pads=pads, ceil_mode=ceil_mode))

    return make


def ranged(low: int, minus: int, step: int) -> Graph:
    def make(g: ShapeGraph) -> str:
        end = g.scalar(g.op("Sub", extent(g, 0), g.ints(minus)))
        return str(g.op("Cast", g.op("Range", g.const(low), end, g.const(step)), to=TensorProto.FLOAT))

    return make


def spread(g: ShapeGraph, number: str) -> str:
    """As many elements as the number says, if it is not negative: what it is counts as an extent."""
    count = g.op("Abs", number)
    return str(g.op("Expand", g.const([2.0], np.float32), count))


def pieces(count: int) -> Graph:
    def make(g: ShapeGraph) -> str:
        parts = g.op("Split", "x", outputs=count, axis=0, num_outputs=count)
        for part in parts[1:]:
            g.losses.append(g.mean(part))
            g.outputs.append(g.op("Shape", part))
        return str(parts[0])

    return make


Inputs = Mapping[str, Sequence[str | int]]
N: Inputs = {"x": ["n"]}
NB: Inputs = {"x": ["n", "b"]}
BN3: Inputs = {"x": ["b", "n", 3]}
GRAPHS: dict[str, tuple[Inputs, Graph]] = {
    "slice-last-five": (N, lambda g: sliced(g, -5, FAR)),
    "slice-first-five": (N, lambda g: sliced(g, 0, 5)),
    "slice-all-but-last": (N, lambda g: sliced(g, 0, -1)),
    "slice-all-but-first": (N, lambda g: sliced(g, 1, FAR)),
    "slice-middle": (N, lambda g: sliced(g, 2, 5)),
    "slice-backwards": (N, lambda g: sliced(g, FAR, -FAR, -2)),
    "slice-both-from-the-end": (N, lambda g: sliced(g, -4, -2)),
    "slice-by-two": (N, lambda g: sliced(g, 1, -1, 2)),
    "slice-to-another-extent": (NB, lambda g: sliced(g, 0, extent(g, 1))),
    "slice-from-another-extent": (NB, lambda g: sliced(g, extent(g, 1), FAR)),
    "slice-to-a-difference": (NB, lambda g: sliced(g, 0, g.op("Sub", extent(g, 0), g.ints(3)))),
    "slice-to-one-less": (N, lambda g: sliced(g, 0, g.op("Sub", extent(g, 0), g.ints(1)))),
    "slice-beside-the-whole": (N, lambda g: g.op("Concat", *[g.op("Unsqueeze", t, g.ints(1)) for t in
                                                            ("x", sliced(g, -5, FAR))], axis=1)),
    "slice-added-to-the-whole": (N, lambda g: g.op("Add", "x", sliced(g, -5, FAR))),
    "pad-negative": (N, lambda g: g.op("Pad", "x", g.ints(-1, 2))),
    "range-that-may-be-empty": (N, ranged(0, 3, 1)),
    "range-down": (N, ranged(2, 0, -2)),
    "split-in-two": (N, pieces(2)),
    "split-in-three": (N, pieces(3)),
    "pool-rounding-up": (N, pooled("MaxPool", 3, 2, [0, 0], 1)),
    "pool-rounding-up-with-padding": (N, pooled("AveragePool", 3, 2, [1, 1], 1)),
    "pool-long-window": (N, pooled("MaxPool", 3, 1, [0, 0])),
    "reshape-zero-copies": (NB, lambda g: reshaped(g, extent(g, 1), -1)),
    "reshape-swapped": (NB, lambda g: reshaped(g, extent(g, 1), extent(g, 0))),
    "reshape-swapped-allowing-zero": (NB, lambda g: reshaped(g, extent(g, 1), extent(g, 0), allowzero=1)),
    "reshape-joined-and-parted": (BN3, lambda g: reshaped(g, extent(g, 0), extent(g, 1), 3, x=reshaped(
        g, g.op("Mul", extent(g, 0), extent(g, 1)), 3))),
    "reshape-joined-with-rest": (BN3, lambda g: reshaped(g, g.op("Mul", extent(g, 0), extent(g, 1)), -1)),
    "reshape-to-extents-of-another": ({"x": ["n"], "y": ["b"]}, lambda g: reshaped(g, extent(g, 0, "y"))),
    "reshape-to-rows-of-another": ({"x": ["n", 4], "y": ["b", 2]}, lambda g: reshaped(g, extent(g, 0, "y"), 4)),
    "reshape-to-a-difference": (N, lambda g: reshaped(g, g.op("Sub", extent(g, 0), g.ints(1)), x=sliced(g, 1, FAR))),
    "div-of-negative": (N, lambda g: spread(g, g.op("Div", g.op("Sub", extent(g, 0), g.ints(4)), g.ints(2)))),
    "div-by-extent": (NB, lambda g: spread(g, g.op("Div", g.op("Mul", extent(g, 0), extent(g, 1)), g.op(
        "Max", extent(g, 1), g.ints(1))))),
    "mod-of-negative": (N, lambda g: spread(g, g.op("Mod", g.op("Sub", extent(g, 0), g.ints(4)), g.ints(3)))),
    "fmod-of-negative": (N, lambda g: spread(g, g.op("Mod", g.op("Sub", extent(g, 0), g.ints(4)), g.ints(3), fmod=1))),
    "expand-broadcasts": (NB, lambda g: g.op("Expand", g.op("ReduceSum", "x", g.ints(1), keepdims=0), extent(g, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_extents_hold_for_all_numbers(name: str) -> None:
    inputs, make = GRAPHS[name]
    graph = ShapeGraph(0, inputs)
    made = str(make(graph))
    graph.losses += [graph.mean(made), graph.total(made)]
    ones = graph.op("ConstantOfShape", graph.op("Shape", made))
    graph.outputs += [graph.op("Shape", made), graph.op("Size", ones), *graph.losses]
    tally = shape_fuzz.Tally()
    judge = shape_fuzz.Judge(graph, 0, tally)
    for extents in itertools.product(EXTENTS, repeat=len(graph.symbols)):
        judge.run(dict(zip(graph.symbols, extents, strict=True)))
    assert not tally.findings, "\n".join(map(str, tally.findings))
    assert tally.runs > 2


def test_gradient_of_a_mean_of_the_last_five() -> None:
    graph = ShapeGraph(0, {"x": ["n"]})
    graph.losses = graph.outputs = [graph.op("ReduceMean", sliced(graph, -5, FAR), keepdims=0)]
    model = backpass.grad(graph.model(), ["x"])
    x = np.array([1, 2, 4], np.float32)
    for run in (backpass.InferenceSession(model.SerializeToString()), shape_fuzz.ort_session(model)):
        np.testing.assert_allclose(run.run(None, {"x": x})[1], [1 / 3] * 3, rtol=1e-6)


def test_symbols_named_like_expressions_are_not_expressions() -> None:
    """Exporters write "n + 1" for an extent that nothing ties to n."""
    graph = ShapeGraph(0, {"x": ["n"], "y": ["1+n"]})
    graph.outputs = [graph.op("Add", graph.op("Shape", "x"), graph.ints(1)), graph.op("Neg", graph.op("Shape", "y"))]
    graph.outputs.append(graph.op("Neg", graph.outputs[0]))
    session = backpass.InferenceSession(graph.model().SerializeToString())
    feeds = {"x": np.zeros(3, np.float32), "y": np.zeros(7, np.float32)}
    assert [int(r[0]) for r in session.run(None, feeds)] == [4, -7, -4]


# Seeds of random graphs that were wrong, and a few that were not.
SEEDS = (8, 156, 369, 477, 527, 556, 922, 923, 999)


def test_random_graphs() -> None:
    tally = shape_fuzz.Tally()
    for seed in (*SEEDS, *range(40)):
        shape_fuzz.judge_random(seed, tally)
    assert not tally.findings, "\n".join(map(str, tally.findings))


@pytest.mark.slow
def test_many_random_graphs() -> None:
    """As long as BACKPASS_SHAPE_FUZZ_SECONDS says."""
    tally = shape_fuzz.hunt(first_seed=1_000_000, seconds=SECONDS)
    print(tally)
    assert not tally.findings, "\n".join(map(str, tally.findings))
