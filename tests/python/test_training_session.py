"""Training sessions over hand-made artifacts: gradients, accumulation, optimizer, schedule, resuming, errors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import _core
from backpass.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from onnx import helper, parser

W = np.array([[0.5, -1.0], [2.0, 0.25], [1.0, 3.0]], np.float32)

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3] x) => (float[1] loss, float[N,2] y)
<float[3,2] w = {0.5, -1.0, 2.0, 0.25, 1.0, 3.0}, float[2] b = {0.1, -0.1}, int64[1] one = {1}> {
  p = MatMul(x, w)
  y = Add(p, b)
  s = Mul(y, y)
  r = ReduceSum<keepdims = 0>(s)
  loss = Reshape(r, one)
}"""


def model() -> onnx.ModelProto:
    return parser.parse_model(MODEL)


def optimizer_model(kind: str = "AdamWOptimizer", **attributes: Any) -> bytes:
    tensors = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    names = ["params", "gradients", "first_order_moments"]
    if kind == "AdamWOptimizer":
        names.append("second_order_moments")
    inputs = [
        helper.make_tensor_value_info("learning_rate", 1, [1]),
        helper.make_tensor_value_info("step", 7, [1]),
        *(helper.make_value_info(name, tensors) for name in names),
    ]
    reads = ["learning_rate", "step", *names] if kind == "AdamWOptimizer" else ["learning_rate", "params", "gradients"]
    node = helper.make_node(kind, reads, ["done"], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("done", 9, [1])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.fixture
def state() -> CheckpointState:
    core = _core.CheckpointState()
    for t in model().graph.initializer:
        if t.name in ("w", "b"):
            core.add_parameter(t.name, backpass._convert.to_engine(onnx.numpy_helper.to_array(t)), t.name == "w")
    return CheckpointState(core)


def models() -> tuple[bytes, bytes]:
    return _core.build_training_model(model().SerializeToString(), ["w"], ["b"], ["loss", "y"])


def expected(x: np.ndarray, w: np.ndarray = W) -> tuple[float, np.ndarray]:
    y = x @ w + np.array([0.1, -0.1], np.float32)
    return float((y * y).sum()), 2 * x.T @ y


def batch(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)


def test_gradients_start_anew_and_add_up(state: CheckpointState) -> None:
    train, evaluate = models()
    module = Module(train, state, evaluate)
    assert module.input_names() == ["x"]
    assert module.output_names() == ["loss", "y"]
    loss, y = module(batch(0))
    value, gradient = expected(batch(0))
    assert float(loss[0]) == pytest.approx(value, rel=1e-5)
    grad = state.parameters["w"].grad
    assert grad is not None
    np.testing.assert_allclose(grad, gradient, rtol=1e-4)
    module(batch(1))
    np.testing.assert_allclose(grad, gradient + expected(batch(1))[1], rtol=1e-4)  # a view: it follows
    module.lazy_reset_grad()
    module(batch(2))
    np.testing.assert_allclose(grad, expected(batch(2))[1], rtol=1e-4)
    assert state.parameters["b"].grad is None
    evaluated = module.eval()(batch(0))
    assert np.array_equal(evaluated[1], y)
    np.testing.assert_allclose(grad, expected(batch(2))[1], rtol=1e-4)  # evaluation leaves gradients alone


@pytest.mark.parametrize("threads", [1, 2])
def test_sgd_moves_against_the_gradient(state: CheckpointState, threads: int) -> None:
    options = backpass.SessionOptions()
    options.num_threads = threads
    module = Module(models()[0], state, session_options=options)
    optimizer = Optimizer(optimizer_model("SGDOptimizerV2"), module)
    assert optimizer.get_learning_rate() == pytest.approx(1e-3)
    optimizer.set_learning_rate(0.01)
    module(batch())
    optimizer.step()
    np.testing.assert_allclose(state.parameters["w"].data, W - 0.01 * expected(batch())[1], rtol=1e-5)


def adamw(w: np.ndarray, steps: int, rate: float) -> np.ndarray:
    m, v, w = np.zeros_like(w, np.float64), np.zeros_like(w, np.float64), w.astype(np.float64)
    for t in range(1, steps + 1):
        g = expected(batch(t).astype(np.float64), w)[1]
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-6)
        w = w - rate * 0.1 * w
    return w


ADAMW = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "weight_decay": 0.1, "correct_bias": 1, "adam_mode": 1}


def trained(state: CheckpointState, steps: range) -> Module:
    module = Module(models()[0], state, models()[1])
    optimizer = Optimizer(optimizer_model(**ADAMW), module)
    if steps.start == 1:
        optimizer.set_learning_rate(0.05)
    for t in steps:
        module(batch(t))
        optimizer.step()
        module.lazy_reset_grad()
    return module


def test_adamw_is_the_original_s(state: CheckpointState) -> None:
    trained(state, range(1, 6))
    np.testing.assert_allclose(state.parameters["w"].data, adamw(W, 5, 0.05), rtol=2e-5)


def test_resuming_is_bit_identical(state: CheckpointState, tmp_path: Path) -> None:
    straight = _core.CheckpointState.load_bytes(state._core.to_bytes())
    trained(CheckpointState(straight), range(1, 9))
    trained(state, range(1, 5))
    CheckpointState.save_checkpoint(state, tmp_path / "checkpoint", include_optimizer_state=True)
    resumed = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    trained(resumed, range(5, 9))
    assert np.array_equal(resumed.parameters["w"].data, CheckpointState(straight).parameters["w"].data)


def test_threads_take_turns(state: CheckpointState, tmp_path: Path) -> None:
    """Whole numbers, so that the sum does not depend on the order; saving goes on meanwhile."""
    module = Module(models()[0], state)
    count, rounds = 4, 200
    x = [np.full((size, 3), 1, np.float32) for size in (64, 200, 300)]
    state.parameters["w"] = np.ones((3, 2), np.float32)
    state.parameters["b"] = np.zeros(2, np.float32)
    start = threading.Barrier(count)

    def work(number: int) -> None:
        start.wait()
        for i in range(rounds):
            module(x[(i + number) % 3])
            state.properties[f"{number}"] = i
            if i % 20 == 0:
                CheckpointState.save_checkpoint(state, tmp_path / f"{number}", include_optimizer_state=True)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = sum(len(x[(i + n) % 3]) for n in range(count) for i in range(rounds))
    np.testing.assert_array_equal(state.parameters["w"].grad, np.full((3, 2), 6 * rows, np.float32))


def test_linear_schedule_warms_up_then_falls(state: CheckpointState) -> None:
    module = Module(models()[0], state)
    optimizer = Optimizer(optimizer_model(), module)
    scheduler = LinearLRScheduler(optimizer, warmup_step_count=2, total_step_count=10, initial_lr=0.1)
    rates = [optimizer.get_learning_rate()]
    for _ in range(11):
        module(batch())
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    wanted = [0, 0.05, *(0.1 * (10 - t) / 8 for t in range(2, 11)), 0]
    np.testing.assert_allclose(rates, wanted, atol=1e-7)


@pytest.mark.parametrize("rate", [np.nan, np.inf, 1e40])
def test_rates_are_finite(state: CheckpointState, rate: float) -> None:
    optimizer = Optimizer(optimizer_model(), Module(models()[0], state))
    with pytest.raises(backpass.InvalidInput, match="expected a finite number"):
        optimizer.set_learning_rate(rate)
    with pytest.raises(backpass.InvalidInput, match="expected a finite number"):
        LinearLRScheduler(optimizer, 1, 10, rate)
    assert optimizer.get_learning_rate() == pytest.approx(1e-3)


def test_export_gives_a_model_that_runs(state: CheckpointState, tmp_path: Path) -> None:
    module = trained(state, range(1, 4))
    path = tmp_path / "inference.onnx"
    module.export_model_for_inferencing(path, ["y"])
    exported = onnx.load(path)
    onnx.checker.check_model(exported, full_check=True)
    assert [i.name for i in exported.graph.input] == ["x"]
    assert [n.op_type for n in exported.graph.node] == ["MatMul", "Add"]
    import onnxruntime

    (y,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": batch()})
    np.testing.assert_allclose(y, module.eval()(batch())[1], rtol=1e-5)
    module.train()(batch())  # the session goes on


def test_parameters_as_one_buffer(state: CheckpointState) -> None:
    module = Module(models()[0], state)
    assert module.get_parameters_size() == 6
    assert module.get_parameters_size(trainable_only=False) == 8
    everything = np.from_dlpack(module.get_contiguous_parameters())
    np.testing.assert_array_equal(everything, np.concatenate([W.ravel(), np.array([0.1, -0.1], np.float32)]))
    module.copy_buffer_to_parameters(np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(state.parameters["w"].data, np.arange(6).reshape(3, 2))
    with pytest.raises(backpass.InvalidInput, match="buffer: got 5 elements, expected 6"):
        module.copy_buffer_to_parameters(np.zeros(5, np.float32))


def test_nominal_state_needs_its_parameters_first() -> None:
    core = _core.CheckpointState()
    core.add_nominal("w", 1, True)
    core.add_nominal("b", 1, False)
    state = CheckpointState(core)
    module = Module(models()[0], state, models()[1])
    assert module.get_parameters_size(trainable_only=False) == 8
    with pytest.raises(backpass.InvalidInput, match="nominal checkpoint state"):
        module(batch())
    with pytest.raises(backpass.InvalidInput, match="nominal checkpoint state"):
        module.eval()(batch())
    module.train().copy_buffer_to_parameters(
        np.concatenate([W.ravel(), np.array([0.1, -0.1], np.float32)]), trainable_only=False
    )
    assert float(module(batch())[0][0]) == pytest.approx(expected(batch())[0], rel=1e-5)


def test_what_crashed_the_original_is_an_error(state: CheckpointState) -> None:
    state.parameters["w"] = W * 2  # before any Module
    np.testing.assert_array_equal(state.parameters["w"].data, W * 2)
    assert "w" in repr(state.parameters)
    assert repr(state.properties) == "Properties({})"
    module = Module(models()[0], state)
    with pytest.raises(backpass.InvalidInput, match="without an eval model"):
        module.eval()(batch())
    with pytest.raises(backpass.InvalidInput, match="without an optimizer model"):
        _ = module._session.learning_rate
    with pytest.raises(KeyError, match="nothing"):
        state.parameters["nothing"]
    with pytest.raises(backpass.InvalidInput, match=r"got .*expected"):
        state.parameters["w"] = W[:1]
    with pytest.raises(backpass.InvalidInput, match="number of inputs: got 2, expected 1"):
        module.train()(batch(), batch())
    with pytest.raises(backpass.InvalidInput, match="input 0: got a list, expected an array"):
        module(batch().tolist())
    with pytest.raises(TypeError, match="load_checkpoint"):
        CheckpointState("checkpoint")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values"), [("w", np.zeros((3, 9000), np.float32)), ("b", np.zeros(2)), ("b", np.zeros(1, np.float32))]
)
def test_checkpoints_of_other_models_are_refused(name: str, values: np.ndarray) -> None:
    core = _core.CheckpointState()
    for key, own in {"w": W, "b": np.zeros(2, np.float32)}.items():
        core.add_parameter(key, backpass._convert.to_engine(values if key == name else own), key == "w")
    with pytest.raises(backpass.InvalidInput, match=rf"parameter '{name}': got .* in the checkpoint, expected float32"):
        Module(models()[0], CheckpointState(core))


def test_files_in_the_wrong_places_are_refused(state: CheckpointState) -> None:
    training, evaluation = models()
    with pytest.raises(backpass.InvalidInput, match="is it the eval model"):
        Module(evaluation, state)
    with pytest.raises(backpass.InvalidInput, match="is it the training model"):
        Module(training, state, training)


def test_properties_keep_numbers_and_texts(state: CheckpointState) -> None:
    state.properties["epoch"] = 2**40
    state.properties["rate"] = 0.5
    state.properties["name"] = "n"
    state.properties["flag"] = True
    assert dict(iter(state.properties)) == {"epoch": 2**40, "flag": 1, "name": "n", "rate": 0.5}
    with pytest.raises(TypeError, match="expected int, float or str"):
        state.properties["list"] = [1]  # type: ignore[assignment]
    with pytest.raises(KeyError):
        state.properties["missing"]


def test_optimizers_refuse_types_they_cannot_update() -> None:
    text = MODEL.replace("float[2] b = {0.1, -0.1}", "float16[2] h = {0, 0}").replace(
        "y = Add(p, b)", "b = Cast<to = 1>(h) y = Add(p, b)"
    )
    values = {"w": W, "h": np.zeros(2, np.float16)}
    core = _core.CheckpointState()
    for name, array in values.items():
        core.add_parameter(name, backpass._convert.to_engine(array), True)
    proto = parser.parse_model(text).SerializeToString()
    module = Module(_core.build_training_model(proto, ["w", "h"], [], ["loss"])[0], CheckpointState(core))
    with pytest.raises(backpass.Unsupported, match="parameter 'h': got float16, expected float32 or float64"):
        Optimizer(optimizer_model(), module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.input.pop(), "inputs: got"),
        (lambda g: g.node.append(g.node[0]), "more than one optimizer"),
        (lambda g: g.node.pop(), "no optimizer node"),
        (lambda g: g.node.append(helper.make_node("Relu", ["a"], ["b"])), r"\[Relu"),
    ],
)
def test_bad_optimizer_models_are_refused(state: CheckpointState, change: Any, message: str) -> None:
    proto = onnx.load_model_from_string(optimizer_model())
    change(proto.graph)
    with pytest.raises(backpass.InvalidInput, match=message):
        Optimizer(proto.SerializeToString(), Module(models()[0], state))
