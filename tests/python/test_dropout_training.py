"""Dropout in training: masks are functions of the seed, drawn again by the gradient instead of being kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import _core
from backpass._convert import to_engine
from backpass.api import CheckpointState, Module
from onnx import helper, numpy_helper, parser

LAYERS, ROWS, WIDTH = 3, 37, 31  # no multiples of the vector length or of a block of random numbers


def network(dtype: str = "float", seed: int | None = None, loop: bool = False) -> onnx.ModelProto:
    """Layers of MatMul and Dropout under a sum of squares; with a loop after them if asked for."""
    attribute = "" if seed is None else f"<seed = {seed}>"
    body = ""
    value = "x"
    for i in range(LAYERS):
        body += f"h{i} = MatMul({value}, w{i}) d{i} = Dropout{attribute}(h{i}, ratio, yes) "
        value = f"d{i}"
    if loop:
        value = "doubled"
        body += f"""doubled = Loop(two, yes, d{LAYERS - 1})<
            body = again (int64 i, bool c, {dtype}[A,B] v) => (bool k, {dtype}[A,B] o)
            {{ k = Identity(c) o = Add(v, v) }}> """
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g ({dtype}[N,{WIDTH}] x) => ({dtype}[] loss, {dtype}[N,{WIDTH}] y)
    <float ratio = {{0.4}}, bool yes = {{1}}, int64 two = {{2}}>
    {{ {body} y = Identity({value}) s = Mul(y, y) loss = ReduceMean<keepdims = 0>(s) }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for i in range(LAYERS):
        weight = rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
        weight = weight.astype(helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type))
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{i}"))
    return model


def training_model(model: onnx.ModelProto, *more: str) -> onnx.ModelProto:
    names = [f"w{i}" for i in range(LAYERS)]
    made, _ = _core.build_training_model(model.SerializeToString(), names, [], ["loss", "y", *more])
    return onnx.load_model_from_string(made)


def keeping_masks(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same, but the gradient's ratio comes with the data: it might be another, so that the mask must be kept."""
    kept = onnx.ModelProto()
    kept.CopyFrom(model)
    for node in kept.graph.node:
        if node.op_type == "DropoutGrad":
            node.input[2] = "late_ratio"
    kept.graph.input.append(helper.make_tensor_value_info("late_ratio", onnx.TensorProto.FLOAT, []))
    return kept


def state_of(model: onnx.ModelProto) -> CheckpointState:
    core = _core.CheckpointState()
    for t in model.graph.initializer:
        if t.name.startswith("w"):
            core.add_parameter(t.name, to_engine(numpy_helper.to_array(t)), True)
    return CheckpointState(core)


class Run:
    """One training session; a step gives the loss, the result of the last layer and all gradients."""

    def __init__(self, forward: onnx.ModelProto, training: onnx.ModelProto, threads: int = 0) -> None:
        options = backpass.SessionOptions()
        options.num_threads = threads
        self.state = state_of(forward)
        self.module = Module(training.SerializeToString(), self.state, session_options=options)
        self.late = [np.float32(0.4).reshape(())] if "late_ratio" in self.module.input_names() else []

    def plan(self, x: np.ndarray) -> Any:
        return self.module.plan(x, *self.late)

    def step(self, x: np.ndarray) -> list[np.ndarray]:
        self.module.lazy_reset_grad()
        loss, y = self.module(x, *self.late)
        return [np.array(v) for v in (loss, y, *(p.grad for _, p in self.state.parameters))]


def rows(dtype: Any = np.float32, count: int = ROWS) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, WIDTH)).astype(dtype)


def test_artifacts_hold_the_original_s_operators() -> None:
    training = training_model(network())
    ops = [node.op_type for node in training.graph.node]
    assert ops.count("Dropout") == ops.count("DropoutGrad") == LAYERS
    assert all(len(node.input) >= 2 and node.input[1] for node in training.graph.node if node.op_type == "DropoutGrad")


def test_no_mask_is_planned() -> None:
    forward = network()
    training = training_model(forward)
    again, kept = Run(forward, training).plan(rows()), Run(forward, keeping_masks(training)).plan(rows())
    mask = f"bool[{ROWS},{WIDTH}]"
    assert mask in str(kept)
    assert mask not in str(again)
    assert "DropoutGrad" not in str(again)
    assert str(again).count("[Dropout ") == 2 * LAYERS  # the gradient is the same once more
    # At the peak all masks are still needed but that of the last layer, whose gradient comes first.
    assert again.peak_bytes <= kept.peak_bytes - (LAYERS - 1) * ROWS * WIDTH


@pytest.mark.parametrize("loop", [False, True], ids=["straight", "loop"])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("dtype", ["float", "double", "float16", "bfloat16"])
def test_gradients_are_those_of_the_kept_mask_bit_for_bit(dtype: str, seed: int | None, loop: bool) -> None:
    forward = network(dtype, seed, loop)
    training = training_model(forward)
    kind = helper.tensor_dtype_to_np_dtype(forward.graph.input[0].type.tensor_type.elem_type)
    results = []
    for model in (training, keeping_masks(training)):
        backpass.set_seed(3)
        run = Run(forward, model)
        results.append([run.step(rows(kind, count)) for count in (ROWS, 8, 1, 0)])
    for again, kept in zip(*results, strict=True):
        for a, b in zip(again, kept, strict=True):
            assert a.tobytes() == b.tobytes()
    assert np.any(results[0][0][2] != 0)


def test_every_run_drops_other_elements_and_threads_do_not_matter() -> None:
    forward = network()
    training = training_model(forward)
    runs = []
    for threads in (1, 2, 3):
        backpass.set_seed(11)
        run = Run(forward, training, threads)
        runs.append([run.step(rows(count=1001)) for _ in range(3)])
    for other in runs[1:]:
        for one, two in zip(runs[0], other, strict=True):
            for a, b in zip(one, two, strict=True):
                np.testing.assert_array_equal(a, b)
    first, second, third = (step[1] == 0 for step in runs[0])
    for a, b in ((first, second), (second, third)):
        agreement = np.mean(a == b)  # of independent masks: 0.4 * 0.4 + 0.6 * 0.6
        assert abs(agreement - 0.52) < 5 * np.sqrt(0.52 * 0.48 / a.size)


def test_the_gradient_is_that_of_the_run_s_masks() -> None:
    """By hand, from the masks that results of layers show: an element is 0 where it was dropped."""
    forward = network("double")
    run = Run(forward, training_model(forward, "d0", "d1"))
    weights = [np.array(p.data) for _, p in run.state.parameters]
    x = rows(np.float64)
    for _ in range(2):
        run.module.lazy_reset_grad()
        _, y, *hidden = run.module(x)
        layers = [x, *hidden, y]
        dy = 2 * y / y.size
        for i in reversed(range(LAYERS)):
            dy = np.where(layers[i + 1] != 0, dy / (1 - float(np.float32(0.4))), 0)
            np.testing.assert_allclose(run.state.parameters[f"w{i}"].grad, layers[i].T @ dy, rtol=1e-10)
            dy = dy @ weights[i].T


def test_a_mask_that_somebody_else_reads_is_kept() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[64] x, float[64] dy) => (float[64] y, bool[64] mask, float[64] dx)
    <float ratio = {0.5}, bool yes = {1}>
    { y, mask = Dropout(x, ratio, yes) dx = com.microsoft.DropoutGrad(dy, mask, ratio, yes) }""")
    ones = np.ones(64, np.float32)
    session = backpass.InferenceSession(model)
    for _ in range(2):
        y, mask, dx = session.run(None, {"x": ones, "dy": ones})
        np.testing.assert_array_equal(y, 2.0 * mask)
        np.testing.assert_array_equal(dx, 2.0 * mask)


def test_a_gradient_with_another_ratio_keeps_the_mask() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[64] x, float[64] dy) => (float[64] y, float[64] dx)
    <float ratio = {0.5}, float other = {0.75}, bool yes = {1}>
    { y, mask = Dropout(x, ratio, yes) dx = com.microsoft.DropoutGrad(dy, mask, other, yes) }""")
    ones = np.ones(64, np.float32)
    y, dx = backpass.InferenceSession(model).run(None, {"x": ones, "dy": ones})
    np.testing.assert_array_equal(dx, 2 * y)


def test_resuming_with_dropout_is_bit_identical(tmp_path: Path) -> None:
    forward = network()
    training = training_model(forward)
    backpass.set_seed(1)
    run = Run(forward, training)
    first = run.step(rows())
    CheckpointState.save_checkpoint(run.state, tmp_path / "checkpoint", include_optimizer_state=True)
    straight = run.step(rows())
    backpass.set_seed(99)
    resumed = Run(forward, training)
    resumed.state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    resumed.module = Module(training.SerializeToString(), resumed.state)
    for a, b in zip(straight, resumed.step(rows()), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[1], straight[1])


def losses_of(folder: Path, between: str, stop: bool) -> list[float]:
    """Six steps; after the third one something else, and, to ``stop``, a checkpoint that a new session goes on from.

    Evaluation comes before the first one, too.
    """
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,8] x, int64[N] labels) => (float loss) <float ratio = {0.4}, bool yes = {1}>
    { h = MatMul(x, w) d = Dropout(h, ratio, yes) loss = SoftmaxCrossEntropyLoss(d, labels) }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal((8, 5)).astype(np.float32), "w"))
    models = _core.build_training_model(model.SerializeToString(), ["w"], [], ["loss"])
    backpass.set_seed(5)
    state = state_of(model)
    module = Module(models[0], state, models[1])
    x, labels = rng.standard_normal((ROWS, 8)).astype(np.float32), rng.integers(0, 5, ROWS)
    if between == "evaluation":
        module.eval()(x, labels)
    losses = []
    for i in range(6):
        losses.append(float(module.train()(x, labels)))
        if i != 2:
            continue
        if between == "evaluation":
            module.eval()(x, labels)
        elif between == "error":
            with pytest.raises(backpass.InvalidInput, match="label 9"):
                module(x, labels * 0 + 9)
            module.lazy_reset_grad()  # the step may have been adding to them
        if stop:
            CheckpointState.save_checkpoint(state, folder / "checkpoint", include_optimizer_state=True)
            state = CheckpointState.load_checkpoint(folder / "checkpoint")
            module = Module(models[0], state, models[1])
    return losses


@pytest.mark.parametrize("between", ["nothing", "evaluation", "error"])
def test_resuming_after_something_else_is_bit_identical(between: str, tmp_path: Path) -> None:
    assert losses_of(tmp_path, between, stop=True) == losses_of(tmp_path, between, stop=False)


def test_evaluating_does_not_change_what_training_draws(tmp_path: Path) -> None:
    assert losses_of(tmp_path, "evaluation", stop=False) == losses_of(tmp_path, "nothing", stop=False)
