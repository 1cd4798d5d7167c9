"""Random networks over tokens [batch, length]: embeddings, norms, products, attention with masks of all kinds, dropout,
and ends that choose rows: labels, one position, a slice. What passes that leave out rows are judged on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper, numpy_helper

WORDS = 23


@dataclass
class TokenGraph:
    model: bytes
    parameters: dict[str, np.ndarray]
    inputs: dict[str, np.ndarray]


@dataclass
class _Writer:
    rng: random.Random
    batch: int
    length: int
    dtype: type
    nodes: list = field(default_factory=list)
    constants: list = field(default_factory=list)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    count: int = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def op(self, kind: str, inputs: list[str], outputs: int = 1, **attributes: object) -> str:
        names = [self.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names[0]

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = self.name("c")
        self.constants.append(numpy_helper.from_array(np.array(value, dtype=dtype), name))
        return name

    def parameter(self, *shape: int) -> str:
        name = self.name("w")
        numbers = np.random.default_rng(self.count + 977 * self.rng.randrange(1000))
        self.parameters[name] = (numbers.standard_normal(shape) * 0.4).astype(self.dtype)
        return name

    @property
    def lowest(self) -> float:
        return float(np.finfo(self.dtype).min)

    # What networks do to tokens.

    def linear(self, x: str, width: int, to: int) -> str:
        y = self.op("MatMul", [x, self.parameter(width, to)])
        return self.op("Add", [y, self.parameter(to)]) if self.rng.random() < 0.8 else y

    def flat_linear(self, x: str, width: int, to: int, first: int = 0) -> str:
        del first
        flat = self.op("Reshape", [x, self.constant([-1, width])])
        y = self.op("Gemm", [flat, self.parameter(width, to), self.parameter(to)])
        return self.op("Reshape", [y, self.shape_like(x, to)])

    def shape_like(self, x: str, width: int) -> str:
        leading = self.op("Shape", [x], start=0, end=2)
        return self.op("Concat", [leading, self.constant([width])], axis=0)

    def dropout(self, x: str) -> str:
        return self.op("Dropout", [x, self.constant(0.3, np.float32), self.constant(True, np.bool_)])

    def pointwise(self, x: str, width: int) -> str:
        kind = self.rng.choice(["Relu", "Gelu", "Tanh", "scale", "where", "pow"])
        if kind == "scale":
            return self.op("Mul", [x, self.parameter(*self.rng.choice([(width,), (1, 1, width), (1,)]))])
        if kind == "where":
            seen = self.op("Unsqueeze", [self.op("Cast", ["mask"], to=TensorProto.BOOL), self.constant([2])])
            return self.op("Where", [seen, x, self.op("Neg", [x])])
        if kind == "pow":
            return self.op("Mul", [x, self.op("Sigmoid", [x])])
        return self.op(kind, [x])

    def layer(self, x: str, width: int) -> str:
        kinds = ["ffn", "flat", "norm", "pointwise", "dropout", "turn", "split", "attention", "attention"]
        kind = self.rng.choice(kinds)
        if kind == "ffn":
            y = self.linear(self.pointwise(self.linear(x, width, 2 * width), 2 * width), 2 * width, width)
            return self.op("Add", [x, y]) if self.rng.random() < 0.6 else y
        if kind == "flat":
            return self.flat_linear(x, width, width)
        if kind == "norm":
            return self.op("LayerNormalization", [x, self.parameter(width), self.parameter(width)], axis=-1)
        if kind == "dropout":
            return self.dropout(x)
        if kind == "turn":
            y = self.op("Transpose", [x], perm=[1, 0, 2])
            y = self.dropout(y) if self.rng.random() < 0.4 else y
            return self.op("Transpose", [self.linear(y, width, width)], perm=[1, 0, 2])
        if kind == "split":
            half = width // 2
            parts = [self.name("part"), self.name("part")]
            self.nodes.append(helper.make_node("Split", [x, self.constant([half, width - half])], parts, axis=2))
            return self.op("Concat", [self.op("Tanh", [parts[1]]), parts[0]], axis=-1)
        if kind == "attention":
            y = self.attention(x, width)
            return self.op("Add", [x, y]) if self.rng.random() < 0.7 else y
        return self.pointwise(x, width)

    def heads(self, x: str, width: int, heads: int, perm: list[int]) -> str:
        leading = self.op("Shape", [x], start=0, end=2)
        shape = self.op("Concat", [leading, self.constant([heads, width // heads])], axis=0)
        return self.op("Transpose", [self.op("Reshape", [self.linear(x, width, width), shape])], perm=perm)

    def attention(self, x: str, width: int) -> str:
        heads = self.rng.choice([1, 2])
        q = self.heads(x, width, heads, [0, 2, 1, 3])
        k = self.heads(x, width, heads, [0, 2, 3, 1])
        v = self.heads(x, width, heads, [0, 2, 1, 3])
        scale = self.constant((width // heads) ** -0.5, self.dtype)
        before = self.rng.random() < 0.5
        scores = self.op("MatMul", [self.op("Mul", [q, scale]) if before else q, k])
        scores = scores if before else self.op("Mul", [scores, scale])
        p = self.masked_softmax(scores)
        if self.rng.random() < 0.5:
            p = self.dropout(p)
        y = self.op("Transpose", [self.op("MatMul", [p, v])], perm=[0, 2, 1, 3])
        y = self.op("Reshape", [y, self.shape_like(y, width)])
        return self.linear(y, width, width)

    def seen(self) -> str:
        keys = self.op("Unsqueeze", [self.op("Cast", ["mask"], to=TensorProto.BOOL), self.constant([1, 2])])
        if self.rng.random() < 0.4:
            size = self.op("Shape", ["mask"], start=1, end=2)
            row = self.op("Range", [self.constant(0), self.op("Squeeze", [size, self.constant([0])]), self.constant(1)])
            column = self.op("Unsqueeze", [row, self.constant([1])])
            keys = self.op("And", [keys, self.op("LessOrEqual", [row, column])])
        return keys

    def masked_softmax(self, scores: str) -> str:
        kind = self.rng.choice(["none", "zeroed", "lowest", "added", "infinite"])
        if kind == "none":
            return self.op("Softmax", [scores], axis=-1)
        seen = self.seen()
        if kind == "added":
            added = self.op("Where", [seen, self.constant(0.0, self.dtype), self.constant(self.lowest, self.dtype)])
            return self.op("Softmax", [self.op("Add", [scores, added])], axis=-1)
        hidden = self.lowest if kind != "infinite" else -np.inf
        masked = self.op("Where", [seen, scores, self.constant(hidden, self.dtype)])
        p = self.op("Softmax", [masked], axis=-1)
        return self.op("Where", [seen, p, self.constant(0.0, self.dtype)]) if kind == "zeroed" else p

    # Ends.

    def end(self, x: str, width: int) -> None:
        kind = self.rng.choice(["labels", "labels", "labels", "first", "slice", "whole", "gather"])
        if kind == "labels":
            logits = self.op("Reshape", [self.linear(x, width, WORDS), self.constant([-1, WORDS])])
            flat = self.op("Reshape", ["labels", self.constant([-1])])
            loss = self.op("SoftmaxCrossEntropyLoss", [logits, flat], ignore_index=-100,
                           reduction=self.rng.choice(["mean", "sum"]))  # fmt: skip
            self.outputs.append(loss)
            return
        if kind == "first":
            y = self.op("Gather", [x, self.constant(self.rng.choice([0, -1]))], axis=1)
        elif kind == "slice":
            y = self.op("Slice", [x, self.constant([0]), self.constant([2]), self.constant([1])])
        elif kind == "gather":
            y = self.op("Gather", [x, self.constant([self.length - 1, 0][: self.length])], axis=1)
        else:
            y = x
        self.outputs.append(self.op("ReduceMean", [self.op("Tanh", [self.linear(y, width, 3)])], keepdims=0))


def token_graph(seed: int, dtype: type = np.float64) -> TokenGraph:
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    batch, length = rng.choice([1, 2, 3, 5]), rng.choice([1, 2, 4, 7])
    dynamic = rng.random() < 0.5
    w = _Writer(rng, batch, length, dtype)
    width = rng.choice([4, 6, 8])
    x = w.op("Gather", [w.parameter(WORDS, width), "ids"], axis=0)
    if rng.random() < 0.5:
        places = numbers.standard_normal((1, length, width))
        x = w.op("Add", [x, w.constant(places, dtype)])
    for _ in range(rng.randrange(1, 7)):
        x = w.layer(x, width)
        if rng.random() < 0.1:
            w.end(x, width)
    w.end(x, width)
    tokens = ["batch", "length"] if dynamic else [batch, length]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, tokens) for n in ("ids", "mask", "labels")]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs += [helper.make_tensor_value_info(n, kind, p.shape) for n, p in w.parameters.items()]
    outputs = [helper.make_tensor_value_info(n, kind, None) for n in dict.fromkeys(w.outputs)]
    graph = helper.make_graph(w.nodes, "tokens", inputs, outputs, w.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return TokenGraph(model.SerializeToString(), w.parameters, token_data(numbers, batch, length))


def token_data(numbers: np.random.Generator, batch: int, length: int) -> dict[str, np.ndarray]:
    """Ids, a mask and labels: padded left, right, anywhere or nowhere; sequences without any token; labels of any
    density, at padding too now and then."""
    kind = numbers.integers(5)
    counts = numbers.integers(0 if numbers.random() < 0.3 else 1, length + 1, batch)
    places = np.arange(length)
    mask = places[None] < counts[:, None]
    if kind == 1:
        mask = mask[:, ::-1]
    elif kind == 2:
        mask = numbers.random((batch, length)) < numbers.random()
    elif kind == 3:
        mask = np.ones((batch, length), bool)
    labels = numbers.integers(0, WORDS, (batch, length))
    labels[numbers.random((batch, length)) < numbers.choice([0.0, 0.5, 0.9, 1.0])] = -100
    if numbers.random() < 0.8:
        labels = np.where(mask, labels, -100)
    ids = numbers.integers(0, WORDS, (batch, length))
    return {"ids": ids, "mask": mask.astype(np.int64), "labels": labels}
