"""Random graphs in which parts of axes are selected, for the passes that move such selections.

A `Drawing` grows from one input by operators through which a selection may or may not pass, with selections, branches
and readers of whole values in between. Shapes are followed here, so that drawing takes no time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from choices import Choices
from onnx import helper, numpy_helper

Shape = tuple[int, ...]
MOST_ELEMENTS = 4000
UNARY = ("Relu", "Tanh", "Erf", "Gelu", "Sigmoid", "Neg", "Softplus", "Sin", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Where", "Div", "Pow", "Sum")


@dataclasses.dataclass
class Drawing(Choices):
    """A graph under construction. Floats have one element type, integers are indices or shapes."""

    dtype: Any
    shapes: dict[str, Shape] = dataclasses.field(default_factory=dict)  # of all floats, in the order they came
    feeds: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    constants: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    ends: list[str] = dataclasses.field(default_factory=list)  # values that are outputs, whoever else reads them
    is_random: bool = False
    has_other_domain: bool = False

    def input(self, *shape: int) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.rng.uniform(-1, 1, shape).astype(self.dtype)
        self.shapes[name] = tuple(shape)
        return name

    def weight(self, *shape: int) -> str:
        if self.coin(0.8):
            return self.input(*shape)
        name = self.constant(self.rng.uniform(-1, 1, shape), self.dtype)
        self.shapes[name] = tuple(shape)
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def given(self, value: Any, dtype: Any = np.int64) -> str:
        """Numbers that are stored in the model, or fed."""
        if self.coin():
            return self.constant(value, dtype)
        name = f"i{len(self.feeds)}"
        self.feeds[name] = np.asarray(value, dtype)
        return name

    def node(self, op: str, inputs: Sequence[str], shape: Sequence[int] | None = None, **attrs: Any) -> str:
        """Adds a node with one output, a float if it has a shape."""
        return self.node_of(op, inputs, [shape], **attrs)[0]

    def node_of(self, op: str, inputs: Sequence[str], shapes: Sequence[Any], **attrs: Any) -> list[str]:
        number = len(self.nodes)
        names = [f"v{number}_{k}" for k in range(len(shapes))]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"{op}{number}", **attrs))
        self.has_other_domain |= bool(attrs.get("domain"))
        for name, shape in zip(names, shapes, strict=True):
            if shape is not None:
                self.shapes[name] = tuple(shape)
        return names

    def axis(self, x: str) -> int:
        return self.number(0, len(self.shapes[x]) - 1)


def replaced(shape: Sequence[int], axis: int, *by: int) -> Shape:
    return (*shape[:axis], *by, *shape[axis + 1 :])


# ---- Selections.


def gather(d: Drawing, x: str) -> str:
    axis = d.axis(x)
    shape = d.shapes[x]
    if shape[axis] == 0:
        return x
    count = d.choice([None, 1, 1, 2, 3, shape[axis]])
    indices = d.rng.integers(-shape[axis] if d.coin(0.3) else 0, shape[axis], () if count is None else (count,))
    if count is not None and d.coin(0.3):
        indices = np.arange(count) % shape[axis]
    by = () if count is None else (count,)
    written = axis - len(shape) if d.coin(0.3) else axis
    domain = {}
    if count is not None and count <= shape[axis] and d.coin(0.2):
        domain = {"domain": "com.microsoft"}
    op = "ShrunkenGather" if domain else "Gather"
    return d.node(op, [x, d.given(indices)], replaced(shape, axis, *by), axis=written, **domain)


def bounds(d: Drawing, extent: int) -> tuple[int, int, int, int]:
    step = d.choice([1, 1, 1, 1, 2, 3, -1, -2])
    start, end = (d.number(-extent - 1, extent + 1) for _ in range(2))
    if step > 0 and d.coin(0.6):
        start = d.number(0, extent // 2)
    if d.coin(0.3):
        end = np.iinfo(np.int64).max if step > 0 else np.iinfo(np.int64).min
    return start, end, step, len(range(extent)[start:end:step])


def slice_one(d: Drawing, x: str) -> str:
    axis = d.axis(x)
    start, end, step, count = bounds(d, d.shapes[x][axis])
    reads = [x, d.given([start]), d.given([end]), d.constant([axis])]
    return d.node("Slice", reads + ([d.constant([step])] if step != 1 else []), replaced(d.shapes[x], axis, count))


def slice_several(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    axes = sorted(d.rng.permutation(len(shape))[: d.number(1, len(shape))].tolist())
    found = [bounds(d, shape[a]) for a in axes]
    for a, b in zip(axes, found, strict=True):
        shape = replaced(shape, a, b[3])
    starts, ends, steps, _ = zip(*found, strict=True)
    return d.node("Slice", [x, d.constant(starts), d.constant(ends), d.constant(axes), d.constant(steps)], shape)


def split(d: Drawing, x: str) -> str:
    """Read are all of its outputs, or some."""
    axis = d.axis(x)
    shape = d.shapes[x]
    cuts = sorted(d.number(0, shape[axis]) for _ in range(d.number(1, 3)))
    sizes = np.diff([0, *cuts, shape[axis]]).tolist()
    parts = d.node_of("Split", [x, d.constant(sizes)], [replaced(shape, axis, s) for s in sizes], axis=axis)
    read = [p for p in parts if d.coin(0.5)] or [parts[0]]
    if len(read) > 1 and d.coin():
        return d.node("Concat", read, replaced(shape, axis, sum(d.shapes[p][axis] for p in read)), axis=axis)
    d.ends.extend(read[1:])
    return read[0]


def compress(d: Drawing, x: str) -> str:
    axis = d.axis(x)
    condition = d.rng.random(d.shapes[x][axis]) < 0.4
    shape = replaced(d.shapes[x], axis, int(condition.sum()))
    return d.node("Compress", [x, d.given(condition, np.bool_)], shape, axis=axis)


def gather_nd(d: Drawing, x: str) -> str:
    """One row or some of each batch, another in each."""
    shape = d.shapes[x]
    if len(shape) < 2 or shape[1] == 0:
        return x
    count = d.choice([(), (1,), (2,)])
    indices = d.rng.integers(0, shape[1], (shape[0], *count, 1))
    return d.node("GatherND", [x, d.given(indices)], (shape[0], *count, *shape[2:]), batch_dims=1)


def several_slices(d: Drawing, x: str) -> str:
    """Parts of one axis, by several readers."""
    axis = d.axis(x)
    extent = d.shapes[x][axis]
    found = []
    for _ in range(d.number(2, 3)):
        start = d.number(0, extent)
        end = d.number(start, extent)
        reads = [x, d.constant([start]), d.constant([end]), d.constant([axis])]
        found.append(d.node("Slice", reads, replaced(d.shapes[x], axis, end - start)))
    d.ends.extend(found[1:])
    return found[0]


SELECTIONS = (gather, gather, gather, slice_one, slice_one, slice_several, split, compress, gather_nd, several_slices)


# ---- What they move through.


def unary(d: Drawing, x: str) -> str:
    return d.node(d.choice(UNARY), [x], d.shapes[x])


def cast(d: Drawing, x: str) -> str:
    there = onnx.TensorProto.DOUBLE if d.dtype == np.float32 else onnx.TensorProto.FLOAT
    back = helper.np_dtype_to_tensor_dtype(np.dtype(d.dtype))
    return d.node("Cast", [d.node("Cast", [x], to=there)], d.shapes[x], to=back)


def operand(d: Drawing, x: str) -> str:
    """What broadcasts to x: an earlier value of its shape, or a new one that may lack axes."""
    shape = d.shapes[x]
    same = [n for n, s in d.shapes.items() if s == shape and n != x]
    if same and d.coin(0.4):
        return str(d.choice(same))
    kept = shape[d.number(0, len(shape)) :] if d.coin(0.4) else shape
    return d.weight(*(1 if d.coin(0.3) else e for e in kept))


def binary(d: Drawing, x: str) -> str:
    op = d.choice(BINARY)
    shape = d.shapes[x]
    y = operand(d, x)
    if op in ("Div", "Pow"):
        return d.node(op, [d.node("Sigmoid", [x], shape), d.node("Exp", [y], d.shapes[y])], shape)
    pair = [x, y] if d.coin(0.7) else [y, x]
    if op == "Where":
        condition = d.given(d.rng.random(d.shapes[operand(d, x)]) < 0.5, np.bool_)
        return d.node(op, [condition, *pair], shape)
    return d.node(op, pair, shape)


def norm(d: Drawing, x: str) -> str:
    axis = d.axis(x)
    shape = d.shapes[x]
    op = d.choice(["LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax", "LpNormalization"])
    written = axis - len(shape) if d.coin() else axis
    if not op.endswith("rNormalization") and not op.startswith("RMS"):
        return d.node(op, [x], shape, axis=written)
    reads = [x, d.weight(*shape[axis:])]
    if op[0] == "L" and d.coin():
        reads.append(d.weight(*shape[axis:]))
    return d.node(op, reads, shape, axis=written)


def reduce(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    axes = d.rng.permutation(len(shape))[: d.number(1, 2)].tolist()
    if any(shape[a] == 0 for a in axes):
        return x
    keep = d.coin()
    left = [1 if i in axes else e for i, e in enumerate(shape) if keep or i not in axes]
    op = d.choice(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"])
    return d.node(op, [x, d.constant(axes)], left, keepdims=int(keep))


def transpose(d: Drawing, x: str) -> str:
    perm = d.rng.permutation(len(d.shapes[x])).tolist()
    return d.node("Transpose", [x], [d.shapes[x][p] for p in perm], perm=perm)


def reshape(d: Drawing, x: str) -> str:
    """Two axes as one, one as two, or a 1 more; by numbers, by 0 and -1, by what is computed from the shape."""
    shape = d.shapes[x]
    axis = d.axis(x)
    kind = d.number(0, 3)
    if kind == 0 and axis + 1 < len(shape):
        new = replaced(replaced(shape, axis + 1), axis, shape[axis] * shape[axis + 1])
    elif kind == 1 and shape[axis] > 1:
        parts = [f for f in range(1, shape[axis] + 1) if shape[axis] % f == 0]
        first = d.choice(parts)
        new = replaced(shape, axis, first, shape[axis] // first)
    else:
        new = replaced(shape, axis, 1, shape[axis]) if kind == 2 else replaced(shape, axis, shape[axis], 1)
    if len(new) > 5:
        return x
    return d.node("Reshape", [x, target(d, x, new)], new)


def target(d: Drawing, x: str, new: Shape) -> str:
    shape = d.shapes[x]
    written = [0 if i < len(shape) and shape[i] == e and d.coin() else e for i, e in enumerate(new)]
    if 0 not in new and d.coin():
        written[d.number(0, len(new) - 1)] = -1
    if 0 in new:
        written = [0 if i < len(shape) and shape[i] == e else e for i, e in enumerate(new)]
    computed = [i for i, e in enumerate(new) if e in shape and written[i] > 0]
    if not computed or d.coin():
        return d.constant(written)
    at = d.choice(computed)
    extent = d.node("Gather", [d.node("Shape", [x]), d.constant([shape.index(new[at])])])
    return d.node("Concat", [d.constant(written[:at]), extent, d.constant(written[at + 1 :])], axis=0)


def squeeze(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    ones = [i for i, e in enumerate(shape) if e == 1]
    if ones and len(shape) > 1 and d.coin():
        axis = d.choice(ones)
        return d.node("Squeeze", [x, d.constant([axis])], replaced(shape, axis))
    if len(shape) > 4:
        return x
    axis = d.number(0, len(shape))
    return d.node("Unsqueeze", [x, d.constant([axis])], (*shape[:axis], 1, *shape[axis:]))


def flatten(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    axis = d.number(0, len(shape))
    return d.node("Flatten", [x], (math.prod(shape[:axis]), math.prod(shape[axis:])), axis=axis)


def expand(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    new = [d.number(1, 3) if e == 1 else e for e in shape]
    if d.coin(0.3) and len(new) < 4:
        new = [d.number(1, 3), *new]
    written = [1 if e != 1 and i >= len(new) - len(shape) and d.coin(0.3) else e for i, e in enumerate(new)]
    kept = [1 if e != new[i] and new[i] == shape[i - len(new)] else e for i, e in enumerate(written)]
    return d.node("Expand", [x, d.given(kept)], new) if math.prod(new) <= MOST_ELEMENTS else x


def matmul(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    size = d.choice([1, 2, 3, 4, 6])
    batch = tuple(1 if d.coin(0.3) else e for e in shape[: len(shape) - 2]) if d.coin(0.3) else ()
    if d.coin(0.65) or len(shape) < 2:
        if d.coin(0.1):
            return d.node("MatMul", [x, d.weight(shape[-1])], shape[:-1])
        return d.node("MatMul", [x, d.weight(*batch, shape[-1], size)], (*shape[:-1], size))
    if d.coin(0.15):
        return d.node("MatMul", [d.weight(shape[-2]), x], (*shape[:-2], shape[-1]))
    return d.node("MatMul", [d.weight(*batch, size, shape[-2]), x], (*shape[:-2], size, shape[-1]))


def attention_like(d: Drawing, x: str) -> str:
    """softmax(x x^T) x"""
    shape = d.shapes[x]
    if len(shape) < 2:
        return x
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    scores = d.node(
        "MatMul", [x, d.node("Transpose", [x], [shape[p] for p in perm], perm=perm)], (*shape[:-1], shape[-2])
    )
    return d.node("MatMul", [d.node("Softmax", [scores], d.shapes[scores], axis=-1), x], shape)


def gemm(d: Drawing, x: str) -> str:
    if len(d.shapes[x]) != 2:
        return matmul(d, x)
    trans_x, trans_w = d.number(0, 1), d.number(0, 1)
    rows, inner = d.shapes[x][:: -1 if trans_x else 1]
    size = d.choice([1, 3, 5])
    reads = [x, d.weight(*((size, inner) if trans_w else (inner, size)))]
    if d.coin():
        reads.append(d.weight(*d.choice([(size,), (rows, size), (1, size), (rows, 1), (1,), ()])))
    return d.node("Gemm", reads, (rows, size), transA=trans_x, transB=trans_w, alpha=0.5, beta=2.0)


def concat(d: Drawing, x: str) -> str:
    axis = d.axis(x)
    shape = d.shapes[x]
    fits = [n for n, s in d.shapes.items() if len(s) == len(shape) and replaced(s, axis) == replaced(shape, axis)]
    others = [
        d.choice(fits) if d.coin() else d.weight(*replaced(shape, axis, d.number(0, 3))) for _ in range(d.number(1, 2))
    ]
    parts = [*others[:1], x, *others[1:]] if d.coin() else [x, *others]
    return d.node("Concat", parts, replaced(shape, axis, sum(d.shapes[p][axis] for p in parts)), axis=axis)


def embedding(d: Drawing, x: str) -> str:
    """Rows of a table added to x, where it has extents to look up by."""
    shape = d.shapes[x]
    ids = d.given(d.rng.integers(0, 5, shape[:-1]))
    return d.node("Add", [x, d.node("Gather", [d.weight(5, shape[-1]), ids], shape)], shape)


def dropout(d: Drawing, x: str) -> str:
    training = d.coin(0.8)
    d.is_random |= training
    seed = {"seed": d.number(1, 99)} if d.coin(0.3) else {}
    reads = [x, d.constant(0.4, d.dtype), d.constant(training, np.bool_)]
    return d.node("Dropout", reads, d.shapes[x], **seed)


def running_sum(d: Drawing, x: str) -> str:
    return d.node("CumSum", [x, d.constant(d.axis(x))], d.shapes[x])


def read_whole(d: Drawing, x: str) -> str:
    """Somebody else reads all of it."""
    d.ends.append(d.node("Tanh", [x], d.shapes[x]) if d.coin() else x)
    return x


def back(d: Drawing, x: str) -> str:
    """Goes on with another value."""
    return str(d.choice([n for n, s in d.shapes.items() if s] or [x]))


Family = Callable[[Drawing, str], str]
OPERATORS: tuple[Family, ...] = (
    unary, unary, binary, binary, binary, cast, norm, norm, reduce, transpose, transpose, reshape, reshape, squeeze,
    flatten, expand, matmul, matmul, matmul, attention_like, gemm, concat, embedding, dropout, dropout, running_sum,
    read_whole, back,
)  # fmt: skip


@dataclasses.dataclass
class Drawn:
    drawing: Drawing
    outputs: list[str]
    symbols: dict[int, str]  # names of extents that the model does not know

    def model(self) -> bytes:
        d = self.drawing

        def info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
            shape = [self.symbols.get(e, e) for e in value.shape]
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape)

        element = helper.np_dtype_to_tensor_dtype(np.dtype(d.dtype))
        outputs = [helper.make_tensor_value_info(n, element, [None] * len(d.shapes[n])) for n in self.outputs]
        stored = [numpy_helper.from_array(v, n) for n, v in d.constants.items()]
        graph = helper.make_graph(d.nodes, "moved", [info(n, v) for n, v in d.feeds.items()], outputs, stored)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def draw(seed: int, wide: bool = False) -> Drawn:
    """The graph of a seed; `wide`: in float64 whatever it was drawn in."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice([np.float32, np.float64])
    d = Drawing(rng, np.float64 if wide else drawn)
    extents = [0, 1, 2] if d.coin(0.05) else [1, 2, 3, 4, 5, 6, 8]
    x = d.input(*(d.choice(extents) for _ in range(d.number(1, 4))))
    for _ in range(d.number(1, 3)):
        for _ in range(d.number(1, 5)):
            x = step(d, x, d.choice(OPERATORS))
        x = step(d, x, d.choice(SELECTIONS))
    for _ in range(d.number(0, 2)):
        x = step(d, x, d.choice(OPERATORS))
    made = {o for n in d.nodes for o in n.output}
    outputs = [n for n in dict.fromkeys([x, *d.ends]) if n in made] or [d.node("Tanh", [x], d.shapes[x])]
    symbols = {e: f"n{e}" for e in set(extents) if d.coin(0.35)}
    return Drawn(d, outputs, symbols)


def step(d: Drawing, x: str, family: Family) -> str:
    y = family(d, x)
    shape = d.shapes[y]
    return y if 0 < len(shape) < 6 and math.prod(shape) <= MOST_ELEMENTS else x
