"""Small models, with twenty batches for each, that both Backpass and onnxruntime-training-cpu 1.19.2 can train.

Written with nothing but onnx and numpy, so that either's interpreter can make them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STEPS = 20
LEARNING_RATE = 0.01
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Builder:
    """Nodes and initializers of one model, named in the order they are made."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.trained: list[str] = []
        self.frozen: list[str] = []
        self.far = -10000.0  # what hides a position from attention

    def parameter(self, name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(max(1, np.prod(shape[:-1])))
        return self.start(name, self.random.normal(0, scale, shape))

    def start(self, name: str, values: np.ndarray) -> str:
        self.trained.append(name)
        return self.constant(name, np.asarray(values, np.float32))

    def freeze(self, name: str, values: np.ndarray) -> str:
        self.frozen.append(name)
        return self.constant(name, np.asarray(values, np.float32))

    def constant(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, result: int = 0, **attributes: object) -> str:
        base = f"{op}_{len(self.nodes)}"
        names = [f"{base}_out{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=base, **attributes))
        return names[result]

    def linear(self, name: str, x: str, inputs: int, outputs: int) -> str:
        weight = self.parameter(f"{name}.weight", inputs, outputs)
        return self.node("Add", self.node("MatMul", x, weight), self.start(f"{name}.bias", np.zeros(outputs)))

    def normalize(self, name: str, x: str, width: int) -> str:
        scale = self.start(f"{name}.weight", np.ones(width))
        bias = self.start(f"{name}.bias", np.zeros(width))
        # 1.19.2 differentiates it only with all three outputs.
        return self.node("LayerNormalization", x, scale, bias, outputs=3, axis=-1)

    def gelu(self, x: str) -> str:
        half = self.constant(f"{x}.half", np.float32(0.5))
        one = self.constant(f"{x}.one", np.float32(1))
        root = self.constant(f"{x}.sqrt2", np.float32(np.sqrt(2)))
        gate = self.node("Add", self.node("Erf", self.node("Div", x, root)), one)
        return self.node("Mul", self.node("Mul", x, gate), half)

    def model(self, inputs: dict[str, tuple], output: str, output_shape: list) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "output"
        infos = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
        result = helper.make_tensor_value_info("output", FLOAT, output_shape)
        graph = helper.make_graph(self.nodes, "graph", infos, [result], self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def mlp(b: Builder) -> tuple:
    hidden = b.node("Relu", b.linear("fc1", "input", 20, 32))
    logits = b.linear("fc2", hidden, 32, 5)
    model = b.model({"input": (FLOAT, ["batch", 20])}, logits, ["batch", 5])
    return model, "CrossEntropyLoss", [floats(b, 8, 20), classes(b, 5, 8)]


def cnn(b: Builder) -> tuple:
    x = "input"
    for i, (before, after) in enumerate([(1, 4), (4, 8)]):
        weight = b.start(f"conv{i}.weight", b.random.normal(0, 0.3, (after, before, 3, 3)))
        bias = b.start(f"conv{i}.bias", np.zeros(after))
        x = b.node("Relu", b.node("Conv", x, weight, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
        x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Flatten", x)
    logits = b.node("Gemm", x, b.parameter("fc.weight", 8 * 3 * 3, 4), b.start("fc.bias", np.zeros(4)))
    model = b.model({"input": (FLOAT, ["batch", 1, 12, 12])}, logits, ["batch", 4])
    return model, "CrossEntropyLoss", [floats(b, 6, 1, 12, 12), classes(b, 4, 6)]


def resnet(b: Builder) -> tuple:
    """Two residual blocks with batch normalisation, the second at half the resolution."""

    def convolve(name: str, x: str, before: int, after: int, stride: int = 1, size: int = 3) -> str:
        scale = (before * size * size) ** -0.5
        weight = b.start(f"{name}.weight", b.random.normal(0, scale, (after, before, size, size)))
        edges = [size // 2] * 4
        x = b.node("Conv", x, weight, kernel_shape=[size, size], pads=edges, strides=[stride, stride])
        gain, bias = b.start(f"{name}.scale", np.ones(after)), b.start(f"{name}.bias", np.zeros(after))
        mean, variance = b.freeze(f"{name}.mean", np.zeros(after)), b.freeze(f"{name}.var", np.ones(after))
        return b.node("BatchNormalization", x, gain, bias, mean, variance, outputs=3, training_mode=1, momentum=0.9)

    x = b.node("Relu", convolve("stem", "input", 3, 4))
    for i, (before, after, stride) in enumerate([(4, 4, 1), (4, 6, 2)]):
        inner = b.node("Relu", convolve(f"block{i}.first", x, before, after, stride))
        inner = convolve(f"block{i}.second", inner, after, after)
        side = x if stride == 1 else convolve(f"block{i}.side", x, before, after, stride, size=1)
        x = b.node("Relu", b.node("Add", inner, side))
    logits = b.linear("head", b.node("Flatten", b.node("GlobalAveragePool", x)), 6, 3)
    model = b.model({"input": (FLOAT, ["batch", 3, 8, 8])}, logits, ["batch", 3])
    return model, "CrossEntropyLoss", [floats(b, 6, 3, 8, 8), classes(b, 3, 6)]


def recurrent(b: Builder, op: str, gates: int) -> tuple:
    length, batch, inputs, hidden = 7, 4, 5, 8
    name = op.lower()
    weight = b.start(f"{name}.W", b.random.normal(0, 0.3, (1, gates * hidden, inputs)))
    recurrence = b.start(f"{name}.R", b.random.normal(0, 0.3, (1, gates * hidden, hidden)))
    bias = b.start(f"{name}.B", np.zeros((1, 2 * gates * hidden)))
    # 1.19.2 differentiates these operators only with their initial state given, and without sequence_lens.
    starts = [b.constant(f"{name}.start{i}", np.zeros((1, batch, hidden), np.float32)) for i in range(gates - 2)]
    last = b.node(op, "input", weight, recurrence, bias, "", *starts, outputs=2, result=1, hidden_size=hidden)
    last = b.node("Squeeze", last, b.constant("axis0", np.array([0], np.int64)))
    result = b.linear("head", last, hidden, 3)
    model = b.model({"input": (FLOAT, [length, batch, inputs])}, result, [batch, 3])
    return model, "MSELoss", [floats(b, length, batch, inputs), floats(b, batch, 3)]


def lstm(b: Builder) -> tuple:
    return recurrent(b, "LSTM", gates=4)


def gru(b: Builder) -> tuple:
    return recurrent(b, "GRU", gates=3)


def transformer(b: Builder) -> tuple:
    length, width, heads = 6, 16, 2
    split = b.constant("split", np.array([0, length, heads, width // heads], np.int64))
    join = b.constant("join", np.array([0, length, width], np.int64))
    scale = b.constant("scale", np.float32((width // heads) ** -0.5))

    def head_view(name: str, x: str, perm: list[int]) -> str:
        return b.node("Transpose", b.node("Reshape", b.linear(name, x, width, width), split), perm=perm)

    x = b.normalize("norm1", "input", width)
    scores = b.node("MatMul", head_view("query", x, [0, 2, 1, 3]), head_view("key", x, [0, 2, 3, 1]))
    weights = b.node("Softmax", b.node("Mul", scores, scale), axis=-1)
    mixed = b.node("MatMul", weights, head_view("value", x, [0, 2, 1, 3]))
    mixed = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), join)
    x = b.node("Add", "input", b.linear("out", mixed, width, width))
    inner = b.gelu(b.linear("up", b.normalize("norm2", x, width), width, 4 * width))
    x = b.node("Add", x, b.linear("down", inner, 4 * width, width))
    logits = b.linear("head", b.node("ReduceMean", x, axes=[1], keepdims=0), width, 4)
    model = b.model({"input": (FLOAT, ["batch", length, width])}, logits, ["batch", 4])
    return model, "CrossEntropyLoss", [floats(b, 5, length, width), classes(b, 4, 5)]


def encode(b: Builder, length: int, width: int, heads: int) -> str:
    """Two layers of BERT over words, positions and kinds, with a mask of padding."""
    split = b.constant("split", np.array([0, length, heads, width // heads], np.int64))
    join = b.constant("join", np.array([0, length, width], np.int64))
    scale = b.constant("scale", np.float32((width // heads) ** -0.5))

    def head_view(name: str, x: str, perm: list[int]) -> str:
        return b.node("Transpose", b.node("Reshape", b.linear(name, x, width, width), split), perm=perm)

    def embed(name: str, count: int, ids: str) -> str:
        return b.node("Gather", b.start(name, b.random.normal(0, 0.5, (count, width))), ids, axis=0)

    positions = b.constant("positions", np.arange(length)[None])
    x = b.node("Add", embed("words", 40, "ids"), embed("kinds", 2, "types"))
    x = b.normalize("embedded", b.node("Add", x, embed("places", length, positions)), width)
    one, far = b.constant("one", np.float32(1)), b.constant("far", np.float32(b.far))
    seen = b.node("Cast", b.node("Unsqueeze", "mask", b.constant("axes12", np.array([1, 2], np.int64))), to=FLOAT)
    hidden = b.node("Mul", b.node("Sub", one, seen), far)
    for i in range(2):
        scores = b.node("MatMul", head_view(f"{i}.query", x, [0, 2, 1, 3]), head_view(f"{i}.key", x, [0, 2, 3, 1]))
        weights = b.node("Softmax", b.node("Add", b.node("Mul", scores, scale), hidden), axis=-1)
        mixed = b.node("MatMul", weights, head_view(f"{i}.value", x, [0, 2, 1, 3]))
        mixed = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), join)
        x = b.normalize(f"{i}.norm1", b.node("Add", x, b.linear(f"{i}.out", mixed, width, width)), width)
        inner = b.gelu(b.linear(f"{i}.up", x, width, 2 * width))
        x = b.normalize(f"{i}.norm2", b.node("Add", x, b.linear(f"{i}.down", inner, 2 * width, width)), width)
    return x


def padded(b: Builder, length: int) -> list[np.ndarray]:
    """Batches of words, masks and kinds."""
    lengths = b.random.integers(3, length + 1, (STEPS, 5, 1))
    mask = (np.arange(length) < lengths).astype(np.int64)
    return [classes(b, 40, 5, length), mask, classes(b, 2, 5, length)]


def bert(b: Builder) -> tuple:
    """Classified by the first word."""
    length, width = 7, 16
    x = encode(b, length, width, heads=2)
    first = b.node("Gather", x, b.constant("first", np.int64(0)), axis=1)
    logits = b.linear("head", b.node("Tanh", b.linear("pooler", first, width, width)), width, 3)
    inputs = {name: (INT64, ["batch", length]) for name in ("ids", "mask", "types")}
    model = b.model(inputs, logits, ["batch", 3])
    return model, "CrossEntropyLoss", [*padded(b, length), classes(b, 3, 5)]


def masked_words(b: Builder) -> tuple:
    """Some words are to be guessed: the others' labels are ignored, by the loss that is part of the model."""
    length, width, words = 7, 16, 40
    b.far = float(np.finfo(np.float32).min)
    x = encode(b, length, width, heads=2)
    logits = b.linear("head", x, width, words)
    rows = b.node("Reshape", logits, b.constant("rows", np.array([-1, words], np.int64)))
    labels = b.node("Reshape", "labels", b.constant("flat", np.array([-1], np.int64)))
    # 1.19.2 differentiates it only with both outputs.
    loss = b.node("SoftmaxCrossEntropyLoss", rows, labels, outputs=2, ignore_index=-100)
    inputs = {name: (INT64, ["batch", length]) for name in ("ids", "mask", "types", "labels")}
    model = b.model(inputs, loss, [])
    ids, mask, kinds = padded(b, length)
    guessed = (b.random.random(ids.shape) < 0.3) & (mask == 1)
    guessed[:, 0, 0] = True
    return model, "", [ids, mask, kinds, np.where(guessed, ids, -100)]


def embedding(b: Builder) -> tuple:
    table = b.start("table", b.random.normal(0, 1, (30, 12)))
    mean = b.node("ReduceMean", b.node("Gather", table, "tokens", axis=0), axes=[1], keepdims=0)
    hidden = b.node("Tanh", b.linear("fc1", mean, 12, 10))
    logits = b.linear("fc2", hidden, 10, 3)
    model = b.model({"tokens": (INT64, ["batch", 9])}, logits, ["batch", 3])
    return model, "CrossEntropyLoss", [classes(b, 30, 7, 9), classes(b, 3, 7)]


def floats(b: Builder, *shape: int) -> np.ndarray:
    return b.random.normal(0, 1, (STEPS, *shape)).astype(np.float32)


def classes(b: Builder, count: int, *shape: int) -> np.ndarray:
    return b.random.integers(0, count, (STEPS, *shape))


MODELS: dict[str, Callable[[Builder], tuple]] = {
    f.__name__: f for f in (mlp, cnn, resnet, lstm, gru, transformer, bert, masked_words, embedding)
}


@dataclass
class Task:
    model: onnx.ModelProto
    loss: str  # name of a LossType; empty: the model's output
    batches: list[np.ndarray]  # per input, all batches stacked; labels last
    trained: list[str]
    frozen: list[str]


def task(name: str) -> Task:
    builder = Builder(seed=len(name))
    model, loss, batches = MODELS[name](builder)
    return Task(model, loss, batches, builder.trained, builder.frozen)
