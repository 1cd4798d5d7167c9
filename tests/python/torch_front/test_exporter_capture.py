"""Capture: where gradients stop, what is changed in place, branches that depend on data."""

from __future__ import annotations

from typing import Any

import backpass
import pytest
import torch
from backpass.torch import capture, export_module
from exporter_check import Function, check, check_values, ops_of, run
from torch import nn

torch.manual_seed(5)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def stops(a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad():
        scale = (a * 2).mean()
        with torch.enable_grad():
            inner = a.sin()
        count = (a > 0).sum()
    return a * scale + b.detach() * b + inner + count, (a * b).detach()


def test_no_grad_and_detach_stop_gradients() -> None:
    exported = check(stops, (x(3, 4), x(4)))
    assert ops_of(exported)["StopGradient"] == 3
    check(stops, (x(3, 4), x(4)), [(x(5, 4), x(4))])


@torch.inference_mode()
def doubled(a: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return a * 2


def stops_by_inference_mode(a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.inference_mode():
        scale = (a * torch.tensor([1.0, 2.0, 3.0, 4.0])).mean()
        with torch.inference_mode(False):
            inner = a.sin()
        scale = scale + 1
    with torch.no_grad(), torch.inference_mode(False):
        outer = b.cos()
    return a * scale.clone() + doubled(b).clone() * b + inner + outer


def test_inference_mode_stops_gradients() -> None:
    enter = torch.inference_mode.__enter__
    check(stops_by_inference_mode, (x(3, 4), x(4)))
    check(stops_by_inference_mode, (x(3, 4), x(4)), [(x(5, 4), x(4))])
    assert torch.inference_mode.__enter__ is enter


class Hooked(nn.Linear):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        b = super().forward(a)
        b.register_hook(lambda gradient: gradient * 3)
        return b + 1


def test_tensor_hooks_are_refused() -> None:
    register = torch.Tensor.register_hook
    with pytest.raises(NotImplementedError, match="hook of a tensor"):
        export_module(Hooked(4, 4), (x(3, 4),))
    assert torch.Tensor.register_hook is register


def test_collectives_are_refused() -> None:
    dist = torch.distributed

    def function(a: torch.Tensor) -> torch.Tensor:
        b = a * 2
        dist.all_reduce(b)
        return b + 1

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(backpass.Unsupported, match="got a collective"):
            export_module(Function(function), (x(3),))
    finally:
        dist.destroy_process_group()


def fresh(a: torch.Tensor) -> Any:
    y = a * 2
    y.add_(1)
    z = y * 2 + y.mul_(3)
    return z, y


def through_a_view(a: torch.Tensor) -> Any:
    y = a * 2
    first = y[0]
    first.add_(1)
    flat = y.view(-1)
    y.mul_(2)
    return y, flat, first


def through_a_reshape(a: torch.Tensor) -> Any:
    y = a * 3
    flat = y.reshape(-1)
    y.add_(1)
    return flat + 0


def widening(a: torch.Tensor) -> Any:
    counts = (a > 0).sum(0)
    counts.add_(2)
    total = counts.float()
    total.add_(a[0].double().sum())
    return counts, total


@pytest.mark.parametrize(
    ("function", "again"), [(fresh, False), (through_a_view, True), (through_a_reshape, True), (widening, True)]
)
def test_changes_in_place(function: Any, again: bool) -> None:
    a = x(3, 4)
    check(function, (a,))
    assert capture(Function(function), (a,)).traced_again == again


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.mean: torch.Tensor
        self.calls: torch.Tensor

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.mean.mul_(0.9)
        self.mean.add_(a.detach().mean(0), alpha=0.1)
        return self.norm(a) - self.mean + self.calls


def test_buffers_that_change_come_back_and_are_not_changed_by_capture() -> None:
    module = Statistics().train()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    exported = check(module, (x(5, 4),), [(x(2, 4),)])
    changed = {o.target for o in exported.outputs if o.kind == "buffer_mutation"}
    assert changed == {"calls", "mean", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert not capture(module, (x(5, 4),)).traced_again


def test_residual_added_in_place() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, a: torch.Tensor) -> Any:
            b = self.norm(a)
            b += a
            first, second = b.chunk(2, 1)
            return b, first * second

    module = Residual().train()
    check(module, (x(5, 4),))
    assert not capture(module, (x(5, 4),)).traced_again


def test_a_part_changed_in_place_changes_the_whole() -> None:
    def function(a: torch.Tensor) -> Any:
        b = a * 2
        first, _ = b.chunk(2, 1)
        first.add_(1)
        return b

    check_values(function, (x(5, 4),))  # torch itself refuses the gradient
    assert capture(Function(function), (x(5, 4),)).traced_again


def test_one_norm_used_twice_sees_its_first_update() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return self.norm(self.norm(a) * 2 + a)

    check(Twice().train(), (x(5, 4),))


class Skips(nn.Module):
    """Layer drop: a branch that depends on a random number."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.layer = rate, nn.Linear(4, 4)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a if torch.rand([]) < self.rate else self.layer(a)


def test_branches_that_depend_on_data_are_taken_as_the_example_takes_them(capfd: pytest.CaptureFixture[str]) -> None:
    for rate, nodes in ((0.0, {"Gemm"}), (1.0, set())):
        module = Skips(rate)
        assert capture(module, (x(2, 4),)).draft
        exported = check_values(module, (x(2, 4),))
        assert set(ops_of(exported)) & {"Gemm"} == nodes
    printed = capfd.readouterr()
    assert "graph" not in printed.out + printed.err


class Masked(torch.nn.Module):
    """torch's layers look whether a mask is the causal one."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), 1)

    def forward(self, a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.decoder(a, self.encoder(a, mask), mask)


def test_masks_are_not_looked_into() -> None:
    """A graph captured with a causal mask serves others."""
    module, a = Masked(), x(5, 3, 8)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    captured = capture(module, (a, causal))
    assert not captured.draft
    assert not captured.traced_again
    exported = check_values(module, (a, causal))
    for mask in (torch.zeros(5, 5), causal.T, causal):
        result, _ = run(exported, module, (a, mask))
        torch.testing.assert_close(result, module(a, mask), rtol=1e-4, atol=1e-5)


def test_a_value_changed_in_an_input_is_reported() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * 2

    a = x(3)
    exported = check_values(function, (a.clone(),))
    assert [(o.kind, o.target) for o in exported.outputs] == [("input_mutation", 0), ("user", 0)]
    result, _ = run(exported, Function(function), (a,))
    assert torch.allclose(result, (a + 1) * 2)


def test_custom_function_is_one_node() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a)
            return a**3

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
            (a,) = ctx.saved_tensors
            return dy * a * 7  # not the derivative: it must be this function that is called

    exported = check(lambda a: Cube.apply(a * 2) + 1, (x(3),))
    assert ops_of(exported)["PythonOp"] == 1
    assert len(exported.python_ops) == 1
    assert exported.python_ops[0].endswith("Cube")


def test_what_has_no_lowering_is_run_by_torch() -> None:
    exported = check(lambda a: torch.linalg.matrix_exp(a) * 2, (x(3, 3) * 0.1,))
    assert [f.op for f in exported.fallbacks] == ["aten.linalg_matrix_exp.default"]
    assert "no lowering" in exported.fallbacks[0].reason
    assert ops_of(exported)["ATen"] == 1


class DetachedWrite(torch.nn.Module):
    """Changes something through what detach() returned."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.count = torch.nn.Buffer(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        {"weight": self.weight, "count": self.count, "result": y}[self.what].detach().add_(1.0)
        return y + self.weight + self.count


def test_writing_through_detach() -> None:
    check(DetachedWrite("count"), (torch.randn(3, 4),))
    check(lambda a: a.detach().unsqueeze_(0) + torch.tensor([1.0, 2.0]), (x(3, 2),))  # nothing is written
    for what in ("weight", "result"):
        with pytest.raises(backpass.Unsupported, match="changed in place"):
            export_module(DetachedWrite(what), (torch.randn(3, 4),))
    with pytest.raises(backpass.Unsupported, match="changed in place"):
        export_module(torch.nn.Embedding(5, 4, max_norm=0.5), (torch.tensor([0, 1]),))


class ShrinkingWeight(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return super().forward(x)


def test_changing_a_parameter_is_refused() -> None:
    with pytest.raises(backpass.Unsupported, match="parameter 'weight'"):
        export_module(ShrinkingWeight(4, 4), (torch.randn(3, 4),))


class QuietWrite(torch.nn.Linear):
    """Changes its result in place under no_grad."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        z = x * 2
        with torch.no_grad():
            z.mul_(3)
            if self.training:
                y.mul_(2)
        return y * y + z


def test_writing_under_no_grad() -> None:
    module = QuietWrite(4, 4)
    check_values(module.eval(), (torch.randn(3, 4),))
    with pytest.raises(backpass.Unsupported, match="under no_grad"):
        export_module(module.train(), (torch.randn(3, 4),))
    with pytest.raises(backpass.Unsupported, match="under no_grad"):
        export_module(module.eval(), (torch.randn(3, 4, requires_grad=True),))
