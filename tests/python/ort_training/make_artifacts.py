"""Artifacts of six small models, made and trained by onnxruntime-training-cpu 1.19.2.

Run by that package's own interpreter (with onnx 1.16.2 and numpy < 2):

    python make_artifacts.py FOLDER [MODEL ...]

For each model FOLDER/<model>/ then holds the four artifacts, `checkpoint_after` (with the optimizer's state) and
`steps.npz`: `input_names`, per input all batches stacked, `learning_rate`, `losses` of 20 training steps with AdamW,
`eval_loss` of the first batch afterwards, and the trained parameters as `after/<name>`.
"""

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer

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

    def parameter(self, name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(max(1, np.prod(shape[:-1])))
        return self.start(name, self.random.normal(0, scale, shape))

    def start(self, name: str, values: np.ndarray) -> str:
        self.trained.append(name)
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
    return model, artifacts.LossType.CrossEntropyLoss, [floats(b, 8, 20), classes(b, 5, 8)]


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
    return model, artifacts.LossType.CrossEntropyLoss, [floats(b, 6, 1, 12, 12), classes(b, 4, 6)]


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
    return model, artifacts.LossType.MSELoss, [floats(b, length, batch, inputs), floats(b, batch, 3)]


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
    return model, artifacts.LossType.CrossEntropyLoss, [floats(b, 5, length, width), classes(b, 4, 5)]


def embedding(b: Builder) -> tuple:
    table = b.start("table", b.random.normal(0, 1, (30, 12)))
    mean = b.node("ReduceMean", b.node("Gather", table, "tokens", axis=0), axes=[1], keepdims=0)
    hidden = b.node("Tanh", b.linear("fc1", mean, 12, 10))
    logits = b.linear("fc2", hidden, 10, 3)
    model = b.model({"tokens": (INT64, ["batch", 9])}, logits, ["batch", 3])
    return model, artifacts.LossType.CrossEntropyLoss, [classes(b, 30, 7, 9), classes(b, 3, 7)]


def floats(b: Builder, *shape: int) -> np.ndarray:
    return b.random.normal(0, 1, (STEPS, *shape)).astype(np.float32)


def classes(b: Builder, count: int, *shape: int) -> np.ndarray:
    return b.random.integers(0, count, (STEPS, *shape))


MODELS: dict[str, Callable[[Builder], tuple]] = {f.__name__: f for f in (mlp, cnn, lstm, gru, transformer, embedding)}


def make(name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    builder = Builder(seed=len(name))
    model, loss, batches = MODELS[name](builder)
    onnx.save(model, folder / "forward.onnx")
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        artifacts.generate_artifacts(
            model,
            requires_grad=builder.trained,
            loss=loss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=str(folder),
        )
    train(name, folder, batches)


def train(name: str, folder: Path, batches: list[np.ndarray]) -> None:
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(LEARNING_RATE)
    module.train()
    losses = []
    for step in range(STEPS):
        losses.append(float(module(*(batch[step] for batch in batches))))
        optimizer.step()
        module.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, str(folder / "checkpoint_after"), include_optimizer_state=True)
    input_names = module.input_names()
    module.eval()
    eval_loss = float(module(*(batch[0] for batch in batches)))
    after = {f"after/{key}": np.array(parameter.data) for key, parameter in state.parameters}
    stacked = dict(zip(input_names, batches, strict=True))
    np.savez(
        folder / "steps.npz",
        input_names=np.array(input_names),
        learning_rate=np.float32(LEARNING_RATE),
        losses=np.array(losses, np.float32),
        eval_loss=np.float32(eval_loss),
        **stacked,
        **after,
    )
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, evaluation {eval_loss:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    for name in arguments.models:
        make(name, arguments.folder / name)


if __name__ == "__main__":
    main()
