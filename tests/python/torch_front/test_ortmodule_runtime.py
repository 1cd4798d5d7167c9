"""EngineGraph: a graph in the engine as a part of torch's autograd."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from backpass.torch.runtime import EngineGraph
from onnx import TensorProto, helper
from torch import nn
from torch.autograd import forward_ad


def model(ratio: float = 0.0) -> bytes:
    """r = sigmoid(x @ w + b), loss = mean(dropout(r)), and r in whole numbers."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Add", ["h", "b"], ["a"]),
            helper.make_node("Sigmoid", ["a"], ["r"]),
            helper.make_node("Dropout", ["r", "ratio", "training"], ["d"]),
            helper.make_node("ReduceMean", ["d"], ["loss"], keepdims=0),
            helper.make_node("Cast", ["r"], ["whole"], to=TensorProto.INT64),
        ],
        "g",
        [
            info("x", TensorProto.FLOAT, ["n", 4]),
            info("w", TensorProto.FLOAT, [4, 3]),
            info("b", TensorProto.FLOAT, [3]),
        ],
        [
            info("loss", TensorProto.FLOAT, []),
            info("r", TensorProto.FLOAT, ["n", 3]),
            info("whole", TensorProto.INT64, ["n", 3]),
        ],
        [
            helper.make_tensor("ratio", TensorProto.FLOAT, [], [ratio]),
            helper.make_tensor("training", TensorProto.BOOL, [], [True]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]).SerializeToString()


def graph(ratio: float = 0.0, wanted: tuple[str, ...] = ("w", "b")) -> EngineGraph:
    return EngineGraph(model(ratio), ["x", "w", "b"], wanted)


def tensors(n: int = 5) -> list[torch.Tensor]:
    return [torch.randn(n, 4), nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]


def eager(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r = torch.sigmoid(x @ w + b)
    return r.mean(), r


@pytest.mark.parametrize("n", [5, 1])
def test_gradients_are_those_of_torch(n: int) -> None:
    given = tensors(n)
    run = graph(wanted=("x", "w", "b"))
    given[0].requires_grad_()
    for _ in range(2):
        loss, r, whole = run(given)
        expected = eager(*given)
        torch.testing.assert_close((loss, r), expected)
        assert not whole.requires_grad
        ours = torch.autograd.grad(loss * 2 + (r * r).sum(), given)
        theirs = torch.autograd.grad(expected[0] * 2 + (expected[1] * expected[1]).sum(), given)
        torch.testing.assert_close(ours, theirs)


def test_gradients_that_are_not_contiguous() -> None:
    given = tensors()
    _, r, _ = graph()(given)
    r.t().sum().backward()  # expanded from one number
    (expected,) = torch.autograd.grad(eager(*given)[1].sum(), given[2])
    torch.testing.assert_close(given[2].grad, expected)


def test_inputs_that_are_not_contiguous() -> None:
    x, w, b = tensors()
    w = torch.randn(3, 4).t().requires_grad_()
    loss, _, _ = graph()([x, w, b])
    torch.testing.assert_close(loss, eager(x, w, b)[0])
    torch.testing.assert_close(torch.autograd.grad(loss, w), torch.autograd.grad(eager(x, w, b)[0], w))


def test_signs_that_torch_keeps_beside_the_memory() -> None:
    x, w, b = tensors()
    given = [torch._neg_view(-x.detach()), w, b]
    loss, result, _ = graph()(given)
    torch.testing.assert_close(result, eager(x, w, b)[1])
    # the imaginary part of a conjugate: a gradient that torch has not negated yet
    gradients = [
        torch.autograd.grad((torch.complex(torch.zeros_like(y), y).conj() * 1j).real, w)[0]
        for y in (loss, eager(x, w, b)[0])
    ]
    torch.testing.assert_close(*gradients)


def test_no_grad_keeps_nothing() -> None:
    given = tensors()
    with torch.no_grad():
        loss, _, _ = graph()(given)
    assert loss.grad_fn is None
    assert graph(wanted=())(given)[0].grad_fn is None


def test_retained_graphs_give_the_same_again() -> None:
    """Dropout included: the pass is repeated with the numbers it drew."""
    x, w, b = tensors(40)
    loss, _, _ = graph(0.5)([x, w, b])
    first = torch.autograd.grad(loss, (w, b), retain_graph=True)
    second = torch.autograd.grad(loss, (w, b), retain_graph=True)
    third = torch.autograd.grad(loss, (w, b))
    for a, c, d in zip(first, second, third, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(a, d)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, (w, b))


def test_outputs_one_after_the_other() -> None:
    given = tensors()
    loss, r, _ = graph()(given)
    loss.backward(retain_graph=True)
    r.sum().backward()
    expected = torch.autograd.grad(eager(*given)[0] + eager(*given)[1].sum(), given[1:])
    torch.testing.assert_close([given[1].grad, given[2].grad], list(expected))


@pytest.mark.parametrize("changed", ["x", "w", "b", "r"])
def test_changes_in_place_raise_where_torch_does(changed: str) -> None:
    x, w, b = tensors()

    def attempt(loss: torch.Tensor, r: torch.Tensor) -> bool:
        with torch.no_grad():
            {"x": x, "w": w, "b": b, "r": r}[changed].add_(1)
        refused = None
        try:
            loss.backward()
        except RuntimeError as error:
            refused = str(error)
        assert refused is None or "modified by an inplace operation" in refused
        return refused is None

    assert attempt(*eager(x, w, b)) == attempt(*graph()([x, w, b])[:2]) == (changed in "wb")


def test_a_pass_is_not_repeated_from_changed_inputs() -> None:
    x, w, b = tensors()
    run = graph()
    _, r, _ = run([x, w, b])  # the scalar is expected to get a gradient, this one is a surprise
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match=r"inplace operation.*other outputs than before"):
        r.sum().backward()
    _, r, _ = run([x, w, b])
    r.sum().backward()
    torch.testing.assert_close(b.grad, torch.autograd.grad(eager(x, w, b)[1].sum(), b)[0])


def test_random_numbers_follow_torch() -> None:
    given = tensors(40)
    run, other = graph(0.5), graph(0.5)
    torch.manual_seed(3)
    first = [run(given)[0].item() for _ in range(3)]
    assert len(set(first)) == 3
    torch.manual_seed(3)
    assert [other(given)[0].item() for _ in range(3)] == first
    state = torch.get_rng_state()
    again = run(given)[0].item()
    torch.set_rng_state(state)
    assert run(given)[0].item() == again


def test_without_random_numbers_torch_is_left_alone() -> None:
    run = EngineGraph(_sum(), ["x"], ())
    state = torch.get_rng_state()
    run([torch.ones(3)])
    assert torch.equal(torch.get_rng_state(), state)


def _sum() -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        "g",
        [info("x", TensorProto.FLOAT, ["n"])],
        [info("y", TensorProto.FLOAT, [])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]).SerializeToString()


def test_second_derivatives_are_refused() -> None:
    given = tensors()
    loss, _, _ = graph()(given)
    (gradient,) = torch.autograd.grad(loss, given[1], create_graph=True)
    torch.testing.assert_close(gradient.detach(), torch.autograd.grad(eager(*given)[0], given[1])[0])
    penalty = eager(*given)[0] + gradient.norm()
    with pytest.raises(RuntimeError, match="second derivatives through Backpass are not available"):
        penalty.backward()


@pytest.mark.parametrize("wanted", [True, False])
def test_forward_mode_is_refused(wanted: bool) -> None:
    x, w, b = tensors()
    with torch.set_grad_enabled(wanted), forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match="forward-mode derivatives through Backpass"):
            graph()([forward_ad.make_dual(x, torch.ones_like(x)), w, b])
        graph()([x, w, b])


def test_inputs_are_let_go_after_backward() -> None:
    x, w, b = tensors()
    loss, _, _ = graph()([x, w, b])
    watched = weakref.ref(x)
    del x
    gc.collect()
    assert watched() is not None
    loss.backward()
    gc.collect()
    assert watched() is None


def test_nothing_is_said_when_python_ends_with_a_loss_alive() -> None:
    code = f"import sys; sys.path.insert(0, {__file__.rpartition('/')[0]!r})\n" + (
        "from test_ortmodule_runtime import *\nloss, _, _ = graph()(tensors())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
