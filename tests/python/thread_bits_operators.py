"""Random cases of other operators whose kernels use threads, for thread_bits.py: large enough for several chunks of
work, compared with the engine's own float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper
from thread_bits import Arrays, Rng, Trial, graph_model, run, with_gradients

MS = "com.microsoft"
# Of float32 against float64, relative to the largest element: sums of thousands of terms, divided by deviations.
TOLERANCE = 2e-4


@dataclass
class Subject:
    """Nodes with one or more outputs. Feeds that hold floats are differentiated unless `fixed` names them."""

    nodes: list[onnx.NodeProto]
    feeds: Arrays
    outputs: Sequence[str] = ("y",)
    constants: Arrays = field(default_factory=dict)
    fixed: Sequence[str] = ()
    differentiable: bool = True
    kinked: Sequence[str] = ()  # feeds whose gradient jumps where rounding may lead to either side: bits alone


def size(rng: Rng, most: int = 300) -> int:
    """Small, large, and around multiples of a vector."""
    large = int(rng.integers(most // 8, most))
    return int(rng.choice([1, 2, 3, int(rng.integers(1, 40)), large, large // 8 * 8 + 8]))


def values(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def indices(rng: Rng, high: int, *shape: int) -> np.ndarray:
    return rng.integers(0, high, shape)


def one(
    op: str, feeds: Arrays, domain: str = "", outputs: int = 1, fixed: Sequence[str] = (), **attributes: Any
) -> Subject:
    names = ["y", *(f"y{i}" for i in range(1, outputs))]
    node = helper.make_node(op, list(feeds), names, name="node", domain=domain, **attributes)
    return Subject([node], feeds, names[:1], fixed=fixed)


# ---- One function per family.
def matmul(rng: Rng) -> Subject:
    m, k, n = size(rng), size(rng, 900), size(rng)
    batch = int(rng.choice([1, 1, 3, 17]))
    a, b = (batch, m, k), ((k, n) if rng.random() < 0.5 else (batch, k, n))
    return one("MatMul", {"a": values(rng, *a), "b": values(rng, *b)})


def gemm(rng: Rng) -> Subject:
    m, k, n = size(rng), size(rng, 900), size(rng)
    ta, tb = (int(v) for v in rng.integers(0, 2, 2))
    a, b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    feeds = {"a": values(rng, *a), "b": values(rng, *b), "c": values(rng, n)}
    return one("Gemm", feeds, transA=ta, transB=tb, alpha=0.7, beta=1.3)


def einsum(rng: Rng) -> Subject:
    i, j, k, n = (size(rng, 40) for _ in range(4))
    equation, a, b = [
        ("nij,njk->nik", (n, i, j), (n, j, k)),
        ("nijk,jk->ni", (n, i, j, k), (j, k)),
        ("ijk,kn->nji", (i, j, k), (k, n)),
        ("nij,nij->", (n, i, j), (n, i, j)),
    ][int(rng.integers(4))]
    return one("Einsum", {"a": values(rng, *a), "b": values(rng, *b)}, equation=equation)


def image(rng: Rng) -> np.ndarray:
    return values(
        rng, int(rng.integers(1, 9)), int(rng.choice([1, 3, 8, 16, 17])), *(int(v) for v in rng.integers(6, 40, 2))
    )


def pool(rng: Rng) -> Subject:
    op = str(rng.choice(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"]))
    feeds = {"x": image(rng)}
    if op.startswith("Global"):
        return one(op, feeds)
    k, stride, pad = int(rng.integers(2, 5)), int(rng.integers(1, 4)), int(rng.integers(0, 2))
    return one(op, feeds, kernel_shape=[k, k], strides=[stride, stride], pads=[pad] * 4)


def batch_normalization(rng: Rng) -> Subject:
    x = image(rng)
    c = x.shape[1]
    feeds = {"x": x, "s": values(rng, c), "b": values(rng, c), "m": values(rng, c), "v": 1 + values(rng, c) ** 2}
    return one("BatchNormalization", feeds, outputs=3, fixed=("m", "v"), training_mode=1)


def normalization(rng: Rng) -> Subject:
    rows, n = size(rng), size(rng, 900) + 1
    op = str(
        rng.choice(["LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization", "LRN"])
    )
    if op == "LayerNormalization":
        return one(op, {"x": values(rng, rows, n), "s": values(rng, n), "b": values(rng, n)})
    if op == "RMSNormalization":
        return one(op, {"x": values(rng, rows, n), "s": values(rng, n)})
    x = image(rng)
    if op == "LRN":
        return one(op, {"x": x}, size=3)
    feeds = {"x": x, "s": values(rng, x.shape[1]), "b": values(rng, x.shape[1])}
    if op == "GroupNormalization":
        return one(op, feeds, num_groups=1)
    return one(op, feeds)


def reduction(rng: Rng) -> Subject:
    op = str(
        rng.choice(
            ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp", "ReduceL1", "ReduceSumSquare"]
        )
    )
    x = values(rng, *(size(rng, 90) for _ in range(3)))
    axes = rng.choice(3, int(rng.integers(1, 4)), replace=False)
    found = one(op, {"x": x, "axes": axes.astype(np.int64)}, keepdims=int(rng.integers(2)))
    found.constants["axes"] = found.feeds.pop("axes")
    return found


def softmax(rng: Rng) -> Subject:
    x = values(rng, *(size(rng, 90) for _ in range(3)))
    return one(str(rng.choice(["Softmax", "LogSoftmax"])), {"x": x}, axis=int(rng.integers(3)))


def attention(rng: Rng) -> Subject:
    n, heads, q, k = int(rng.integers(1, 4)), int(rng.integers(1, 9)), size(rng, 150), size(rng, 150)
    d = int(rng.choice([8, 16, 20, 64]))
    feeds = {"q": values(rng, n, heads, q, d), "k": values(rng, n, heads, k, d), "v": values(rng, n, heads, k, d)}
    return one("Attention", feeds, is_causal=int(rng.integers(2)))


def loss(rng: Rng) -> Subject:
    rows, classes = size(rng, 600), size(rng, 600) + 1
    feeds = {"x": values(rng, rows, classes), "t": indices(rng, classes, rows)}
    if rng.random() < 0.5:
        feeds["w"] = rng.random(classes).astype(np.float32)
    reduction_ = str(rng.choice(["mean", "sum", "none"]))
    return one("SoftmaxCrossEntropyLoss", feeds, fixed=("w",), reduction=reduction_, ignore_index=0)


def gather(rng: Rng) -> Subject:
    rows, n, count = size(rng), size(rng), size(rng, 2000)
    op = str(rng.choice(["Gather", "GatherElements", "GatherND"]))
    shape = {"Gather": (count,), "GatherElements": (count, n), "GatherND": (count, 1)}[op]
    return one(op, {"x": values(rng, rows, n), "i": indices(rng, rows, *shape)})


def scatter(rng: Rng) -> Subject:
    rows, n, count = size(rng), size(rng), size(rng, 2000)
    feeds = {"x": values(rng, rows, n)}
    if rng.random() < 0.5:
        feeds |= {"i": indices(rng, rows, count, n), "u": values(rng, count, n)}
        return one("ScatterElements", feeds, reduction="add")
    feeds |= {"i": indices(rng, rows, count, 1), "u": values(rng, count, n)}
    return one("ScatterND", feeds, reduction="add")


def resize(rng: Rng) -> Subject:
    x = image(rng)
    scales = np.array([1, 1, *rng.choice([0.5, 0.7, 1.3, 2, 3], 2)], np.float32)
    mode = str(rng.choice(["nearest", "linear", "cubic"]))
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], name="node", mode=mode, antialias=int(mode != "nearest")
    )
    return Subject([node], {"x": x}, constants={"scales": scales})


def grid_sample(rng: Rng) -> Subject:
    x = image(rng)
    grid = rng.uniform(-1.1, 1.1, (x.shape[0], *(int(v) for v in rng.integers(3, 40, 2)), 2)).astype(np.float32)
    found = one("GridSample", {"x": x, "grid": grid}, mode=str(rng.choice(["linear", "cubic"])))
    found.kinked = ("grid",)
    return found


def recurrent(rng: Rng) -> Subject:
    op, gates = [("LSTM", 4), ("GRU", 3), ("RNN", 1)][int(rng.integers(3))]
    steps, batch, inputs, hidden = (
        int(v) for v in (rng.integers(1, 12), rng.integers(1, 20), size(rng, 60), size(rng, 90))
    )
    both = int(rng.integers(1, 3))
    feeds = {
        "x": values(rng, steps, batch, inputs),
        "w": 0.2 * values(rng, both, gates * hidden, inputs),
        "r": 0.2 * values(rng, both, gates * hidden, hidden),
        "b": values(rng, both, 2 * gates * hidden),
    }
    return one(op, feeds, hidden_size=hidden, direction="bidirectional" if both == 2 else "forward")


def pointwise(rng: Rng) -> Subject:
    """A chain that is fused, with operands whose gradients are sums over what they were broadcast along."""
    n, m, k = (size(rng, 90) for _ in range(3))
    feeds = {"x": values(rng, n, m, k), "a": values(rng, m, 1), "b": values(rng, k), "c": values(rng, n, 1, 1)}
    nodes = [
        helper.make_node("Add", ["x", "a"], ["p"]),
        helper.make_node("Gelu", ["p"], ["q"]),
        helper.make_node("Mul", ["q", "b"], ["r"]),
        helper.make_node("Sub", ["r", "c"], ["y"]),
    ]
    return Subject(nodes, feeds)


def cumulative(rng: Rng) -> Subject:
    x = values(rng, *(size(rng, 90) for _ in range(3)))
    found = one("CumSum", {"x": x, "axis": np.asarray(rng.integers(3))})
    found.constants["axis"] = found.feeds.pop("axis")
    return found


def deformed(rng: Rng) -> Subject:
    n, c, h, w = int(rng.integers(1, 4)), int(rng.choice([2, 4, 8])), *(int(v) for v in rng.integers(4, 20, 2))
    feeds = {"x": values(rng, n, c, h, w), "w": values(rng, 5, c, 3, 3), "o": values(rng, n, 18, h - 2, w - 2)}
    found = one("DeformConv", feeds)
    found.kinked = ("o",)
    return found


def optimizer(rng: Rng) -> Subject:
    w, g, m, v = (values(rng, size(rng, 90), size(rng, 900)) for _ in range(4))
    g, m, v = g[:1, :1] + 0 * w, m[:1, :1] * w, np.abs(v[:1, :1] * w)
    feeds = {"rate": np.array(0.01, np.float32), "step": np.array(3), "w": w, "g": g, "m": m, "v": v}
    node = helper.make_node("AdamOptimizer", list(feeds), ["t", "m1", "m2", "y"], name="node", domain=MS)
    return Subject([node], feeds, ("m1", "m2", "y"), differentiable=False)


def lamb(rng: Rng) -> Subject:
    feeds = {"rate": np.array(0.01, np.float32), "step": np.array(3)}
    for i in range(int(rng.integers(1, 4))):
        n = 3 * size(rng, 20_000)
        w, g, m, v = (values(rng, n) for _ in range(4))
        feeds |= {f"w{i}": w, f"g{i}": g, f"m{i}": m, f"v{i}": np.abs(v), f"h{i}": w.astype("float16")}
    count = (len(feeds) - 2) // 5
    outputs = ["t", *(f"{part}{i}" for i in range(count) for part in ("y", "change", "m1_", "m2_", "half"))]
    node = helper.make_node("LambOptimizer", ["", "", "", *feeds], outputs, name="node", domain=MS)
    judged = tuple(name for name in outputs[1:] if not name.startswith("half"))  # whose rounding falls either way
    return Subject([node], feeds, judged, differentiable=False)


def norm(rng: Rng) -> Subject:
    feeds = {f"g{i}": values(rng, size(rng, 90), size(rng, 900)) for i in range(int(rng.integers(1, 6)))}
    node = helper.make_node("ReduceAllL2", list(feeds), ["y"], name="node", domain=MS)
    return Subject([node], feeds, differentiable=False)


def clipped(rng: Rng) -> Subject:
    feeds = {f"g{i}": values(rng, size(rng, 90), size(rng, 900)) for i in range(int(rng.integers(1, 6)))}
    nodes = [
        helper.make_node("SequenceConstruct", list(feeds), ["all"]),
        helper.make_node("InplaceClipGradNorm", ["all"], ["less"], name="node", domain=MS, max_norm=1.0),
        helper.make_node("SequenceAt", ["less", "zero"], ["y"]),
    ]
    return Subject(nodes, feeds, constants={"zero": np.array(0)}, differentiable=False)


FAMILIES: list[Callable[[Rng], Subject]] = [
    matmul, gemm, einsum, pool, batch_normalization, normalization, reduction, softmax, attention, loss, gather,
    scatter, resize, grid_sample, recurrent, pointwise, cumulative, deformed, optimizer, lamb, norm, clipped,
]  # fmt: skip


def widened(arrays: Arrays) -> Arrays:
    return {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}


def operator(rng: Rng, family: Callable[[Rng], Subject] | None = None) -> Trial:
    chosen = family or FAMILIES[int(rng.integers(len(FAMILIES)))]
    s = chosen(rng)
    wrt = [n for n, a in s.feeds.items() if s.differentiable and a.dtype == np.float32 and n not in s.fixed]
    # Scales of Resize are float32 whatever the image is.
    wide = graph_model(s.nodes, widened(s.feeds), s.outputs, s.constants)
    model = graph_model(s.nodes, s.feeds, s.outputs, s.constants)
    feeds = s.feeds
    if wrt:
        wide, _ = with_gradients(wide, widened(feeds), wrt, rng)
        model, feeds = with_gradients(model, feeds, wrt, rng)
    exact = run(wide, widened(feeds), 1)
    wanted = dict(zip([v.name for v in wide.graph.output], exact, strict=True))
    wanted = {n: a for n, a in wanted.items() if n.removesuffix("_grad") not in s.kinked}
    bounds = {n: np.asarray(TOLERANCE * np.abs(a).max(initial=1)) for n, a in wanted.items()}
    shapes = {n: a.shape for n, a in s.feeds.items()}
    attributes = {a.name: helper.get_attribute_value(a) for a in s.nodes[0].attribute}
    return Trial(f"{[n.op_type for n in s.nodes]} of {shapes}, {attributes}", model, feeds, wanted, bounds)
