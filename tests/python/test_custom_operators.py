"""Operators and gradients registered from Python, in everything that runs or differentiates models."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import _core, artifacts, custom
from backpass.api import CheckpointState, Module, Optimizer
from onnx import helper, numpy_helper

FLOAT, DOUBLE, INT64 = 1, 11, 7
_domains = (f"test.custom{i}" for i in itertools.count())


@pytest.fixture
def domain() -> str:
    """One that no other test uses: what is registered stays."""
    return next(_domains)


@pytest.fixture
def restored() -> Iterator[list[tuple[str, str]]]:
    """Names to be unregistered when the test is over."""
    names: list[tuple[str, str]] = []
    yield names
    for name in names:
        custom.unregister(*name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: list[str],
    domain: str,
    initializers: dict[str, np.ndarray] | None = None,
    functions: tuple[Any, ...] = (),
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, dtype, shape) for n, (dtype, shape) in inputs.items()]
    constants = [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=o) for o in outputs], constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def single(
    op: str, domain: str, shapes: list[list[Any]], dtype: int = DOUBLE, outputs: int = 1, **attrs: Any
) -> onnx.ModelProto:
    """One node between things that are planned and fused."""
    names = [f"x{i}" for i in range(len(shapes))]
    node = helper.make_node(op, ["t", *names[1:]], [f"r{k}" for k in range(outputs)], name="it", domain=domain, **attrs)
    nodes = [helper.make_node("Tanh", ["x0"], ["t"]), node]
    nodes += [helper.make_node("Exp", [f"r{k}"], [f"y{k}"]) for k in range(outputs)]
    inputs = {n: (dtype, s) for n, s in zip(names, shapes, strict=True)}
    return model(nodes, inputs, [f"y{k}" for k in range(outputs)], domain)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], **settings: Any) -> list[np.ndarray]:
    return backpass.InferenceSession(proto.SerializeToString(), **settings).run(None, feeds)


def run_all_ways(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    found = run(proto, feeds)
    for settings in ({"reference": True}, {"optimize": False}):
        for a, b in zip(found, run(proto, feeds, **settings), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    return found


def differences(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], name: str, step: float = 1e-6) -> np.ndarray:
    """The derivative of the sum of all outputs, by central differences."""
    session = backpass.InferenceSession(proto.SerializeToString())
    result = np.zeros_like(feeds[name])
    for i in np.ndindex(result.shape):
        sums = []
        for sign in (1, -1):
            moved = feeds[name].copy()
            moved[i] += sign * step
            sums.append(sum(o.sum() for o in session.run(None, {**feeds, name: moved})))
        result[i] = (sums[0] - sums[1]) / (2 * step)
    return result


def check_gradients(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], rtol: float = 1e-5) -> onnx.ModelProto:
    names = [n for n, v in feeds.items() if v.dtype == np.float64]
    assert backpass.check(proto, trainable=names)
    gradient = backpass.grad(proto, names)
    found = run_all_ways(gradient, feeds)[-len(names) :]
    for name, value in zip(names, found, strict=True):
        np.testing.assert_allclose(value, differences(proto, feeds, name), rtol=rtol, atol=1e-7, err_msg=name)
    return gradient


RNG = np.random.default_rng(3)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


# ---- operators
def register_cube(domain: str) -> None:
    @backpass.register_operator(domain, "Cube")
    def cube(x: np.ndarray) -> np.ndarray:
        return x**3

    @backpass.register_gradient(domain, "Cube")
    def cube_gradient(g: custom.GradientGraph) -> custom.Value:
        return 3 * g.x() * g.x() * g.dy()


@pytest.mark.parametrize("shape", [(3, 4), (1,), (0, 2), ()])
def test_operator_in_a_session(domain: str, shape: tuple[int, ...]) -> None:
    register_cube(domain)
    proto = single("Cube", domain, [[f"d{i}" for i in range(len(shape))]])
    x = random(*shape)
    assert backpass.check(proto)
    np.testing.assert_allclose(run_all_ways(proto, {"x0": x})[0], np.exp(np.tanh(x) ** 3))


def test_first_second_and_third_derivative(domain: str) -> None:
    register_cube(domain)
    proto = single("Cube", domain, [["n", 3]])
    feeds = {"x0": random(2, 3)}
    first = check_gradients(proto, feeds)
    second = backpass.grad(first, ["x0"], ["x0_grad"])
    only = backpass.grad(proto, ["x0"])
    del only.graph.output[0]
    np.testing.assert_allclose(run(second, feeds)[-1], differences(only, feeds, "x0"), rtol=1e-5)
    assert {n.op_type for n in second.graph.node} >= {"Cube", "Mul"}


def test_everything_around_it_is_planned(domain: str) -> None:
    register_cube(domain)
    proto = backpass.grad(single("Cube", domain, [["n", 3]]), ["x0"])
    session = backpass.InferenceSession(proto.SerializeToString())
    plan = session.plan({"x0": random(5, 3)})
    assert plan.late_steps == 1


def test_attributes_optional_inputs_and_several_outputs(domain: str) -> None:
    @backpass.register_operator(domain, "Affine", inputs=(1, 3), outputs=(1, 2))
    def affine(x: Any, w: Any = None, b: Any = None, *, scale: float = 1.0, how: str = "", axes: Any = ()) -> Any:
        y = x * scale * (1 if w is None else w) + (0 if b is None else b)
        assert list(axes) == [0, 2]
        assert how == "so"
        return y, y + 1

    @backpass.register_gradient(domain, "Affine")
    def gradient(g: custom.GradientGraph) -> None:
        total = g.dy(0) + g.dy(1) if g.has_dy(1) else g.dy(0)
        assert g.attributes["axes"] == [0, 2]
        scaled = total * g.attributes["scale"]
        _, w, b = g.inputs
        assert w is None
        assert b is not None
        g.set(0, scaled)
        g.set(2, g.reduce_like(total, b))

    node = helper.make_node(
        "Affine", ["x", "", "b"], ["y", "z"], domain=domain, name="it", scale=2.5, how="so", axes=[0, 2]
    )
    proto = model([node], {"x": (DOUBLE, ["n", 3]), "b": (DOUBLE, [3])}, ["y", "z"], domain)
    feeds = {"x": random(4, 3), "b": random(3)}
    np.testing.assert_allclose(run_all_ways(proto, feeds)[1], feeds["x"] * 2.5 + feeds["b"] + 1)
    check_gradients(proto, feeds)
    proto.graph.output.pop()
    check_gradients(proto, feeds)


def test_rule_for_types_with_extents_that_vary(domain: str) -> None:
    def types(x: custom.TensorType, *, times: int) -> Any:
        if x.shape is None:
            return x.dtype, None
        return x.dtype, (x.shape[0] * times + 1, *x.shape[1:])

    @backpass.register_operator(domain, "Repeat", types=types)
    def repeat(x: np.ndarray, *, times: int) -> np.ndarray:
        return np.concatenate([x] * times + [x[:1]])

    @backpass.register_gradient(domain, "Repeat", by_numbers=True)
    def backward(inputs: Any, outputs: Any, gradients: Any, *, times: int) -> np.ndarray:
        (x,), (g,) = inputs, gradients
        assert outputs[0].shape == g.shape
        result = g[: times * len(x)].reshape(times, *x.shape).sum(0)
        result[0] += g[-1]
        return result

    proto = single("Repeat", domain, [["n", "m"]], times=3)
    session = backpass.InferenceSession(proto.SerializeToString())
    assert session.get_outputs()[0].shape == ["1+3*n", "m"]
    check_gradients(proto, {"x0": random(2, 3)})
    check_gradients(proto, {"x0": random(1, 1)})


def test_shapes_that_depend_on_contents(domain: str) -> None:
    @backpass.register_operator(domain, "Positive", types=lambda x: (x.dtype, None))
    def positive(x: np.ndarray) -> np.ndarray:
        return x[x > 0]

    @backpass.register_gradient(domain, "Positive", by_numbers=True)
    def backward(inputs: Any, outputs: Any, gradients: Any) -> np.ndarray:
        result = np.zeros_like(inputs[0])
        result[inputs[0] > 0] = gradients[0]
        return result

    proto = single("Positive", domain, [["n"]])
    for n in (0, 3, 8):
        x = random(n)
        np.testing.assert_allclose(run_all_ways(proto, {"x0": x})[0], np.exp(np.tanh(x)[x > 0]))
        check_gradients(proto, {"x0": x})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_element_types(domain: str, dtype: str) -> None:
    code = next(c for c, d in custom.DTYPE_OF_CODE.items() if d == dtype)

    @backpass.register_operator(domain, "Flip")
    def flip(x: np.ndarray) -> np.ndarray:
        assert x.dtype == dtype
        return x[::-1]

    node = helper.make_node("Flip", ["x"], ["y"], domain=domain)
    proto = model([node], {"x": (code, ["n"])}, ["y"], domain)
    x = (RNG.standard_normal(5) * 3).astype(custom.DTYPE_OF_CODE[code])
    (found,) = run_all_ways(proto, {"x": x})
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x[::-1])


def test_results_are_not_the_inputs(domain: str) -> None:
    kept = []

    @backpass.register_operator(domain, "Same")
    def same(x: np.ndarray) -> np.ndarray:
        kept.append(x)
        with pytest.raises(ValueError, match="read-only"):
            x += 1
        return x

    node = helper.make_node("Same", ["x"], ["y"], domain=domain)
    session = backpass.InferenceSession(model([node], {"x": (DOUBLE, [2])}, ["y"], domain).SerializeToString())
    x = random(2)
    (y,) = session.run(None, {"x": x})
    assert not np.shares_memory(x, y)
    session = backpass.InferenceSession(single("Same", domain, [["n"]]).SerializeToString())
    kept.clear()
    session.run(None, {"x0": x})
    session.run(None, {"x0": x * 100})
    np.testing.assert_allclose(kept[0], np.tanh(x))


def test_constants_are_computed_once_unless_impure(domain: str) -> None:
    calls = {True: 0, False: 0}
    for pure in (True, False):

        def count(x: np.ndarray, pure: bool = pure) -> np.ndarray:
            calls[pure] += 1
            return x + 1

        backpass.register_operator(domain, f"Count{pure}", pure=pure)(count)
        nodes = [
            helper.make_node(f"Count{pure}", ["c"], ["d"], domain=domain),
            helper.make_node("Add", ["x", "d"], ["y"]),
        ]
        proto = model(nodes, {"x": (DOUBLE, [2])}, ["y"], domain, {"c": np.ones(2)})
        session = backpass.InferenceSession(proto.SerializeToString())
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, {"x": np.zeros(2)})[0], [2, 2])
    assert calls == {True: 1, False: 3}


def test_inside_of_a_branch(domain: str) -> None:
    register_cube(domain)
    then = helper.make_graph(
        [helper.make_node("Cube", ["x"], ["a"], domain=domain)], "t", [], [onnx.ValueInfoProto(name="a")]
    )
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "e", [], [onnx.ValueInfoProto(name="b")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    proto = model([node], {"c": (9, []), "x": (DOUBLE, ["n"])}, ["y"], domain)
    for c in (True, False):
        check_gradients(proto, {"c": np.array(c), "x": random(3)})


def test_training(domain: str, tmp_path: Path) -> None:
    """The same curve as with the operator written out, by artifacts and the training session."""
    register_cube(domain)

    @backpass.register_operator(domain, "CubeNumbers")
    def cube(x: np.ndarray) -> np.ndarray:
        return x**3

    @backpass.register_gradient(domain, "CubeNumbers", by_numbers=True)
    def backward(inputs: Any, outputs: Any, gradients: Any) -> tuple[np.ndarray]:
        return (3 * inputs[0] ** 2 * gradients[0],)

    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((4, 6)) * 0.5, "w2": rng.standard_normal((6, 3)) * 0.5}
    batches = [(rng.standard_normal((5, 4)).astype(np.float32), rng.integers(0, 3, 5)) for _ in range(6)]
    losses: dict[str, list[float]] = {}
    for op in ("Cube", "CubeNumbers", "plain"):
        middle = (
            helper.make_node("Pow", ["h", "three"], ["c"])
            if op == "plain"
            else helper.make_node(op, ["h"], ["c"], domain=domain)
        )
        nodes = [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            middle,
            helper.make_node("MatMul", ["c", "w2"], ["scores"]),
        ]
        constants = {n: w.astype(np.float32) for n, w in weights.items()} | {"three": np.array(3, np.float32)}
        proto = model(nodes, {"x": (FLOAT, ["n", 4])}, [], domain, constants)
        proto.graph.output.append(helper.make_tensor_value_info("scores", FLOAT, ["n", 3]))
        folder = tmp_path / op
        folder.mkdir()
        artifacts.generate_artifacts(
            proto,
            requires_grad=list(weights),
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(0.05)
        losses[op] = []
        for x, y in batches:
            losses[op].append(float(module(x, y)))
            optimizer.step()
            module.lazy_reset_grad()
    np.testing.assert_allclose(losses["Cube"], losses["plain"], rtol=1e-5)
    np.testing.assert_allclose(losses["CubeNumbers"], losses["plain"], rtol=1e-5)
    assert losses["plain"][0] != losses["plain"][-1]


# ---- gradients of what exists
def test_gradient_of_a_built_in_operator(restored: list[tuple[str, str]]) -> None:
    """A straight-through estimator: rounding that lets gradients pass."""
    proto = model(
        [helper.make_node("Round", ["x"], ["r"]), helper.make_node("Mul", ["r", "x"], ["y"])],
        {"x": (DOUBLE, [3])}, ["y"], "unused",
    )  # fmt: skip
    x = np.array([0.4, 1.6, -2.2])
    before = backpass.grad(proto, ["x"])
    np.testing.assert_allclose(run(before, {"x": x})[-1], np.round(x))
    with pytest.raises(backpass.InvalidInput, match=r"ai.onnx.Round: there is one already; replace"):
        backpass.register_gradient("", "Round")(lambda g: g.dy())
    backpass.register_gradient("", "Round", replace=True)(lambda g: g.dy())
    restored.append(("", "Round"))
    np.testing.assert_allclose(run_all_ways(backpass.grad(proto, ["x"]), {"x": x})[-1], np.round(x) + x)
    np.testing.assert_allclose(run(before, {"x": x})[-1], np.round(x), err_msg="models made before stay as they are")
    custom.unregister("", "Round")
    np.testing.assert_allclose(run(backpass.grad(proto, ["x"]), {"x": x})[-1], np.round(x))
    backpass.register_gradient("", "Round", replace=True, by_numbers=True)(lambda xs, ys, gs: gs[0] * 2)
    np.testing.assert_allclose(run_all_ways(backpass.grad(proto, ["x"]), {"x": x})[-1], np.round(x) + 2 * x)


def function(domain: str) -> onnx.FunctionProto:
    nodes = [helper.make_node("Mul", ["a", "b"], ["p"]), helper.make_node("Ceil", ["p"], ["q"])]
    attributes = ["power"]
    return helper.make_function(
        domain, "Product", ["a", "b"], ["p", "q"], nodes, [helper.make_opsetid("", 20)], attributes
    )


@pytest.mark.parametrize("by_numbers", [False, True])
@pytest.mark.parametrize("outputs", [["p", "q"], ["p"]])
def test_gradient_of_a_function_of_the_model(domain: str, by_numbers: bool, outputs: list[str]) -> None:
    if by_numbers:

        @backpass.register_gradient(domain, "Product", by_numbers=True)
        def backward(inputs: Any, results: Any, gradients: Any, *, power: float) -> Any:
            _, b = inputs
            total = sum(g for g in gradients if g is not None)
            return total * b * power, None

    else:

        @backpass.register_gradient(domain, "Product")
        def rule(g: custom.GradientGraph) -> Any:
            total = g.dy(0) + g.dy(1) if g.has_dy(1) else g.dy(0)
            return total * g.x(1) * g.attributes["power"], None

    call = helper.make_node("Product", ["t", "b"], outputs, domain=domain, name="call", power=5.0)
    nodes = [helper.make_node("Tanh", ["a"], ["t"]), call, helper.make_node("Sum", outputs, ["y"])]
    proto = model(nodes, {"a": (DOUBLE, ["n"]), "b": (DOUBLE, ["n"])}, ["y"], domain, functions=(function(domain),))
    feeds = {"a": random(4), "b": random(4)}
    t = np.tanh(feeds["a"])
    expected = t * feeds["b"] + (np.ceil(t * feeds["b"]) if len(outputs) == 2 else 0)
    np.testing.assert_allclose(run_all_ways(proto, feeds)[0], expected)
    gradient = backpass.grad(proto, ["a", "b"])
    _, da, db = run_all_ways(gradient, feeds)
    np.testing.assert_allclose(da, 5 * len(outputs) * feeds["b"] * (1 - t * t))
    np.testing.assert_array_equal(db, np.zeros(4))
    names = {n.op_type for n in gradient.graph.node}
    assert "FunctionGradient" not in names
    if not by_numbers:
        assert names <= {"Tanh", "Mul", "Add", "Sub", "Ceil", "Sum", "Shape", "Expand", "Identity", "ConstantOfShape"}


def test_body_of_a_function_need_not_be_differentiable(domain: str) -> None:
    backpass.register_operator(domain, "Closed")(lambda x: x * 3)  # it has no gradient
    nodes = [helper.make_node("Closed", ["a"], ["c"], domain=domain)]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    body = helper.make_function(domain, "Opaque", ["a"], ["c"], nodes, opsets)
    call = helper.make_node("Opaque", ["a"], ["y"], domain=domain, name="call")
    proto = model([call], {"a": (DOUBLE, [1])}, ["y"], domain, functions=(body,))
    assert not backpass.check(proto, trainable=["a"])
    backpass.register_gradient(domain, "Opaque")(lambda g: g.dy() * 7)
    assert backpass.check(proto, trainable=["a"])
    found = run(backpass.grad(proto, ["a"]), {"a": np.array([3.0])})
    np.testing.assert_array_equal(found, [[9], [7]])


def test_module_sessions(domain: str) -> None:
    import torch

    register_cube(domain)
    proto = single("Cube", domain, [["n", 3]], dtype=FLOAT)
    session = _core.ModuleSession.from_bytes(proto.SerializeToString(), ["x0"], backpass.SessionOptions())
    x = torch.randn(2, 3)
    (y,), pending = session.forward([x], True)
    (gradient,) = session.backward(pending, [torch.ones_like(y)])
    leaf = x.clone().requires_grad_()
    expected = torch.exp(torch.tanh(leaf) ** 3)
    expected.sum().backward()
    torch.testing.assert_close(y, expected.detach())
    torch.testing.assert_close(gradient, leaf.grad)


# ---- what goes wrong
def test_unknown_until_registered(domain: str) -> None:
    proto = single("Cube", domain, [["n"]])
    report = backpass.check(proto)
    assert f"{domain}.Cube, which Backpass does not have" in str(report)
    backpass.register_operator(domain, "Cube")(lambda x: x**3)
    assert backpass.check(proto)
    assert f"[{domain}.Cube 'it'] gradient: got an operator without one" in str(backpass.check(proto, trainable=["x0"]))
    with pytest.raises(backpass.Unsupported, match="register a gradient for it"):
        backpass.grad(proto, ["x0"])
    backpass.register_gradient(domain, "Cube")(lambda g: 3 * g.x() ** 2 * g.dy())
    check_gradients(proto, {"x0": random(3)})


def test_names_that_are_taken(domain: str) -> None:
    register_cube(domain)
    with pytest.raises(backpass.InvalidInput, match=r"Cube: one of that name is registered; replace"):
        backpass.register_operator(domain, "Cube")(lambda x: x)
    with pytest.raises(backpass.InvalidInput, match=r"Cube: there is one already; replace"):
        backpass.register_gradient(domain, "Cube")(lambda g: g.dy())
    proto = single("Cube", domain, [[2]])
    before = backpass.InferenceSession(proto.SerializeToString())
    backpass.register_operator(domain, "Cube", replace=True)(lambda x: x * 0)
    x = random(2)
    np.testing.assert_array_equal(run(proto, {"x0": x})[0], [1, 1])
    np.testing.assert_allclose(before.run(None, {"x0": x})[0], np.exp(np.tanh(x) ** 3))
    for where, name in (("", "Relu"), ("", "Mine"), ("com.microsoft", "PythonOp"), ("backpass", "Mine"), (domain, "")):
        with pytest.raises(backpass.InvalidInput):
            backpass.register_operator(where, name)(lambda x: x)
    backpass.register_operator(domain, "TakenGrad")(lambda x: x)
    backpass.register_operator(domain, "Taken")(lambda x: x)
    with pytest.raises(backpass.InvalidInput, match=r"TakenGrad exists already"):
        backpass.register_gradient(domain, "Taken", by_numbers=True)(lambda *a: None)
    with pytest.raises(backpass.Unsupported, match="taken apart"):
        backpass.register_gradient("", "LpNormalization", replace=True)(lambda g: g.dy())
    with pytest.raises(backpass.InvalidInput, match="nothing is registered"):
        custom.unregister(domain, "Never")
    with pytest.raises(TypeError):
        backpass.register_operator(domain, "NoFunction")(3)  # type: ignore[type-var]


class OwnError(Exception):
    pass


def test_exceptions_arrive_as_themselves(domain: str) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OwnError("mine")

    backpass.register_operator(domain, "A")(fail)
    backpass.register_operator(domain, "B")(lambda x: x)
    backpass.register_gradient(domain, "B")(fail)
    backpass.register_operator(domain, "C")(lambda x: x)
    backpass.register_gradient(domain, "C", by_numbers=True)(fail)
    backpass.register_operator(domain, "D", types=fail)(lambda x: x)
    feeds = {"x0": random(2)}
    cases = [
        (lambda: run(single("A", domain, [[2]]), feeds), "forward function", "A"),
        (lambda: backpass.grad(single("B", domain, [[2]]), ["x0"]), "gradient rule", "B"),
        (lambda: run(backpass.grad(single("C", domain, [[2]]), ["x0"]), feeds), "gradient function", "CGrad"),
        (lambda: backpass.check(single("D", domain, [[2]])), "rule for types", "D"),
    ]
    for action, what, op in cases:
        with pytest.raises(OwnError, match="mine") as caught:
            action()
        assert what in caught.value.__notes__[0]
        assert f"[{domain}.{op} 'it" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("types", "forward", "says"),
    [
        (None, lambda x: x.astype(np.float32), "output 0: got float32[2], expected float64[2] as the rule"),
        (None, lambda x: x[:1], "output 0: got float64[1], expected float64[2] as the rule"),
        (None, lambda x: None, "output 0: got None, expected an array"),
        (None, lambda x: (), "results: got 0, expected 1"),
        (lambda x: (x.dtype, (x.shape[0] + 1,)), lambda x: x, "expected float64[3]"),
    ],
)
def test_results_other_than_promised(domain: str, types: Any, forward: Any, says: str) -> None:
    backpass.register_operator(domain, "Liar", types=types)(forward)
    for shape in ([2], ["n"]):
        session = backpass.InferenceSession(single("Liar", domain, [shape]).SerializeToString())
        with pytest.raises(backpass.InvalidInput) as caught:
            session.run(None, {"x0": random(2)})
        assert f"[{domain}.Liar 'it']" in str(caught.value)
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (lambda x: (object, None), "element type"),
        (lambda x: (x.dtype, (-1,)), "extent -1"),
        (lambda x: [], "got 0 types, expected 1"),
        (lambda x: None, "no element type for output 0"),
        (lambda x: int("x"), "invalid literal"),
        (lambda x: (x.dtype, (x.shape[0] // 0,)), "division by 0"),
    ],
)
def test_bad_types_are_found_by_check(domain: str, types: Any, says: str) -> None:
    backpass.register_operator(domain, "Bad", types=types)(lambda x: x)
    report = backpass.check(single("Bad", domain, [["n"]]))
    assert says in str(report)
    assert f"[{domain}.Bad 'it']" in str(report)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda g: g.dy()[0] if False else 3.0, "gradient of input 0: got float, expected a value"),
        (lambda g: g.op("Cast", g.dy(), to=1), "gradient of input 0: got float32[n], expected float64[n]"),
        (lambda g: g.op("Unsqueeze", g.dy(), g.constant(np.array([0]))), "gradient of input 0: got float64[1,n]"),
        (lambda g: (), "says nothing of input 0"),
        (lambda g: (g.dy(), g.dy()), "gradient of input 1: got it twice, or there is no such input"),
        (lambda g: g.x(4), "reads input 4, which is omitted"),
        (lambda g: g.y(4), "reads output 4, which is omitted"),
        (lambda g: g.dy(4), "reads output 4, which is omitted"),
        (lambda g: g.op("NoSuch", g.dy()), "operator ai.onnx.NoSuch, which Backpass does not have"),
        (lambda g: g.op("Transpose", g.dy(), perm=[0, 1]), "perm"),
        (lambda g: g.op("Add", g.dy()), "got 1 inputs and 1 outputs of ai.onnx.Add, expected 2 to 2"),
    ],
)
def test_bad_gradient_rules_are_found_by_check(domain: str, rule: Any, says: str) -> None:
    backpass.register_operator(domain, "Bad")(lambda x: x)
    backpass.register_gradient(domain, "Bad")(rule)
    report = backpass.check(single("Bad", domain, [["n"]]), trainable=["x0"])
    assert says in str(report)


def test_values_of_a_rule_end_with_it(domain: str) -> None:
    kept = []
    backpass.register_operator(domain, "Keep")(lambda x: x)
    backpass.register_gradient(domain, "Keep")(lambda g: kept.append(g.dy()) or kept[-1])
    proto = single("Keep", domain, [["n"]])
    backpass.grad(proto, ["x0"])
    with pytest.raises(backpass.InvalidInput, match="after it had ended"):
        kept[0] * 2
    backpass.register_gradient(domain, "Keep", replace=True)(lambda g: g.dy() * kept[0])
    with pytest.raises(backpass.InvalidInput, match="value of another rule"):
        backpass.grad(proto, ["x0"])


@pytest.mark.parametrize("wrong", [lambda *a: np.zeros(7), lambda *a: np.zeros(2, np.float32)])
def test_bad_gradients_by_numbers(domain: str, wrong: Any) -> None:
    backpass.register_operator(domain, "Bad")(lambda x: x)
    backpass.register_gradient(domain, "Bad", by_numbers=True)(wrong)
    proto = backpass.grad(single("Bad", domain, [["n"]]), ["x0"])
    with pytest.raises(backpass.InvalidInput, match=r"BadGrad .*gradient of input 0: got .*expected float64\[2\]"):
        run(proto, {"x0": random(2)})
    with pytest.raises(backpass.Unsupported, match="BadGrad"):
        backpass.grad(proto, ["x0"], ["x0_grad"])


@pytest.mark.parametrize(
    "wrong", [lambda xs, ys, gs: gs[0] * xs[1], lambda xs, ys, gs: (gs[0] * xs[1],), lambda *a: None]
)
def test_gradients_by_numbers_say_something_of_every_input(domain: str, wrong: Any) -> None:
    backpass.register_operator(domain, "Product", inputs=2)(lambda x, y: x * y)
    backpass.register_gradient(domain, "Product", by_numbers=True)(wrong)
    proto = backpass.grad(single("Product", domain, [["n"], ["n"]]), ["x0", "x1"])
    with pytest.raises(backpass.InvalidInput, match="gradients: got 1, expected one for each of the 2 inputs"):
        run(proto, {"x0": random(2), "x1": random(2)})


def test_operators_may_keep_what_they_return(domain: str) -> None:
    table = np.arange(3.0)
    backpass.register_operator(domain, "Table")(lambda x: table)
    node = helper.make_node("Table", ["x"], ["y"], domain=domain)
    session = backpass.InferenceSession(model([node], {"x": (DOUBLE, [3])}, ["y"], domain).SerializeToString())
    (first,) = session.run(None, {"x": np.zeros(3)})
    first += 1
    np.testing.assert_array_equal(table, np.arange(3.0))
    table *= 2
    np.testing.assert_array_equal(first, np.arange(3.0) + 1)


def test_none_is_no_number(domain: str) -> None:
    backpass.register_operator(domain, "Scaled")(lambda x, alpha=1.0: x * alpha)
    backpass.register_gradient(domain, "Scaled")(lambda g: g.dy() * g.attributes.get("alpha"))
    with pytest.raises(backpass.InvalidInput, match=r"Scaled .*constant: got None"):
        backpass.grad(single("Scaled", domain, [["n"]]), ["x0"])


def test_hostile_nodes(domain: str) -> None:
    backpass.register_operator(domain, "Op")(lambda x: x)
    backpass.register_gradient(domain, "Op", by_numbers=True)(lambda *a: None)
    node = helper.make_node("OpGrad", ["x"], ["y"], domain=domain, name="it", backpass_inputs=-5, backpass_outputs=9)
    proto = model([node], {"x": (DOUBLE, [2])}, ["y"], domain)
    with pytest.raises(backpass.InvalidInput):
        run(proto, {"x": random(2)})
    for attributes in ({}, {"backpass_results": 9}, {"backpass_results": -1}):
        node = helper.make_node("FunctionGradient", ["x"], ["y"], domain="backpass", name="it", **attributes)
        proto = model([node], {"x": (DOUBLE, [2])}, ["y"], "backpass")
        with pytest.raises(backpass.InvalidInput):
            backpass.grad(proto, ["x"])


@pytest.mark.parametrize("answer", [3, (np.float64, ("n",)), (np.float64, (2.0,)), (np.float64, (2,), 1)])
def test_rules_for_types_that_say_something_else(domain: str, answer: Any) -> None:
    backpass.register_operator(domain, "Odd", types=lambda x: answer)(lambda x: x)
    with pytest.raises(backpass.InvalidInput, match=r"Odd 'it'\] rule for types: got "):
        run(single("Odd", domain, [["n"]]), {"x0": random(2)})


def test_threads_register_and_run(domain: str) -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for i in range(15):
                name = f"Op{number}_{i}"
                backpass.register_operator(domain, name)(lambda x, k=i: x * k)
                backpass.register_gradient(domain, name)(lambda g, k=i: g.dy() * k)
                backpass.register_operator(domain, "Shared", replace=True)(lambda x: x)
                proto = single(name, domain, [["n"]])
                x = np.linspace(0, 1, 3)
                y, dx = run(backpass.grad(proto, ["x0"]), {"x0": x})
                np.testing.assert_allclose(y, np.exp(np.tanh(x) * i))
                np.testing.assert_allclose(dx, y * i * (1 - np.tanh(x) ** 2))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_extents_are_arithmetic() -> None:
    seen: list[Any] = []
    name = next(_domains)

    def types(x: custom.TensorType) -> Any:
        assert x.shape is not None
        n = x.shape[0]
        seen.append(n)
        return x.dtype, ((2 * n - 1 + n) // 2 + (10 - n) * 1,)

    backpass.register_operator(name, "Op", types=types)(lambda x: np.zeros((3 * len(x) - 1) // 2 + 10 - len(x)))
    proto = single("Op", name, [["n"]])
    run(proto, {"x0": random(5)})
    symbol = seen[0]
    assert str(symbol) == "n"
    assert symbol == symbol + 0
    assert symbol != 3
    assert hash(symbol) == hash(symbol + 0)
    assert str(symbol * symbol) == "n*n"
