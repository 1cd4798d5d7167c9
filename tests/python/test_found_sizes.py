"""Sizes that data decide (valid rows, non-zero elements, distinct values): what follows them is planned when they are
found. Random graphs against the reference executor, gradients included; many sizes grow no memory."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WIDTH = 6


class Sketch:
    """A graph of values [rows, WIDTH], some of which have as many rows as the data say."""

    def __init__(self, seed: int, is_drawn: bool = True) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values = ["x"]
        for _ in range(self.rng.integers(6, 16) if is_drawn else 0):
            self.values.append(self.draw())

    def op(self, name: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(name, list(inputs), names, name=f"n{len(self.nodes)}", **attributes))
        return names[0]

    def constant(self, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, f"c{len(self.weights)}"))
        return self.weights[-1].name

    def floats(self, *dims: int) -> str:
        return self.constant(self.rng.standard_normal(dims).astype(np.float32))

    def mask(self, v: str) -> str:
        highest = self.op("ReduceMax", v, self.constant(np.array([1])), keepdims=0)
        level = np.float32(self.rng.choice([-9.0, 0.3, 0.9, 1.5, 99.0], p=[0.1, 0.3, 0.3, 0.2, 0.1]))
        return self.op("Greater", highest, self.constant(level))

    def draw(self) -> str:
        v = str(self.rng.choice(self.values))
        kinds = [self.linear, self.linear, self.pointwise, self.pointwise, self.compress, self.non_zero, self.distinct,
                 self.norm, self.concat, self.scatter, self.slice, self.flat_and_back, self.reshaped]  # fmt: skip
        return kinds[self.rng.integers(len(kinds))](v)

    def linear(self, v: str) -> str:
        return self.op("Add", self.op("MatMul", v, self.floats(WIDTH, WIDTH)), self.floats(WIDTH))

    def pointwise(self, v: str) -> str:
        name = str(self.rng.choice(["Relu", "Tanh", "Neg", "Sigmoid"]))
        return self.op("Mul", v, self.op(name, v)) if self.rng.random() < 0.5 else self.op(name, v)

    def norm(self, v: str) -> str:
        return self.op("Softmax", v, axis=1) if self.rng.random() < 0.5 else self.op("Mul", v, self.floats(1, WIDTH))

    def compress(self, v: str) -> str:
        return self.op("Compress", v, self.mask(v), axis=0)

    def non_zero(self, v: str) -> str:
        rows = self.op("Squeeze", self.op("NonZero", self.mask(v)), self.constant(np.array([0])))
        return self.op("Gather", v, rows, axis=0)

    def distinct(self, v: str) -> str:
        rows = self.op("Squeeze", self.op("NonZero", self.mask(v)), self.constant(np.array([0])))
        return self.op("Gather", v, self.op("Unique", self.op("Div", rows, self.constant(np.array(2)))), axis=0)

    def concat(self, v: str) -> str:
        return self.op("Concat", v, str(self.rng.choice(self.values)), axis=0)

    def scatter(self, v: str) -> str:
        """The chosen rows, back at their places."""
        rows = self.op("Transpose", self.op("NonZero", self.mask(v)))
        taken = self.op("GatherND", v, rows)
        return self.op("ScatterND", self.op("Neg", v), rows, self.linear(taken))

    def slice(self, v: str) -> str:
        ends = [self.constant(np.array([n])) for n in (1, 2**40, 0)]
        return self.op("Slice", v, *ends)

    def flat_and_back(self, v: str) -> str:
        flat = self.op("Reshape", v, self.constant(np.array([-1])))
        shape = self.op("Shape", v)
        return self.op("Reshape", self.op("Abs", flat), shape)

    def reshaped(self, v: str) -> str:
        return self.op("Reshape", self.op("Reshape", v, self.constant(np.array([-1, 2]))),
                       self.constant(np.array([-1, WIDTH])))  # fmt: skip

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])
        found = [helper.make_tensor_value_info(v, TensorProto.FLOAT, None) for v in outputs]
        graph = helper.make_graph(self.nodes, "g", [x], found, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def loss(self) -> str:
        sums = [self.op("ReduceSum", v, keepdims=0) for v in self.values[-3:]]
        total = sums[0]
        for s in sums[1:]:
            total = self.op("Add", total, s)
        return total


def agree(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    data = model.SerializeToString()
    planned = backpass.InferenceSession(data)
    reference = backpass.InferenceSession(data, reference=True)
    for rows in (9, 9, 1, 9, 0, 14):
        x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
        for wanted, got in zip(reference.run(None, {"x": x}), planned.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed: int) -> None:
    sketch = Sketch(seed)
    count = min(3, len(sketch.values) - 1)
    outputs = list(dict.fromkeys([sketch.values[-1], *sketch.rng.choice(sketch.values[1:], count).tolist()]))
    agree(sketch.model(outputs), sketch.rng)


@pytest.mark.parametrize("seed", range(30))
def test_their_gradients(seed: int) -> None:
    sketch = Sketch(1000 + seed)
    model = sketch.model([sketch.loss()])
    agree(backpass.grad(model, wrt=["x"]), sketch.rng)


def three_layers() -> onnx.ModelProto:
    sketch = Sketch(0, is_drawn=False)
    v = sketch.compress("x")
    for _ in range(3):
        v = sketch.op("Relu", sketch.linear(v))
    return sketch.model([sketch.op("ReduceSum", v, keepdims=0)])


def resident_kib() -> int:
    """Now, not at most: other tests of this process may have needed more."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def test_ten_thousand_sizes_grow_no_memory() -> None:
    session = backpass.InferenceSession(backpass.grad(three_layers(), wrt=["x"]).SerializeToString())
    rows = 2_000
    x = np.full((rows, WIDTH), -20, np.float32)

    def run(count: int) -> None:
        x[:count] = 20
        x[count:] = -20
        session.run(None, {"x": x})

    for i in range(200):  # more than plans are kept for
        run((i * 1999) % rows)
    before = resident_kib()
    for i in range(10_000):
        run((i * 1999) % rows)
    grown = resident_kib() - before
    assert grown < 8 * 1024, f"{grown} KiB"  # a plan is more than 20, so 10,000 would be 200 MB


def test_only_the_step_that_finds_the_size_is_late() -> None:
    plan = backpass.InferenceSession(three_layers().SerializeToString()).plan({"x": np.ones((8, WIDTH), np.float32)})
    assert plan.late_steps == 1
    assert "sizes found" in str(plan)


def chosen_or_looped() -> onnx.ModelProto:
    """An If and a Loop over [rows, WIDTH], then a product."""
    rows = helper.make_tensor_value_info("branch", TensorProto.FLOAT, ["rows", WIDTH])
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], ["branch"])], op, [], [rows]) for op in ("Exp", "Sigmoid")
    ]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["again"], ["go_on"]),
            helper.make_node("Mul", ["state", "x"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, ["rows", WIDTH]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, ["rows", WIDTH]),
        ],
    )
    sketch = Sketch(0, is_drawn=False)
    chosen = sketch.op("If", "flag", then_branch=branches[0], else_branch=branches[1])
    looped = sketch.op("Loop", sketch.constant(np.array(3)), "", chosen, body=body)
    result = sketch.op("MatMul", looped, sketch.floats(WIDTH, 4))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (result, chosen)]
    graph = helper.make_graph(sketch.nodes, "control", inputs, outputs, sketch.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def test_results_of_control_flow_have_places() -> None:
    model = chosen_or_looped().SerializeToString()
    session = backpass.InferenceSession(model)
    reference = backpass.InferenceSession(model, backpass.SessionOptions(reference=True))
    rng = np.random.default_rng(1)
    for rows in (5, 0, 1, 5):
        feeds = {"x": rng.standard_normal((rows, WIDTH)).astype(np.float32), "flag": np.array(rows == 1)}
        for ours, expected in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)
        plan = session.plan(feeds)
        assert plan.late_steps == 0
        assert any(buffer.bytes == rows * WIDTH * 4 for buffer in plan.buffers), "what the loop gives is in the arena"


def test_a_loop_that_data_make_run_never() -> None:
    """What its body would have made has the extents that were planned."""
    sketch = Sketch(0, is_drawn=False)
    mask = sketch.mask("x")
    rows = sketch.op("Concat", "x", sketch.op("Compress", "x", mask, axis=0), axis=0)
    size = sketch.op("Shape", sketch.op("NonZero", mask), start=1)
    count = sketch.op("Reshape", size, sketch.constant(np.array([], np.int64)))
    state = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, WIDTH])
    outputs = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [None, WIDTH]) for v in ("z", "scan")]
    flags = [helper.make_tensor_value_info(v, TensorProto.BOOL, []) for v in ("c", "d")]
    body = helper.make_graph(
        [helper.make_node("Tanh", ["y"], ["z"]), helper.make_node("Identity", ["z"], ["scan"]),
         helper.make_node("Identity", ["c"], ["d"])],
        "body", [helper.make_tensor_value_info("i", TensorProto.INT64, []), flags[0], state], [flags[1], *outputs],
    )  # fmt: skip
    sketch.nodes.append(helper.make_node("Loop", [count, "", rows], ["last", "all"], body=body))
    session = backpass.InferenceSession(sketch.model(["last", sketch.op("Exp", "all")]).SerializeToString())
    for level, trips in ((9, 3), (-9, 0), (9, 3)):
        last, scanned = session.run(None, {"x": np.full((3, WIDTH), level, np.float32)})
        assert last.shape == (3 + trips, WIDTH)
        assert scanned.shape == (trips, 3 + trips, WIDTH)


def test_sizes_that_nobody_asks_for_are_not_waited_for() -> None:
    """How many elements the size of a product has is known without it, so that nothing computes the product."""
    sketch = Sketch(0, is_drawn=False)
    rows = sketch.op("Compress", "x", sketch.mask("x"), axis=0)
    size = sketch.op("Size", sketch.op("Relu", sketch.op("Mul", rows, sketch.floats(WIDTH))))
    count = sketch.op("Size", sketch.op("Cast", size, to=TensorProto.FLOAT))
    model = sketch.model([sketch.op("Cast", count, to=TensorProto.FLOAT)]).SerializeToString()
    for optimize in (True, False):
        session = backpass.InferenceSession(model, optimize=optimize)
        assert session.run(None, {"x": np.ones((3, WIDTH), np.float32)})[0] == 1
