"""Nodes that torch runs: user functions and aten operators inside the engine, against eager mode."""

from __future__ import annotations

import gc
import json
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import _core
from backpass.torch import Dispatcher, callbacks, export_module
from onnx import helper
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Module(torch.nn.Module):
    """A weight, and a function of it and the arguments."""

    def __init__(self, function: Callable[..., Any], size: int = 4) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(size))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self.weight, *args)


@dataclass
class Case:
    """A module, exported."""

    module: Module
    exported: Any
    wrt: list[str]  # all inputs that hold floats
    gradient: bytes

    def eager(self, *args: torch.Tensor) -> tuple[list[np.ndarray], list[np.ndarray]]:
        values = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
        self.module.weight.grad = None
        outputs = self.module(*values)
        tensors = [o for o in (outputs if isinstance(outputs, tuple) else (outputs,)) if isinstance(o, torch.Tensor)]
        sum(o.sum() for o in tensors if o.requires_grad).backward()
        leaves = [self.module.weight if s.kind == "parameter" else values[s.target] for s in self.specs()]
        gradients = [torch.zeros_like(v) if v.grad is None else v.grad for v in leaves]
        return [t.detach().numpy() for t in tensors], [g.numpy() for g in gradients]

    def specs(self) -> list[Any]:
        return [s for s in self.exported.inputs if s.name in self.wrt]

    def inputs(self, *args: torch.Tensor) -> dict[str, torch.Tensor]:
        weight = self.module.weight.detach()
        return {s.name: weight if s.kind == "parameter" else args[s.target] for s in self.exported.inputs}

    def runs(self, *args: torch.Tensor) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
        """By the plan, node by node, and in two halves."""
        inputs = self.inputs(*args)
        feeds = {name: t.numpy() for name, t in inputs.items()}
        count = len(self.exported.outputs)
        for settings in ({}, {"reference": True}):
            found = backpass.InferenceSession(self.gradient, **settings).run(None, feeds)
            skipped = len(found) - len(self.wrt)
            yield (found[:count] if skipped == count else None), found[skipped:]
        session = _core.ModuleSession.from_bytes(
            self.exported.proto.SerializeToString(), self.wrt, backpass.SessionOptions()
        )
        tensors = list(inputs.values())
        for _ in range(2):
            outputs, pending = session.forward(tensors, True)
            flows = session.differentiable_outputs()
            seeds = [torch.ones_like(o) if f else None for o, f in zip(outputs, flows, strict=True)]
            gradients = session.backward(pending, seeds)
            filled = [torch.zeros_like(inputs[n]) if g is None else g for n, g in zip(self.wrt, gradients, strict=True)]
            yield [o.numpy() for o in outputs], [g.numpy() for g in filled]

    def text(self) -> str:
        return backpass.InferenceSession(self.gradient).graph_text()


def exported(
    function: Callable[..., Any],
    *args: torch.Tensor,
    dynamic: bool = False,
    without: tuple[Any, ...] = (),
) -> Case:
    """`without`: operators that are handed to torch though they have a lowering."""
    torch.manual_seed(0)
    module = Module(function)
    dispatcher = Dispatcher()
    for operator in without:
        dispatcher.register(operator)(lambda b, node, *args, **kwargs: callbacks.emit_aten(b, node, args, kwargs))
    found = export_module(module, args, dynamic=dynamic, dispatcher=dispatcher)
    wrt = [s.name for s in found.inputs if s.dtype is not None and s.dtype.is_floating_point]
    return Case(module, found, wrt, backpass.grad(found.proto, wrt).SerializeToString())


def compare(function: Callable[..., Any], *args: torch.Tensor, more: tuple[Any, ...] = (), **settings: Any) -> Case:
    """Outputs and gradients of all float inputs equal eager's; `more`: arguments of other sizes."""
    case = exported(function, *args, **settings)
    for given in (args, *more):
        outputs, gradients = case.eager(*given)
        for found, found_gradients in case.runs(*given):
            for result, expected in zip(found or [], outputs, strict=found is not None) if found else ():
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
            for name, result, expected in zip(case.wrt, found_gradients, gradients, strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5, err_msg=name)
    return case


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))


# ---- user functions
class Swish(Function):
    """Its backward is not its derivative: whoever differentiates forward is found out."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.k = k
        return x * torch.sigmoid(k * x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x * 7.0 * ctx.k, None


def make(factor: float) -> type[Function]:
    class Swish(Function):
        @staticmethod
        def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
            return x.sin() * factor, (x + y).cos(), 3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g1: torch.Tensor, g2: torch.Tensor, nothing: None) -> Any:
            assert nothing is None
            x, _ = ctx.saved_tensors
            return g1 * factor + g2 * x, g2 * 5

    return Swish


swish = Swish.apply  # bound before anything was captured


def test_function_with_a_constant() -> None:
    compare(lambda w, x: torch.exp(swish(x * w, 1.5) * 0.1) + x, X)


def test_functions_of_one_name_are_told_apart() -> None:
    first, second = make(2.0), make(3.0)

    def function(w: Any, x: Any) -> Any:
        a, b, k = first.apply(swish(x * w, 0.5), x)
        c, d, _ = second.apply(a, b)
        return c * k + d

    case = compare(function, X)
    names = [callbacks.name_of(f) for f in (first, second)]
    assert {name.partition("#")[0] for name in names} == {f"{__name__}.make.<locals>.Swish"}
    assert names[0] != names[1]
    assert all(name in case.text() for name in names)


def test_sizes_may_vary() -> None:
    function = make(2.0)
    other = torch.randn(7, 4)
    case = compare(lambda w, x: function.apply(x * w, x)[1].exp(), X, dynamic=True, more=((other,), (other[:0],)))
    plan = str(backpass.InferenceSession(case.gradient).plan({n: t.numpy() for n, t in case.inputs(other).items()}))
    assert plan.count("late [com.microsoft.PythonOp") == 2
    assert " 2 late" in plan, "what comes after it is planned"


class Scaled(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: int, config: dict[str, Any], how: Any, *, shift: float = 0.0) -> Any:
        ctx.size, ctx.config, ctx.how = size, config, how
        assert isinstance(size, int)
        return x * size * config["scale"][0] + shift

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        assert ctx.how is MARK
        assert ctx.config["kind"] is torch.float32
        return g * ctx.size * ctx.config["scale"][1], None, None, None


MARK = object()


def test_arguments_of_all_kinds() -> None:
    def function(w: Any, x: Any) -> Any:
        return Scaled.apply(x * w, x.shape[0] * 2, {"scale": (2.0, -1), "kind": torch.float32}, MARK) * 2

    compare(function, X, dynamic=True, more=((torch.randn(5, 4),),))


class Keyword(Function):
    @staticmethod
    def forward(x: torch.Tensor, scale: float = 2.0, shift: float = 0.5) -> torch.Tensor:
        return x * scale + shift

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[1]
        ctx.shift = inputs[2]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.scale * ctx.shift, None, None


def test_keywords_and_defaults() -> None:
    compare(lambda w, x: Keyword.apply(x * w, shift=3.0) + Keyword.apply(x), X)


class Pair(Function):
    """Two results of which only one may be used, and one that is none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, None, x * 3

    @staticmethod
    def backward(ctx: Any, a: Any, nothing: None, b: Any) -> Any:
        assert nothing is None
        return (0 if a is None else a * 10) + (0 if b is None else b * 100)


@pytest.mark.parametrize("used", [(0,), (2,), (0, 2)])
def test_unused_results_have_no_gradient(used: tuple[int, ...]) -> None:
    compare(lambda w, x: sum(Pair.apply(x * w)[i] for i in used) * 1.0, X)


class Materialized(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x * 2, x[0] * 3

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        assert a.shape == (3, 4)
        assert b.shape == (4,)
        return a * 10 + b * 100


def test_missing_gradients_are_zeros_by_default() -> None:
    compare(lambda w, x: Materialized.apply(x * w)[1] * 2, X)


class Needs(Function):
    """Returns nothing for what does not need a gradient, and says what it was told."""

    seen: tuple[bool, ...] = ()

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x + y * 2 + z

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        Needs.seen = ctx.needs_input_grad
        return tuple(g * (i + 2) if need else None for i, need in enumerate(ctx.needs_input_grad))


def test_functions_are_told_what_needs_a_gradient() -> None:
    compare(lambda w, x: Needs.apply(x.detach() * 2, x * w, torch.ones(4)), X)


def test_gradients_of_some_inputs_only() -> None:
    module = Module(lambda w, x, y: Needs.apply(x, y * w, x))
    gradient = backpass.grad(export_module(module, (X, Y)).proto, ["weight"])
    feeds = {"weight": module.weight.detach().numpy(), "args_0": X.numpy(), "args_1": Y.numpy()}
    found = backpass.InferenceSession(gradient.SerializeToString()).run(["weight_grad"], feeds)[0]
    assert Needs.seen == (False, True, False)
    np.testing.assert_allclose(found, 3 * Y.sum(0).numpy(), rtol=1e-5)


class Mask(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        mask = (x > 0).float()
        ctx.save_for_backward(mask)
        ctx.mark_non_differentiable(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, nothing: torch.Tensor) -> torch.Tensor:
        return g * ctx.saved_tensors[0] * 4


def test_results_without_a_gradient() -> None:
    def function(w: Any, x: Any) -> Any:
        y, mask = Mask.apply(x * w)
        return y * 2 + mask * w, mask

    case = compare(function, X)
    session = _core.ModuleSession.from_bytes(
        case.exported.proto.SerializeToString(), case.wrt, backpass.SessionOptions()
    )
    assert session.differentiable_outputs() == [True, False]


class Zero(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return None, g * 3


def test_no_gradient_is_zero() -> None:
    compare(lambda w, x: Zero.apply(x * 2, w * x), X)


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 30


def test_changes_in_place() -> None:
    def function(w: Any, x: Any) -> Any:
        h = x * w
        before = h * 5
        after = InPlace.apply(h)
        return before + after * 2 + h * h

    compare(function, X)


class Numpy(Function):
    """Needs real numbers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x.detach().numpy()
        return torch.from_numpy(np.tanh(ctx.x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(g.numpy() * ctx.x * 2)


def test_functions_that_leave_torch() -> None:
    compare(lambda w, x: Numpy.apply(x * w), X, dynamic=True, more=((torch.randn(2, 4),),))


class Shaped(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([x.detach().numpy(), x.detach().numpy()]))

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g[: g.shape[0] // 2]


def test_functions_that_leave_torch_and_change_shapes() -> None:
    compare(lambda w, x: Shaped.apply(x * w), X)
    with pytest.raises(backpass.Unsupported, match=r"Shaped.*sizes that vary"):
        export_module(Module(lambda w, x: Shaped.apply(x * w)), (X,), dynamic=True)


class Twice(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x, x

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * 2 + b * 3


def test_functions_that_hand_their_argument_back() -> None:
    def function(w: Any, x: Any) -> Any:
        a, b = Twice.apply(x * w)
        return a * 2 + b * b

    compare(function, X)


class Outer(Function):
    """Calls another function, which is its own business."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return Swish.apply(x, 2.0) + 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 11


def test_functions_inside_of_functions() -> None:
    assert "Swish" not in compare(lambda w, x: Outer.apply(x * w), X).text()


def test_other_threads_are_not_disturbed() -> None:
    found: list[Any] = []

    def other() -> None:
        x = X.clone().requires_grad_()
        Swish.apply(x, 1.0).sum().backward()
        found.append(x.grad)

    with callbacks.opaque_autograd_functions():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    np.testing.assert_allclose(found[0], 7 * X)
    x = X.clone().requires_grad_()
    Swish.apply(x, 1.0).sum().backward()
    np.testing.assert_allclose(x.grad, 7 * X)


# ---- what a run leaves behind
class Held(Function):
    alive: ClassVar[list[weakref.ref[Any]]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        assert ctx.needs_input_grad == (torch.is_grad_enabled() or ctx.needs_input_grad[0],)
        ctx.kept = x
        Held.alive.append(weakref.ref(ctx))
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * ctx.kept


def session_for(function: Callable[..., Any], *args: torch.Tensor, wrt: list[str]) -> backpass.InferenceSession:
    found = export_module(Module(function), args)
    model = backpass.grad(found.proto, wrt) if wrt else found.proto
    return backpass.InferenceSession(model.SerializeToString())


def test_contexts_are_freed_and_hold_their_own_memory() -> None:
    Held.alive.clear()
    # The value the function keeps lies where the engine puts something else right afterwards.
    session = session_for(lambda w, x: (torch.exp(Held.apply(x * w)) * 2 - x).exp(), X, wrt=["args_0"])
    feeds = {"weight": np.full(4, 0.1, np.float32), "args_0": X.numpy()}
    x = X.clone().requires_grad_()
    (torch.exp(Held.apply(x * 0.1)) * 2 - x).exp().sum().backward()
    for _ in range(3):
        np.testing.assert_allclose(session.run(["args_0_grad"], feeds)[0], x.grad, rtol=1e-5)
    del x
    gc.collect()
    assert len(Held.alive) >= 4
    assert not [ref for ref in Held.alive if ref() is not None]


def test_no_context_without_gradients() -> None:
    seen: list[bool] = []

    class Watch(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append(any(ctx.needs_input_grad))
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g

    feeds = {"weight": np.ones(4, np.float32), "args_0": X.numpy()}
    session = session_for(lambda w, x: Watch.apply(x * w), X, wrt=[])
    seen.clear()
    session.run(None, feeds)
    assert seen == [False]
    session = session_for(lambda w, x: Watch.apply(x * w), X, wrt=["weight"])
    seen.clear()
    session.run(None, feeds)
    assert seen == [True]


def test_results_do_not_change_afterwards() -> None:
    kept: list[torch.Tensor] = []

    class Keep(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            kept.append(x)
            return x.view(-1)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g.view(3, 4)

    session = session_for(lambda w, x: Keep.apply(x * w), X, wrt=[])
    kept.clear()
    first = session.run(None, {"weight": np.ones(4, np.float32), "args_0": X.numpy()})[0]
    session.run(None, {"weight": np.full(4, 2, np.float32), "args_0": X.numpy()})
    np.testing.assert_array_equal(kept[0], X)
    np.testing.assert_array_equal(first, X.view(-1))


def test_several_threads() -> None:
    session = session_for(lambda w, x: Swish.apply(x * w, 1.0), X, wrt=["args_0"])
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            w, x = rng.standard_normal(4).astype(np.float32), rng.standard_normal((3, 4)).astype(np.float32)
            found = session.run(["args_0_grad"], {"weight": w, "args_0": x})[0]
            if not np.allclose(found, 7 * x * w * w, rtol=1e-4, atol=1e-5):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- errors
class OwnError(Exception):
    pass


class Failing(Function):
    where = ""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        if Failing.where == "forward":
            raise OwnError("lost in forward")
        return x[:2] if Failing.where == "shape" else x.double() if Failing.where == "type" else x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        raise OwnError("lost in backward")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_exceptions_arrive_as_themselves(where: str) -> None:
    Failing.where = ""
    session = session_for(lambda w, x: Failing.apply(x * w), X, wrt=["args_0"])
    Failing.where = where
    with pytest.raises(OwnError, match=f"lost in {where}") as caught:
        session.run(None, {"weight": np.ones(4, np.float32), "args_0": X.numpy()})
    (note,) = caught.value.__notes__
    assert f"{where} of torch.autograd.Function {__name__}.Failing" in note
    assert any(frame.name == where for frame in traceback.extract_tb(caught.value.__traceback__)), "its own frame"
    Failing.where = ""
    with pytest.raises(OwnError, match="lost in backward"):  # the session goes on working
        session.run(None, {"weight": np.ones(4, np.float32), "args_0": X.numpy()})


@pytest.mark.parametrize(("where", "says"), [("shape", "float32[2,4]"), ("type", "float64[3,4]")])
def test_results_other_than_promised_are_refused(where: str, says: str) -> None:
    Failing.where = ""
    session = session_for(lambda w, x: Failing.apply(x * w), X, wrt=[])
    Failing.where = where
    with pytest.raises(backpass.InvalidInput) as caught:
        session.run(None, {"weight": np.ones(4, np.float32), "args_0": X.numpy()})
    Failing.where = ""
    assert "PythonOp 'Failing" in str(caught.value)
    assert f"got {says}, expected float32[3,4]" in str(caught.value)


def node_model(op: str, domain: str, inputs: int = 1, outputs: int = 1, **attributes: Any) -> bytes:
    names = [f"x{i}" for i in range(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="it", domain=domain, **attributes)
    infos = [helper.make_tensor_value_info(n, 7 if "Grad" in op else 1, [] if "Grad" in op else [2]) for n in names]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=o) for o in node.output])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


MICROSOFT, ATEN = "com.microsoft", "org.pytorch.aten"
GOOD = {"tensor_inputs": 1, "output_types": [1]}


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (node_model("PythonOp", MICROSOFT, func_name="a.b"), "tensor_inputs and output_types: got none"),
        (node_model("ATen", ATEN, operator="relu", tensor_inputs=-1, output_types=[1]), "-1 tensors"),
        (node_model("ATen", ATEN, operator="relu", tensor_inputs=1, output_types=[99]), "got 99, expected codes"),
        (node_model("ATen", ATEN, outputs=3, operator="relu", **GOOD), "got 1 and 3"),
        (node_model("ATen", ATEN, outputs=2, operator="relu", **GOOD), "input_requires_grads: got 0, expected 1"),
        (node_model("ATen", MICROSOFT, operator="relu", **GOOD), "hands control to PyTorch"),
    ],
)
def test_bad_nodes_are_refused_before_running(model: bytes, says: str) -> None:
    report = backpass.check(model)
    assert says in str(report)
    assert "'it'" in str(report)


CALL = json.dumps({"args": [{"tensor": 0}]})


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (node_model("PythonOp", MICROSOFT, func_name="no.such.Function", arguments=CALL, **GOOD), "no.such.Function"),
        (node_model("PythonOp", MICROSOFT, func_name="numpy.ndarray", arguments=CALL, **GOOD), "knows no torch"),
        (node_model("PythonOp", MICROSOFT, arguments=CALL, **GOOD), "func_name"),
        (node_model("ATen", ATEN, operator="no_such_op", arguments=CALL, **GOOD), "has none of that name"),
        (node_model("ATen", ATEN, operator="relu", arguments="{", **GOOD), "expected what backpass.torch writes"),
        (node_model("ATen", ATEN, operator="relu", arguments='{"args":[{"tensor":9}]}', **GOOD), "arguments: got"),
        (node_model("ATen", ATEN, operator="relu", arguments='{"args":[{"no":9}]}', **GOOD), "arguments: got"),
        (node_model("ATen", ATEN, operator="relu", arguments='{"args":[{"object":"x@1"}]}', **GOOD), "export it here"),
        (node_model("ATenGrad", ATEN, operator="relu", **GOOD), "stands for nothing"),
        (node_model("PythonOpGrad", MICROSOFT, func_name="a.b", **GOOD), "stands for nothing"),
    ],
)
def test_bad_nodes_are_refused_when_run(model: bytes, says: str) -> None:
    session = backpass.InferenceSession(model)
    feeds = {i.name: np.ones(i.shape, np.int64 if "int64" in i.type else np.float32) for i in session.get_inputs()}
    with pytest.raises(backpass.InvalidInput) as caught:
        session.run(None, feeds)
    assert says in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))


def test_second_derivatives_of_functions_are_refused_by_name() -> None:
    found = export_module(Module(lambda w, x: Swish.apply(x * w, 1.0)), (X,))
    first = backpass.grad(found.proto, ["args_0"])
    with pytest.raises(backpass.Unsupported, match="PythonOpGrad"):
        backpass.grad(first, ["args_0"], ["args_0_grad"])


# ---- names across processes
def test_functions_are_found_by_import() -> None:
    assert callbacks.unresolved([f"{__name__}.Swish", "torch.no.Such", f"{__name__}.make.<locals>.Other"]) == [
        "torch.no.Such",
        f"{__name__}.make.<locals>.Other",
    ]


def test_exported_models_name_their_functions() -> None:
    found = export_module(Module(lambda w, x: swish(swish(x * w, 1.0), 2.0)), (X,))
    assert found.python_ops == [f"{__name__}.Swish"]
    nodes = [n for n in found.proto.graph.node if n.op_type == "PythonOp"]
    arguments = [a.s.decode() for n in nodes for a in n.attribute if a.name == "arguments"]
    assert len(nodes) == 2
    assert all(callbacks.is_portable(text) for text in arguments)


# ---- aten operators
aten = torch.ops.aten


def test_operator_with_options() -> None:
    case = compare(
        lambda w, x: torch.nn.functional.gelu(x * w, approximate="tanh").exp(), X, without=(aten.gelu,), dynamic=True,
        more=((torch.randn(9, 4),), (torch.randn(0, 4),)),
    )  # fmt: skip
    assert "org.pytorch.aten.ATen(" in case.text()


def test_operator_with_several_results() -> None:
    def function(w: Any, x: Any) -> Any:
        values, places = torch.sort(x * w, dim=1)
        return values * torch.arange(4.0), places

    compare(function, X, without=(aten.sort,))


def test_operator_on_lists_of_tensors() -> None:
    compare(lambda w, x, y: torch.cat([x * w, y, x], 1), X, Y, without=(aten.cat,), dynamic=True)


def test_operator_that_takes_sizes() -> None:
    compare(
        lambda w, x: (x * w).expand(2, x.shape[0], 4).exp(), X, without=(aten.expand,), dynamic=True,
        more=((torch.randn(5, 4),),),
    )  # fmt: skip


def test_operator_that_gives_a_view() -> None:
    compare(lambda w, x: torch.diagonal(x * w) * 2 + torch.diagonal(x), X, without=(aten.diagonal,))


def test_gradients_go_through_complex_numbers() -> None:
    case = compare(lambda w, x: torch.fft.fft(torch.fft.fft(x * w, dim=-1), dim=-2).real * 2, X)
    assert any("fft" in f.op for f in case.exported.fallbacks)


def test_operator_whose_size_depends_on_data() -> None:
    module = Module(lambda w, x: torch.nonzero(x > 0))
    dispatcher = Dispatcher({aten.nonzero: lambda b, node, *args: callbacks.emit_aten(b, node, args, {})})
    session = backpass.InferenceSession(export_module(module, (X,), dispatcher=dispatcher).proto.SerializeToString())
    for x in (X, Y):
        feeds = {
            i.name: module.weight.detach().numpy() if i.name == "weight" else x.numpy() for i in session.get_inputs()
        }
        np.testing.assert_array_equal(session.run(None, feeds)[0], torch.nonzero(x > 0))


def test_errors_of_operators_are_torchs() -> None:
    model = node_model("ATen", ATEN, operator="mm", arguments='{"args":[{"tensor":0},{"tensor":0}]}', **GOOD)
    with pytest.raises(RuntimeError, match="self must be a matrix") as caught:
        backpass.InferenceSession(model).run(None, {"x0": np.ones(2, np.float32)})
    assert "aten operator mm, called by [ATen 'it']" in caught.value.__notes__[0]


# ---- what takes the time
def test_usage_names_every_node() -> None:
    case = exported(lambda w, x: torch.sort(Swish.apply(x * w, 1.0)).values, X, without=(aten.sort,))
    session = backpass.InferenceSession(case.gradient, profile=True)
    callbacks.reset_usage()
    for _ in range(3):
        session.run(None, {n: t.numpy() for n, t in case.inputs(X).items()})
    found = callbacks.usage()
    assert {(u.op, u.target, u.calls) for u in found} == {
        ("PythonOp", f"{__name__}.Swish", 3),
        ("PythonOpGrad", f"{__name__}.Swish", 3),
        ("ATen", "sort", 3),
        ("ATenGrad", "sort", 3),
    }
    steps = {s.name for s in session.take_profile().steps}
    assert {u.node for u in found} <= steps, "the profile of a session has the same names"
    assert all(u.seconds > 0 and u.target in str(u) for u in found)
    callbacks.reset_usage()
    assert not callbacks.usage()


def test_share_of_the_time() -> None:
    case = exported(lambda w, x: torch.sort(Swish.apply(x * w, 1.0)).values, X, without=(aten.sort,))
    session = backpass.InferenceSession(case.gradient, profile=True)
    session.run(None, {n: t.numpy() for n, t in case.inputs(X).items()})
    shares = callbacks.shares(session.take_profile())
    assert len(shares) == 4
    assert 0.1 < sum(shares.values()) < 1
    assert any(label.startswith("ATen sort '") for label in shares)
    assert any(label.startswith(f"PythonOpGrad {__name__}.Swish '") for label in shares)
