"""`train_and_update`: the bits of a step, an update and a reset, without memory for all gradients."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
import test_gradient_accumulation as accumulation
import test_training_curves as curves
import update_fuzz
from backpass import _core
from backpass._convert import to_engine
from backpass.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from onnx import helper, numpy_helper, parser
from test_training_session import optimizer_model
from training_networks import TRAINEES
from update_fuzz import Run

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("BACKPASS_FUZZ_SECONDS", "600"))
STEPS = 20
AT_ONCE = "each parameter is updated as soon as its gradient is complete"


def start_of(training: bytes, optimizer: bytes, state: bytes, inputs: list[np.ndarray]) -> bytes:
    """The state after a step, when it has a seed."""
    return Run((training, b""), optimizer, state).step(inputs, together=False)[-1]


def expect_same_bits(training: bytes, optimizer: bytes, state: bytes, batches: list[Any], **options: Any) -> Run:
    state = start_of(training, optimizer, state, batches[0])
    plain = Run((training, b""), optimizer, state, num_threads=1)
    updating = Run((training, b""), optimizer, state, **options)
    for batch in batches:
        assert updating.step(batch, together=True) == plain.step(batch, together=False)
    return updating


# ---- Random graphs.
def test_some_graphs() -> None:
    seen = Counter[str]()
    problems = [problem for seed in range(1000, 1250) if (problem := update_fuzz.problem_of(seed, seen))]
    assert not problems, "\n".join(problems)
    assert seen["as soon as its gradient is complete"] > 200


@pytest.mark.slow
def test_many_graphs() -> None:
    command = [sys.executable, str(HERE / "update_fuzz.py"), "--seconds", str(SECONDS), "--first", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "finished, 0 wrong" in done.stdout, done.stdout


# ---- Networks: products, convolutions, statistics of batch normalisation, recurrent cells, attention.
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", list(TRAINEES))
def test_networks(name: str, kind: str, tmp_path: Path) -> None:
    curves.make(TRAINEES[name], kind, tmp_path)
    training, optimizer, state = (
        (tmp_path / file).read_bytes() for file in ("training_model.onnx", "optimizer_model.onnx", "checkpoint")
    )
    batches = [[*inputs, labels] for inputs, labels in curves.batches(TRAINEES[name], STEPS)]
    settings: list[dict[str, Any]] = [{"num_threads": 1}]
    if name in ("bert", "resnet18"):  # of the others, gradients take most
        settings.append({"num_threads": 1, "max_memory": 0.85})
    for options in (*settings, {"num_threads": 2, "recompute": ["blocks"]}):
        run = expect_same_bits(training, optimizer, state, batches, **options)
        assert str(run.optimizer.plan(*batches[0])).rstrip().endswith(AT_ONCE)
    assert any(report.pass_name == "recompute" for report in run.module.pass_reports())


@pytest.mark.parametrize("name", ["mlp", "resnet18", "bert"])
def test_gradients_take_no_memory(name: str, tmp_path: Path) -> None:
    """What is held falls by all gradients; the arena grows by less than a few of them."""
    curves.make(TRAINEES[name], "AdamW", tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    inputs, labels = curves.batches(TRAINEES[name], 1)[0]
    apart, together = module.plan(*inputs, labels), optimizer.plan(*inputs, labels)
    trained = [p.data.nbytes for _, p in state.parameters if p.requires_grad]
    assert apart.held.gradients == sum(trained)
    assert together.held.gradients == 0
    for plan in (apart, together):
        assert plan.held.parameters == sum(p.data.nbytes for _, p in state.parameters)
        assert plan.held.optimizer_state == 2 * sum(trained)
        held = f"{plan.held.parameters} bytes of parameters, {plan.held.gradients} of gradients"
        assert held in str(plan)
    assert together.peak_bytes <= apart.peak_bytes + 3 * max(trained)


MEASURED = """
import ctypes, sys
sys.path.insert(0, {folder!r})
import numpy as np
from test_gradient_accumulation import module_of, network
from test_training_session import optimizer_model
from backpass.api import Optimizer

module, state = module_of(network("chain", "float", 1024))
optimizer = Optimizer(optimizer_model("SGDOptimizerV2"), module)
x = np.ones((2, 1024), np.float32)

def resident():
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is no longer there
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

before = resident()
optimizer.train_and_update(x)
together = resident()
module(x)
print(together - before, resident() - together)
"""


def test_memory_that_is_resident() -> None:
    """Measured, not planned: twelve gradients of 4 MiB each."""
    script = MEASURED.format(folder=str(HERE))
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    together, apart = map(int, done.stdout.split())
    assert together < 16 * 1024
    assert apart > 36 * 1024


# ---- Corners.
def network(text: str, parameters: dict[str, np.ndarray], frozen: tuple[str, ...] = (), **kinds: Any) -> Any:
    """Training model and state of a network that computes `loss`."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "my": 1]> g {text}')
    core = _core.CheckpointState()
    for name, value in parameters.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
        core.add_parameter(name, to_engine(value), name not in frozen)
    trained = [name for name in parameters if name not in frozen]
    outputs = [o.name for o in model.graph.output]
    training, _ = _core.build_training_model(model.SerializeToString(), trained, list(frozen), outputs)
    return training, core.to_bytes()


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CORNERS = {
    "tied": ("(float[n,5] x) => (float loss) { a = MatMul(x, w) t = Transpose(w) b = MatMul(a, t) c = MatMul(b, w) "
             "s = Mul(c, c) loss = ReduceMean<keepdims = 0>(s) }", {"w": numbers(5, 5)}, ()),
    "embedding": ("(float[n,5] x) => (float loss) <int64[3] rows = {4, 0, 4}> { e = Gather(w, rows) u = Transpose(e) "
                  "a = MatMul(x, u) d = Transpose(w) z = MatMul(x, d) m = ReduceSum<keepdims = 0>(z) "
                  "q = ReduceMean<keepdims = 0>(a) l = Mul(m, q) loss = Tanh(l) }", {"w": numbers(6, 5)}, ()),
    "frozen": ("(float[n,5] x) => (float loss) { a = MatMul(x, w) b = Add(a, f) c = MatMul(b, v) s = Mul(c, c) "
               "loss = ReduceMean<keepdims = 0>(s) }",
               {"w": numbers(5, 4), "f": numbers(4), "v": numbers(4, 2, seed=1)}, ("f",)),
    "no gradient": ("(float[n,5] x) => (float loss) { c = Ceil(v) a = Mul(x, c) b = MatMul(a, w) s = Mul(b, b) "
                    "loss = ReduceMean<keepdims = 0>(s) }", {"w": numbers(5, 3), "v": numbers(5)}, ()),
    "dropout": ("(float[n,5] x) => (float loss) <float half = {0.5}, bool yes = {1}> { a = MatMul(x, w) "
                "d, m = Dropout(a, half, yes) b = MatMul(d, v) e, k = Dropout(b, half, yes) s = Mul(e, e) "
                "loss = ReduceMean<keepdims = 0>(s) }", {"w": numbers(5, 9), "v": numbers(9, 4)}, ()),
    "sizes from data": ("(float[n,5] x) => (float loss) <float one = {0.1}> { "
                        "f = ReduceMax<axes = [1], keepdims = 0>(x) p = Greater(f, one) c = Compress<axis = 0>(x, p) "
                        "y = MatMul(c, w) z = MatMul(y, v) "
                        "s = Mul(z, z) loss = ReduceSum<keepdims = 0>(s) }",
                        {"w": numbers(5, 3), "v": numbers(3, 2)}, ()),
    "branches": ("(float[n,5] x) => (float loss) { a = MatMul(x, w) m = ReduceSum<keepdims = 0>(a) z = Cast<to = 9>(m) "
                 "y = If(z) <then_branch = t () => (float[n,4] p) { p = Mul(a, v) }, "
                 "else_branch = e () => (float[n,4] q) { q = Sub(a, v) }> s = Mul(y, y) "
                 "loss = ReduceMean<keepdims = 0>(s) }", {"w": numbers(5, 4), "v": numbers(4)}, ()),
    "nothing": ("(float[n,5] x) => (float loss) { a = MatMul(x, w) c = Concat<axis = 1>(a, e) s = Mul(c, c) "
                "loss = ReduceSum<keepdims = 0>(s) }", {"w": numbers(5, 1), "e": numbers(4, 0)}, ()),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["SGDOptimizerV2", "AdamWOptimizer"])
@pytest.mark.parametrize("name", list(CORNERS))
def test_corners(name: str, kind: str) -> None:
    training, state = network(*CORNERS[name])
    batches = [[numbers(4, 5, seed=step)] for step in range(STEPS)]
    for threads in (1, 2):
        run = expect_same_bits(training, optimizer_model(kind), state, batches, num_threads=threads)
        assert str(run.optimizer.plan(*batches[0])).rstrip().endswith(AT_ONCE)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_and_odd_tensors(dtype: Any) -> None:
    """A tensor by itself is cut otherwise than all of them together."""
    name = {np.float32: "float", np.float64: "double"}[dtype]
    sizes = {"w0": 1, "w1": 70001, "w2": 16384, "w3": 3}
    terms = "".join(f"a{i} = Mul(x, {w}) t{i} = ReduceMean<keepdims = 0>(a{i}) " for i, w in enumerate(sizes))
    text = f"({name} x) => ({name} loss) {{ {terms} s = Sum(t0, t1, t2, t3) loss = Mul(s, s) }}"
    training, state = network(text, {w: numbers(size).astype(dtype) for w, size in sizes.items()})
    batches = [[np.asarray(step - 2.5, dtype)] for step in range(STEPS)]
    expect_same_bits(training, optimizer_model(), state, batches, num_threads=2)


def test_ways_are_mixed_and_states_saved() -> None:
    training, state = network(*CORNERS["dropout"])
    state = start_of(training, optimizer_model(), state, [numbers(4, 5)])
    plain, mixed = (Run((training, b""), optimizer_model(), state) for _ in range(2))
    for run in (plain, mixed):
        run.schedule = LinearLRScheduler(run.optimizer, 5, 30, 0.1)  # type: ignore[attr-defined]
    for step, together in enumerate(itertools.islice(itertools.cycle([True, False, False, True, True]), 30)):
        batch = [numbers(3 + step % 3, 5, seed=step)]
        wanted = plain.step(batch, together=False)
        assert mixed.step(batch, together=together) == wanted
        for run in (plain, mixed):
            run.schedule.step()  # type: ignore[attr-defined]
        if step == 12:
            saved = mixed.state.to_bytes(include_optimizer_state=True)
            rate = mixed.optimizer.get_learning_rate()
            mixed.load(saved)
            mixed.optimizer.set_learning_rate(rate)
            mixed.schedule = LinearLRScheduler(mixed.optimizer, 5, 30, 0.1)  # type: ignore[attr-defined]


# ---- Where all gradients are needed together.
def simple(**options: Any) -> Run:
    training, state = network(*CORNERS["frozen"])
    return Run((training, b""), optimizer_model("SGDOptimizerV2"), state, **options)


def expect_one_after_the_other(run: Run, why: str, inputs: list[np.ndarray]) -> None:
    plan = run.optimizer.plan(*inputs)
    assert str(plan).rstrip().endswith(f"parameters are updated after the step: {why}")
    assert plan.held.gradients > 0
    run.optimizer.train_and_update(*inputs)
    assert (why, "updated parameters after the step") in [(r.why, r.what) for r in run.module.pass_reports()]


def test_gradients_that_add_up() -> None:
    """The last of several batches updates."""
    x = [numbers(4, 5, seed=i) for i in range(3)]
    plain, updating = simple(), simple()
    for run in (plain, updating):
        run.module(x[0])
        run.module(x[1])
    plain.module(x[2])
    plain.optimizer.step()
    expect_one_after_the_other(updating, "gradients are being added up", [x[2]])
    assert plain.state.to_bytes(True)[:64] == updating.state.to_bytes(True)[:64]
    for name, p in plain.state.parameters:
        np.testing.assert_array_equal(p.data, updating.state.parameters[name].data)
    plain.module.lazy_reset_grad()
    assert plain.step([x[0]], together=False)[0] == updating.step([x[0]], together=True)[0]
    for name, p in plain.state.parameters:
        np.testing.assert_array_equal(p.data, updating.state.parameters[name].data)


def clipping() -> bytes:
    model = onnx.ModelProto.FromString(optimizer_model("SGDOptimizerV2"))
    clip = helper.make_node("InplaceClipGradNorm", ["gradients"], ["clipped"], domain="com.microsoft", max_norm=0.25)
    model.graph.node[0].input[2] = "clipped"
    model.graph.node.insert(0, clip)
    return model.SerializeToString()


def test_gradients_that_are_clipped() -> None:
    training, state = network(*CORNERS["frozen"])
    run = Run((training, b""), clipping(), state)
    expect_one_after_the_other(run, "the optimizer clips by the norm of all gradients", [numbers(4, 5)])
    batches = [[numbers(4, 5, seed=step)] for step in range(STEPS)]
    expect_same_bits(training, clipping(), state, batches)


def test_a_parameter_that_is_an_output() -> None:
    text = "(float[n,5] x) => (float loss, float[5,1] y) { y = Identity(w) a = MatMul(x, w) s = Mul(a, a) loss = ReduceSum<keepdims = 0>(s) }"  # noqa: E501
    training, state = network(text, {"w": numbers(5, 1)})
    run = Run((training, b""), optimizer_model(), state)
    before = np.array(run.state.parameters["w"].data)
    _, given = run.optimizer.train_and_update(numbers(4, 5))
    np.testing.assert_array_equal(given, before)
    assert "is parameter 'w' itself, before its update" in str(run.optimizer.plan(numbers(4, 5)))


def test_a_parameter_that_is_an_input() -> None:
    """Fed as it is, not as a copy: what the step reads of it has to be its old value to the end."""
    text = "(float[4,4] x) => (float loss) { a = MatMul(x, w) b = MatMul(a, v) c = MatMul(b, u) s = Mul(c, c) loss = ReduceSum<keepdims = 0>(s) }"  # noqa: E501
    training, state = network(text, {"w": numbers(4, 4), "v": numbers(4, 4, seed=1), "u": numbers(4, 4, seed=2)})
    plain, updating = (Run((training, b""), optimizer_model("SGDOptimizerV2"), state) for _ in range(2))
    why = "parameters share memory with each other or with inputs"
    for name in ("w", "v", "u"):
        plain.step([plain.state.parameters[name].data], together=False)
        expect_one_after_the_other(updating, why, [updating.state.parameters[name].data])
    for name, p in plain.state.parameters:
        np.testing.assert_array_equal(p.data, updating.state.parameters[name].data)


# ---- What is left of the gradients.
def test_gradients_are_not_kept() -> None:
    run = simple()
    x = numbers(4, 5)
    assert run.state.parameters["w"].grad is not None
    run.optimizer.train_and_update(x)
    assert run.state.parameters["w"].grad is None
    with pytest.raises(backpass.InvalidInput, match=r"optimizer_step: got no gradients, since train_and_update keeps"):
        run.optimizer.step()
    with pytest.raises(backpass.InvalidInput, match="no gradient to set: train_and_update keeps none"):
        run.state.parameters["w"].grad = None
    run.module(x)
    assert np.any(run.state.parameters["w"].grad)
    run.optimizer.step()
    run.module.eval()
    with pytest.raises(backpass.InvalidInput, match="got a module in eval mode"):
        run.optimizer.train_and_update(x)


def test_wrong_inputs_change_nothing() -> None:
    run = simple()
    run.module(numbers(4, 5))
    before, gradient = run.state.to_bytes(True), np.array(run.state.parameters["w"].grad)
    run.module.lazy_reset_grad()
    with pytest.raises(backpass.InvalidInput, match="'x': got float32"):
        run.optimizer.train_and_update(numbers(4, 6))
    assert run.state.to_bytes(True) == before
    np.testing.assert_array_equal(run.state.parameters["w"].grad, gradient)


# ---- Failing in the midst, by an operator whose gradient comes when that of a later layer has been used.
class Hook:
    """An identity whose gradient does something."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.does: Any = lambda: None
        backpass.register_operator("my", name)(lambda x: x.copy())
        backpass.register_gradient("my", name, by_numbers=True)(self.gradient)

    def gradient(self, inputs: Any, outputs: Any, gradients: Any) -> Any:
        found = self.does()
        return gradients[0] if found is None else np.array(found, np.float32)


def hooked(hook: Hook, **options: Any) -> Run:
    text = f"""(float[n,5] x) => (float loss) {{ a = MatMul(x, w) b = my.{hook.name}(a) c = MatMul(b, v)
    s = Mul(c, c) loss = ReduceMean<keepdims = 0>(s) }}"""
    training, state = network(text, {"w": numbers(5, 4), "v": numbers(4, 2)})
    return Run((training, b""), optimizer_model("SGDOptimizerV2"), state, **options)


def test_a_step_that_fails_in_its_midst() -> None:
    hook = Hook("Failing")
    run = hooked(hook)
    x = numbers(4, 5)
    run.optimizer.train_and_update(x)
    before = {name: np.array(p.data) for name, p in run.state.parameters}
    hook.does = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run.optimizer.train_and_update(x)
    moved = {name for name, p in run.state.parameters if not np.array_equal(p.data, before[name])}
    assert moved == {"v"}
    hook.does = lambda: None
    assert "half updated" in repr(run.state)
    refusal = "parameters of which a step that failed has updated some and not others; load the last checkpoint"
    for call in (
        lambda: run.module(x),
        lambda: run.optimizer.train_and_update(x),
        run.optimizer.step,
        lambda: run.state.to_bytes(),
        lambda: Module(run.models[0], run.state)(x),
    ):
        with pytest.raises(backpass.InvalidInput, match=refusal):
            call()


def test_an_error_of_ours_in_its_midst_says_so() -> None:
    hook = Hook("Misshapen")
    run = hooked(hook)
    hook.does = lambda: [1.0]  # not of the input's shape
    with pytest.raises(backpass.Error, match="the step had updated some parameters and not others: load the last"):
        run.optimizer.train_and_update(numbers(4, 5))


def test_a_step_that_has_updated_something_is_not_stopped() -> None:
    hook = Hook("Stopping")
    flag = backpass.CancelFlag()
    plain, run = hooked(hook), hooked(hook, cancel=flag)
    x = numbers(4, 5)
    for _ in range(3):
        hook.does = lambda: None
        wanted = plain.step([x], together=False)[0]
        hook.does = flag.set
        assert run.step([x], together=True)[0] == wanted
        before = {name: np.array(p.data) for name, p in run.state.parameters}
        with pytest.raises(backpass.Cancelled):  # before its first update
            run.optimizer.train_and_update(x)
        flag.clear()
        for name, p in plain.state.parameters:
            np.testing.assert_array_equal(p.data, before[name])
            np.testing.assert_array_equal(p.data, run.state.parameters[name].data)


def test_accumulated_networks_agree() -> None:
    """Networks of the accumulation tests, in which parameters appear twice, or whose sizes data decide."""
    for name in accumulation.NETWORKS:
        model = accumulation.network(name, "float", 7)
        runs = [accumulation.module_of(model) for _ in range(2)]
        optimizers = [Optimizer(optimizer_model(), module) for module, _ in runs]
        for step in range(STEPS):
            x = numbers(5, 7, seed=step)
            runs[0][0](x)
            optimizers[0].step()
            runs[0][0].lazy_reset_grad()
            optimizers[1].train_and_update(x)
            for parameter, p in runs[0][1].parameters:
                np.testing.assert_array_equal(p.data, runs[1][1].parameters[parameter].data)
