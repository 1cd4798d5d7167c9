"""CompiledModule by itself: all that a front end needs besides an export."""

from __future__ import annotations

from typing import Any

import torch
from backpass.torch import ExportedModel, export_module
from backpass.torch.compiled import CompiledModule
from backpass.torch.runtime import EngineGraph
from torch import nn


class Part(nn.Module):
    """Has whatever a result can be, and changes what can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> tuple[Any, ...]:
        before = self.calls.clone()
        self.calls += 1
        counts += x.detach().sum(0)
        y = self.norm(x)
        return y, x, 3, y.detach(), y, before


def compiled(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> CompiledModule:
    exported: ExportedModel = export_module(module, arguments)

    def build(wanted: list[str]) -> EngineGraph:
        return made.load(exported.proto, wanted, None)

    made = CompiledModule(exported, build)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    made.connect({name: (state, name) for name in state})
    return made


def step(run: Any, module: nn.Module) -> tuple[Any, ...]:
    """Two passes, the second without gradients; everything they leave behind."""
    x = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
    counts = torch.ones(3)
    first = run(x, counts)
    (first[0] * torch.arange(12.0).reshape(4, 3)).sum().backward()
    with torch.no_grad():
        second = run(x, counts)
    gradients = [p.grad for p in module.parameters()]
    return [*first, *second], counts, x.grad, gradients, dict(module.named_buffers())


def test_a_front_end_in_ten_lines() -> None:
    ours, theirs = Part(), Part()
    made = compiled(ours, (torch.randn(4, 3), torch.ones(3)))

    def run(*arguments: torch.Tensor) -> Any:
        feeds = made.feeds(arguments)
        return made.run(made.graph(feeds), feeds, arguments)

    got, wanted = step(run, ours), step(theirs, theirs)
    torch.testing.assert_close(got, wanted)
    leaves = got[0]
    assert leaves[0] is leaves[4]
    assert [t.requires_grad for t in leaves[:6] if isinstance(t, torch.Tensor)] == [True, True, False, True, False]
    assert len(made.graphs) == 2
    assert len(set(made.graphs.values())) == 1  # what has gradients can run without


def test_an_argument_that_comes_back_is_the_argument() -> None:
    module = Part()
    x, counts = torch.randn(4, 3), torch.ones(3)
    made = compiled(module, (x, counts))
    feeds = made.feeds((x, counts))
    assert made.run(made.graph(feeds), feeds, (x, counts))[1] is x
