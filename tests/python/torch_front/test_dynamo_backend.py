"""torch.compile with Backpass: both modes give what eager gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backpass.dynamo import CompileOptions, CompileRecord, make_aot_ort
from backpass.dynamo.graph import compile_graph
from torch.fx.experimental.proxy_tensor import make_fx

MODES = ("aot", "forward")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(3)


def both(
    fn: Callable[..., Any], *arguments: Any, mode: str = "aot", module: torch.nn.Module | None = None, **options: Any
) -> CompileRecord:
    """Runs fn eagerly and compiled; results, gradients of everything and buffers must agree. Gives the record."""
    given = [arguments, copy.deepcopy(arguments)]
    modules = [module, copy.deepcopy(module)]
    backend, record = make_aot_ort(mode=mode)
    calls = [fn, torch.compile(fn, backend=backend, **options)]
    results = []
    for call, args, net in zip(calls, given, modules, strict=True):
        out = call(*args) if net is None else call(net, *args)
        if out.requires_grad:
            (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        leaves = [a for a in args if isinstance(a, torch.Tensor)] + ([] if net is None else list(net.parameters()))
        results.append([out.detach(), *(a.grad for a in leaves), *([] if net is None else net.buffers())])
    for got, wanted in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    return record


def with_gradient(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize("mode", MODES)
def test_inference(mode: str) -> None:
    x = torch.randn(4, 6)
    record = both(lambda x: torch.softmax(x @ x.T, -1), x, mode=mode)
    assert [g.kind for g in record.graphs] == ["inference"]
    assert record.execution_count == 1


@pytest.mark.parametrize("mode", MODES)
def test_no_gradients_inside_of_no_grad(mode: str) -> None:
    backend, record = make_aot_ort(mode=mode)
    net = torch.nn.Linear(3, 2)
    with torch.no_grad():
        y = torch.compile(net, backend=backend)(torch.ones(1, 3))
    assert not y.requires_grad
    assert [g.kind for g in record.graphs] == ["inference"]


@pytest.mark.parametrize("mode", MODES)
def test_detach_and_no_grad_stop_gradients(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            factor = x.exp()
        return x * factor + x.detach() * x

    record = both(fn, with_gradient(5), mode=mode)
    assert all(g.native for g in record.graphs), str(record)


@pytest.mark.parametrize("mode", MODES)
def test_tied_weights(mode: str) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(9, 4)
            self.head = torch.nn.Linear(4, 9, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.table(ids)))

    both(lambda net, ids: net(ids), torch.randint(0, 9, (2, 5)), mode=mode, module=Tied())


@pytest.mark.parametrize("mode", MODES)
def test_graph_breaks(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y * x

    record = both(fn, with_gradient(4, 3), mode=mode)
    assert len(record.graphs) == (4 if mode == "aot" else 2)


def test_sizes_none_and_inputs_among_the_outputs() -> None:
    """What AOT graphs return besides results: sizes for the backward graph, inputs handed through, None."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.reshape(-1) * x.shape[0]).sum() * y + y.detach()

    record = both(fn, with_gradient(3, 4), with_gradient(2), mode="aot", dynamic=True)
    assert [g.reason for g in record.graphs] == ["", ""]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return dy * 7  # not the derivative, so that a differentiated forward shows


def fallback_cases() -> list[tuple[str, Callable[..., torch.Tensor], str]]:
    def changed(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, -1)

    return [
        ("function", lambda x: Doubled.apply(x) * x, "autograd_function_apply"),
        ("alias", changed, "shares memory"),
        ("flat", lambda x: torch.floor(x), "zero everywhere"),
        (
            "statistics",
            lambda x: torch.native_layer_norm(x, [2], None, None, 1e-5)[1],
            "derivative in torch is another",
        ),
        ("number", lambda x: x * x.detach().max().item(), ""),
    ]


@pytest.mark.parametrize(("name", "fn", "reason"), fallback_cases(), ids=lambda v: v if isinstance(v, str) else "")
def test_automatic_mode_says_why_it_takes_aot(name: str, fn: Callable[..., torch.Tensor], reason: str) -> None:
    record = both(fn, with_gradient(4, 2), mode="auto")
    assert record.graphs
    assert all(reason in g.note for g in record.graphs), str(record)


def test_graph_that_cannot_be_exported_is_run_by_torch_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    backend, record = make_aot_ort()
    x = torch.zeros(3, dtype=torch.float8_e4m3fn)
    got = torch.compile(lambda x: x.to(torch.float32) + 1, backend=backend)(x)
    torch.testing.assert_close(got, torch.ones(3))
    assert record.graphs[0].reason
    assert "run by torch" in caplog.text


def test_results_require_gradients_where_eagers_do() -> None:
    """torch calls back for lu_unpack, and does not say which of its results are constants."""
    matrix = torch.randn(3, 3)
    factors, pivots = torch.linalg.lu_factor(matrix)
    factors = factors.detach().requires_grad_()
    backend, record = make_aot_ort(mode="forward")
    got = torch.compile(lambda f: torch.lu_unpack(f, pivots), backend=backend)(factors)
    wanted = torch.lu_unpack(factors, pivots)
    assert [g.kind for g in record.graphs] == ["training"]
    assert [t.requires_grad for t in got] == [t.requires_grad for t in wanted] == [False, True, True]


def _asserts(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x < 9).all())
    torch._assert_async((x > 0).all(), "must be positive")
    return (x * 2).sum()


def _only_asserts(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x < 9).all())
    torch._assert_async((x > 0).all(), "must be positive")
    return x


@pytest.mark.parametrize("mode", ["auto", "aot"])
@pytest.mark.parametrize("fn", [_asserts, _only_asserts])
@pytest.mark.parametrize("gradient", [False, True])
def test_assertions_about_data_are_kept(mode: str, fn: Callable[..., torch.Tensor], gradient: bool) -> None:
    compiled = torch.compile(fn, backend=make_aot_ort(mode=mode)[0])
    good = torch.ones(3, requires_grad=gradient)
    torch.testing.assert_close(compiled(good), fn(good))
    with pytest.raises(RuntimeError, match="must be positive"):
        compiled(-good)
    with pytest.raises(RuntimeError, match="single nonzero value"):
        compiled(10 * good)


def test_one_hot_needs_no_assertions() -> None:
    record = both(lambda x: torch.nn.functional.one_hot(x, 4), torch.tensor([1, 3]), mode="aot")
    assert all(g.native for g in record.graphs), str(record)


@pytest.mark.parametrize("exporter", ["backpass", "torch"])
def test_results_of_every_kind(exporter: str) -> None:
    """Arguments come back as they are, a result that is given twice is one tensor, None stays."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor | None]:
        c = a * b
        return [a, c, None, c, c.sum(), b]

    a, b = torch.randn(3, 4), torch.randn(4, 3).T
    graph = make_fx(fn, tracing_mode="fake")(a, b)
    record = CompileRecord()
    got = compile_graph(graph, "forward", CompileOptions(exporter=exporter, mode="aot"), record)([a, b])
    torch.testing.assert_close(got, fn(a, b))
    assert got[0] is a
    assert got[1] is got[3]
    assert got[5] is b
    assert not record.graphs[0].reason
