"""The families of nodes that random_graphs.py draws from. Each adds one or a few nodes to a sketch, or none when no
value fits. Functions are taken where they are smooth: arguments of Log, Sqrt and divisors are kept away from zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from random_graphs import Sketch

SMOOTH = ("Tanh", "Sigmoid", "Sin", "Cos", "Erf", "Softplus", "Softsign", "Atan", "Asinh", "Exp", "Neg", "Identity",
          "Sinh", "Cosh", "Mish", "Gelu", "Swish")  # fmt: skip
KINKED = ("Relu", "Abs", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Floor", "Sign")
SINCE = {"Mish": 18, "Gelu": 20, "Swish": 24, "RMSNormalization": 23, "Attention": 23, "RotaryEmbedding": 23}
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
              "ReduceSumSquare", "ReduceLogSumExp", "ReduceLogSum")  # fmt: skip


def available(s: Sketch, op: str) -> bool:
    return SINCE.get(op, 1) <= s.opset


def positive(s: Sketch, x: str) -> str:
    """Something of the same shape, at least a half."""
    square = s.node("Mul", [x, x])
    return str(s.node("Add", [square, s.constant(0.5, np.float64)]))


# ---- Element by element.
def unary(s: Sketch) -> None:
    x = s.pick()
    op = s.choice(SMOOTH + KINKED)
    if x is None or not available(s, op):
        return
    attrs = {"approximate": s.choice(["none", "tanh"])} if op == "Gelu" else {}
    s.node(op, [x], **attrs)


def guarded(s: Sketch) -> None:
    x = s.pick()
    if x is not None:
        s.node(s.choice(["Log", "Sqrt", "Reciprocal"]), [positive(s, x)])


def clip(s: Sketch) -> None:
    x = s.pick()
    if x is not None:
        low, high = (s.weight() if s.coin() else s.constant(v, np.float64) for v in (-0.7, 0.9))
        s.node("Clip", [x, s.choice([low, ""]), s.choice([high, low])])


def partner(s: Sketch, x: str) -> str:
    """A value that broadcasts with x: another one where one fits, else a new one of a fitting shape."""
    shape = s.shape(x)
    fitting = [n for n, v in s.values.items() if broadcasts(v.shape, shape)]
    if fitting and s.coin(0.7):
        return str(s.choice(fitting))
    extents = [s.choice([e, e, 1]) for e in shape[s.number(0, len(shape)) :]]
    return s.weight(*extents)


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def binary(s: Sketch) -> None:
    x = s.pick()
    if x is None:
        return
    y = partner(s, x)
    match s.choice(["Add", "Sub", "Mul", "Max", "Min", "Div", "Pow", "Sum", "Mean", "PRelu", "Where"]):
        case "Div":
            s.node("Div", [x, positive(s, y)])
        case "Pow":
            s.node("Pow", [positive(s, x), y] if s.coin() else [x, s.constant(s.number(1, 3), np.float64)])
        case "PRelu":
            if y in s.values and np.broadcast_shapes(s.shape(x), s.shape(y)) == s.shape(x):
                s.node("PRelu", [x, y])
        case "Where":
            mask = s.rng.integers(0, 2, s.shape(x)).astype(bool)
            s.node("Where", [s.constant(mask, bool), x, y])
        case ("Sum" | "Mean" | "Max" | "Min") as op:
            s.node(op, [x, y, x][: s.number(1, 3)])
        case op:
            s.node(op, [x, y] if s.coin() else [y, x])


# ---- Sums and products.
def some_axes(s: Sketch, rank: int) -> list[int]:
    axes = [a for a in range(rank) if s.coin()] or [s.number(0, rank - 1)]
    return [a - rank if s.coin(0.3) else a for a in axes]


def reduce(s: Sketch) -> None:
    x = s.pick(least=1, empty=False)
    if x is None:
        return
    op = s.choice(REDUCTIONS)
    if op in ("ReduceLogSum", "ReduceL2"):
        x = positive(s, x)
    axes = [s.constant(some_axes(s, s.values[x].ndim))] if s.coin(0.8) else []
    s.node(op, [x, *axes], keepdims=s.number(0, 1))


def cumulate(s: Sketch) -> None:
    x = s.pick(least=1)
    if x is not None:
        axis = s.constant(s.number(-s.values[x].ndim, s.values[x].ndim - 1))
        s.node("CumSum", [x, axis], exclusive=s.number(0, 1), reverse=s.number(0, 1))


def top(s: Sketch) -> None:
    x = s.pick(least=1, empty=False)
    if x is not None:
        axis = s.number(0, s.values[x].ndim - 1)
        count = s.constant([s.number(1, s.shape(x)[axis])])
        s.node("TopK", [x, count], outputs=2, axis=axis, largest=s.number(0, 1))


def matmul(s: Sketch) -> None:
    x = s.pick(least=1)
    if x is None:
        return
    inner, columns = s.shape(x)[-1], s.number(1, 4)
    match s.number(0, 3):
        case 0:
            s.node("MatMul", [x, s.weight(inner, columns)])
        case 1:
            s.node("MatMul", [x, s.weight(inner)])
        case 2 if s.values[x].ndim >= 2:
            perm = [*range(s.values[x].ndim - 2), s.values[x].ndim - 1, s.values[x].ndim - 2]
            s.node("MatMul", [x, s.node("Transpose", [x], perm=perm)])
        case _ if s.values[x].ndim == 2:
            side = s.number(0, 1)
            b = s.weight(columns, inner) if side else s.weight(inner, columns)
            c = [partner_of_product(s, s.shape(x)[0], columns)] if s.coin() else []
            s.node("Gemm", [x, b, *c], transB=side, alpha=0.5, beta=s.choice([1.0, 0.0, -2.0]))


def partner_of_product(s: Sketch, rows: int, columns: int) -> str:
    return s.weight(*s.choice([(rows, columns), (columns,), (1, columns), (rows, 1), ()]))


def einsum(s: Sketch) -> None:
    x = s.pick(least=1, most=3)
    if x is None:
        return
    letters = "ijk"[: s.values[x].ndim]
    kept = "".join(sorted(set(letters), key=lambda _: s.rng.random()))[: s.number(0, len(letters))]
    if s.coin():
        s.node("Einsum", [x], equation=f"{letters}->{kept}")
    else:
        last = s.shape(x)[-1]
        s.node("Einsum", [x, s.weight(2, last)], equation=f"{letters},n{letters[-1]}->{kept}n")


# ---- Windows.
def image(s: Sketch) -> str | None:
    """A value as [batch, channels, height, width] or [batch, channels, length]."""
    x = s.pick(least=1, empty=False)
    if x is None:
        return None
    shape = s.shape(x)
    if len(shape) in (3, 4):
        return x
    wanted = [1, 1, *shape[-2:]] if len(shape) > 1 else [1, 1, shape[0]]
    wanted[0] = -1
    return str(s.node("Reshape", [x, s.constant(wanted)]))


def window(s: Sketch, x: str) -> dict[str, Any]:
    extents = s.shape(x)[2:]
    kernel = [s.number(1, min(3, e)) for e in extents]
    pads = [s.number(0, k - 1) for k in kernel] * 2
    return {"kernel_shape": kernel, "strides": [s.number(1, 2) for _ in extents], "pads": pads}


def convolve(s: Sketch) -> None:
    x = image(s)
    if x is None:
        return
    attrs = window(s, x)
    channels = s.shape(x)[1]
    groups = s.choice([g for g in (1, channels) if channels % g == 0])
    each = s.number(1, 2)
    bias = [s.weight(groups * each)] if s.coin() else []
    if s.coin(0.7):
        if s.coin(0.3):
            del attrs["pads"]
            attrs["auto_pad"] = s.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        s.node("Conv", [x, s.weight(groups * each, channels // groups, *attrs["kernel_shape"]), *bias], group=groups,
               **attrs)  # fmt: skip
    else:
        attrs["pads"] = [0] * len(attrs["pads"])
        s.node("ConvTranspose", [x, s.weight(channels, each, *attrs["kernel_shape"]), *bias], group=groups, **attrs)


def pool(s: Sketch) -> None:
    x = image(s)
    if x is None:
        return
    match s.number(0, 4):
        case 0:
            s.node("MaxPool", [x], **window(s, x), ceil_mode=s.number(0, 1))
        case 1:
            s.node("AveragePool", [x], **window(s, x), ceil_mode=s.number(0, 1), count_include_pad=s.number(0, 1))
        case 2:
            s.node(s.choice(["GlobalAveragePool", "GlobalMaxPool"]), [x])
        case 3:
            s.node("LpPool", [positive(s, x)], **window(s, x), p=s.number(1, 3))
        case _ if s.values[x].ndim == 4:
            coordinates = s.node("Tanh", [s.input(s.shape(x)[0], 2, 2, 2)])
            s.node("GridSample", [x, coordinates], align_corners=s.number(0, 1),
                   mode=s.choice(["linear", "cubic"] if s.opset >= 20 else ["bilinear", "bicubic"]),
                   padding_mode=s.choice(["zeros", "border", "reflection"]))  # fmt: skip


# ---- Normalisation.
def normalize(s: Sketch) -> None:
    x = s.pick(least=2, empty=False)
    if x is None:
        return
    rank, channels, width = s.values[x].ndim, s.shape(x)[1], s.shape(x)[-1]
    if not varies(s.values[x]):
        return
    match s.number(0, 6):
        case 0:
            s.node("LayerNormalization", [x, s.weight(width), *([s.weight(width)] if s.coin() else [])], stash_type=11)
        case 1 if rank >= 3:
            s.node("InstanceNormalization", [x, s.weight(channels), s.weight(channels)])
        case 2 if s.opset >= 21:
            groups = s.choice([1, channels])
            s.node("GroupNormalization", [x, s.weight(channels), s.weight(channels)], num_groups=groups, stash_type=11)
        case 3:
            statistics = [s.weight(channels), s.weight(channels), s.weight(channels), positive(s, s.input(channels))]
            outputs = s.choice([1, 3])
            s.node("BatchNormalization", [x, *statistics], outputs=outputs, training_mode=int(outputs == 3))
        case 4 if available(s, "RMSNormalization"):
            s.node("RMSNormalization", [x, s.weight(width)], stash_type=11)
        case 5:
            s.node("LpNormalization", [positive(s, x)], axis=s.number(-1, 1), p=s.number(1, 2))
        case _:
            s.node("LRN" if rank >= 3 else "MeanVarianceNormalization", [x],
                   **({"size": 3} if rank >= 3 else {"axes": [0, 1]}))  # fmt: skip


def varies(x: np.ndarray) -> bool:
    """Whether differences see the slope of normalising along any axes: next to variance 0 it is too steep."""
    rest = tuple(i for i in range(x.ndim) if i != 1)
    variances = [x.var(axis=-1), x.var(axis=rest), x.var(axis=tuple(range(2, x.ndim)) or -1)]
    return all(float(v.min(initial=1)) > 0.02 for v in variances)


def softmax(s: Sketch) -> None:
    x = s.pick(least=1, empty=False)
    if x is not None:
        axis = s.number(-s.values[x].ndim, s.values[x].ndim - 1)
        s.node(s.choice(["Softmax", "LogSoftmax"]), [x], axis=axis)


def loss(s: Sketch) -> None:
    x = s.pick(least=2, empty=False)
    if x is None:
        return
    batch, classes, *rest = s.shape(x)
    labels = s.constant(s.rng.integers(0, classes, (batch, *rest)))
    weights = [s.constant(np.abs(s.normal(classes)) + 0.1, np.float64)] if s.coin() else []
    attrs = {"reduction": s.choice(["none", "mean", "sum"]), **({"ignore_index": 0} if s.coin(0.3) else {})}
    if "ignore_index" in attrs and not s.constants[labels].any():
        return  # a mean of nothing
    if s.coin():
        s.node("SoftmaxCrossEntropyLoss", [x, labels, *weights], outputs=s.choice([1, 2]), **attrs)
    else:
        s.node("NegativeLogLikelihoodLoss", [s.node("LogSoftmax", [x], axis=1), labels, *weights], **attrs)


def attend(s: Sketch) -> None:
    if not available(s, "Attention"):
        return
    batch, heads, length, size = 1, s.number(1, 2), s.number(1, 3), s.choice([2, 4])
    q = s.input(batch, heads, length, size)
    k, v = (s.weight(batch, heads, s.shape(q)[2], size) if s.coin(0.6) else q for _ in range(2))
    mask = [s.weight(length, length)] if s.coin(0.3) else []
    s.node("Attention", [q, k, v, *mask], is_causal=s.number(0, 1), softcap=s.choice([0.0, 2.0]))


# ---- Moving elements.
def reshape(s: Sketch) -> None:
    x = s.pick()
    if x is None:
        return
    shape, rank = s.shape(x), s.values[x].ndim
    match s.number(0, 6):
        case 0 if rank:
            s.node("Transpose", [x], perm=[int(i) for i in s.rng.permutation(rank)])
        case 1 if 0 not in shape:
            s.node("Reshape", [x, s.constant([-1] if s.coin() else [*shape[:1], -1])])
        case 2:
            s.node("Unsqueeze", [x, s.constant([s.number(0, rank)])])
        case 3 if 1 in shape:
            s.node("Squeeze", [x, s.constant([shape.index(1)])])
        case 4:
            s.node("Expand", [x, s.constant([s.number(1, 2), *shape])])
        case 5 if rank >= 1:
            s.node("Tile", [x, s.constant([s.number(1, 2) for _ in shape])])
        case _:
            s.node("Flatten", [x], axis=s.number(0, rank))


def slices(s: Sketch) -> None:
    x = s.pick(least=1)
    if x is None:
        return
    axis = s.number(0, s.values[x].ndim - 1)
    starts, ends = s.number(-7, 7), s.number(-7, 7)
    step = s.choice([1, 1, 2, -1, -2])
    s.node("Slice", [x, *(s.constant([v]) for v in (starts, ends, axis, step))])


def pad(s: Sketch) -> None:
    x = s.pick(least=1, empty=False)
    if x is None:
        return
    mode = s.choice(["constant", "edge", "reflect", "wrap"] if s.opset >= 19 else ["constant", "edge", "reflect"])
    most = [e - 1 if mode == "reflect" else min(e, 2) for e in s.shape(x)]
    pads = [s.number(-1 if mode == "constant" and e > 2 else 0, min(m, 2))
            for _ in range(2) for e, m in zip(s.shape(x), most, strict=True)]  # fmt: skip
    value = [s.weight()] if mode == "constant" and s.coin() else []
    s.node("Pad", [x, s.constant(pads), *value], mode=mode)


def join(s: Sketch) -> None:
    x = s.pick(least=1)
    if x is None:
        return
    axis = s.number(0, s.values[x].ndim - 1)

    def rest(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (len(shape), *shape[:axis], *shape[axis + 1 :])

    fitting = [n for n, v in s.values.items() if v.ndim and rest(v.shape) == rest(s.shape(x))]
    s.node("Concat", [x, *(s.choice(fitting) for _ in range(s.number(0, 2)))], axis=axis)


def split(s: Sketch) -> None:
    x = s.pick(least=1)
    if x is not None:
        axis = s.number(0, s.values[x].ndim - 1)
        first = s.number(0, s.shape(x)[axis])
        s.node("Split", [x, s.constant([first, s.shape(x)[axis] - first])], outputs=2, axis=axis)


def gather(s: Sketch) -> None:
    x = s.pick(least=1, empty=False)
    if x is None:
        return
    axis = s.number(0, s.values[x].ndim - 1)
    extent = s.shape(x)[axis]
    shape = s.choice([(), (0,), (3,), (2, 2)])
    match s.number(0, 4):
        case 0:
            s.node("Gather", [x, s.constant(s.rng.integers(-extent, extent, shape))], axis=axis)
        case 1:
            s.node("GatherElements", [x, s.constant(s.rng.integers(-extent, extent, s.shape(x)))], axis=axis)
        case 2:
            s.node("GatherND", [x, s.constant(s.rng.integers(0, s.shape(x)[0], (2, 1)))])
        case 3:
            indices = s.constant(s.rng.permutation(s.shape(x)[0])[:2, None])
            updates = s.weight(s.constants[indices].shape[0], *s.shape(x)[1:])
            s.node("ScatterND", [x, indices, updates], reduction=s.choice(["none", "add", "mul"]))
        case _:
            order = np.argsort(s.normal(*s.shape(x)), axis)  # no index twice along the axis
            updates = s.weight(*s.shape(x))
            s.node("ScatterElements", [x, s.constant(order), updates], axis=axis, reduction=s.choice(["none", "add"]))


def resize(s: Sketch) -> None:
    x = s.pick(least=2, most=4, empty=False)
    if x is None:
        return
    rank = s.values[x].ndim
    sizes = s.constant([s.number(1, 6) for _ in range(2)])
    attrs: dict[str, Any] = {"mode": s.choice(["linear", "cubic", "nearest"]), "axes": [rank - 2, rank - 1]}
    attrs["coordinate_transformation_mode"] = s.choice(["half_pixel", "align_corners", "asymmetric"])
    s.node("Resize", [x, "", "", sizes], **attrs)


def triangle(s: Sketch) -> None:
    x = s.pick(least=2)
    if x is not None:
        s.node("Trilu", [x, s.constant(s.number(-2, 2))], upper=s.number(0, 1))


# ---- Control flow.
def branch(s: Sketch) -> None:
    x = s.pick()
    if x is None:
        return
    bodies = []
    for op in s.choice([("Tanh", "Sin"), ("Neg", "Sigmoid")]):
        result = helper.make_tensor_value_info("r", TensorProto.DOUBLE, None)
        bodies.append(helper.make_graph([helper.make_node(op, [x], ["r"])], op, [], [result]))
    condition = s.constant(s.coin(), bool)
    s.node("If", [condition], reads=[x], then_branch=bodies[0], else_branch=bodies[1])


def loop(s: Sketch) -> None:
    x = s.pick()
    if x is None:
        return
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Mul", ["state", x], ["product"]),
             helper.make_node("Tanh", ["product"], ["next"])]  # fmt: skip
    body = helper.make_graph(
        nodes, "body",
        [info("i", TensorProto.INT64, []), info("on", TensorProto.BOOL, []), info("state", TensorProto.DOUBLE, None)],
        [info("still", TensorProto.BOOL, []), info("next", TensorProto.DOUBLE, None),
         info("product", TensorProto.DOUBLE, None)],
    )  # fmt: skip
    count = s.constant(s.number(0 if s.values[x].ndim == 0 else 1, 3))
    s.node("Loop", [count, "", x], outputs=2, reads=[x], body=body)


def scan(s: Sketch) -> None:
    x = s.pick(least=1, empty=False)
    if x is None:
        return
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Mul", ["state", "row"], ["product"]), helper.make_node("Sin", ["product"], ["next"]),
             helper.make_node("Identity", ["product"], ["kept"])]  # fmt: skip
    body = helper.make_graph(nodes, "body", [info(n, TensorProto.DOUBLE, None) for n in ("state", "row")],
                             [info(n, TensorProto.DOUBLE, None) for n in ("next", "kept")])  # fmt: skip
    start = s.weight(*s.shape(x)[1:])
    s.node("Scan", [start, x], outputs=2, body=body, num_scan_inputs=1)


FAMILIES: tuple[Callable[[Sketch], None], ...] = (
    unary, unary, guarded, clip, binary, binary, binary, reduce, reduce, cumulate, top, matmul, matmul, einsum,
    convolve, pool, normalize, normalize, softmax, loss, attend, reshape, reshape, slices, pad, join, split, gather,
    gather, resize, triangle, branch, loop, scan,
)  # fmt: skip
