"""Graphs of torch.compile that are lowered without torch.export, and those that are left to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from backpass.dynamo import make_aot_ort
from backpass.torch import resolve
from torch import nn


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def no_export(*_: Any, **__: Any) -> Any:
    raise AssertionError("torch.export was asked")


def compare(function: Callable[..., Any], *arguments: torch.Tensor) -> None:
    """Values, gradients, and what is changed in place are eager's; there is one graph, and none of AOT."""
    given = [a.detach().clone().requires_grad_(a.requires_grad) for a in arguments]
    backend, record = make_aot_ort(mode="forward")
    expected, found = function(*arguments), torch.compile(function, backend=backend, fullgraph=True)(*given)
    torch.testing.assert_close(found, expected)
    for result in (expected, found):
        leaves = [t for t in torch.utils._pytree.tree_leaves(result) if t.requires_grad]
        if leaves:
            sum((leaf * torch.linspace(0.5, 2, leaf.numel()).view_as(leaf)).sum() for leaf in leaves).backward()
    for mine, theirs in zip(given, arguments, strict=True):
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(mine.grad, theirs.grad)
    (graph,) = record.graphs
    assert graph.native


def x(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, requires_grad=True)


def under_no_grad(a: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = a.abs().amax(-1, keepdim=True)
        scale = scale * 2
    return a / scale + scale


def in_place(a: torch.Tensor) -> torch.Tensor:
    b = a * 2
    b.add_(1)
    c = b.relu_()
    return b * c


def counted(a: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    count.add_(1)
    return a * count


def parts(a: torch.Tensor) -> Any:
    first, second = a.split([1, 3], -1)
    values, places = second.max(-1)
    return first * 2, values, places


PLAIN = {
    "indices": (lambda a: a[1:, None, ..., 0] + a[:, :, 2][1:, None], x(3, 4, 5)),
    "by_tensors": (lambda a: a[torch.arange(2), 1] + a[torch.arange(2)].sum(1), x(3, 4, 5)),
    "numbers_first": (lambda a: 2 - 3 / (1 + a * a), x(3, 4)),
    "already_contiguous": (lambda a: a.contiguous().to(torch.float32).reshape(-1) + 1, x(3, 4)),
    "varargs": (lambda a: a.view(2, -1).permute(1, 0).expand(4, 6, 2).flatten(1), x(3, 4)),
    "names": (lambda a: F.layer_norm(a, normalized_shape=(4,), eps=1e-3).sum(dim=0, keepdim=True), x(3, 4)),
    "lists": (lambda a: torch.cat([torch.stack([a, a * 2], 1), a[:, None]], dim=1), x(3, 4)),
    "several_results": (parts, x(3, 4)),
    "the_same_twice": (lambda a: torch.addmm(a, a, a.mT), x(4, 4)),
    "no_grad": (under_no_grad, x(3, 4)),
    "detached": (lambda a: a * a.detach(), x(3, 4)),
    "changed_in_place": (in_place, x(3, 4)),
    "argument_changed": (counted, x(3, 4), torch.zeros(())),
    "made_of_numbers": (lambda a: a + torch.arange(4) * torch.full((3, 1), 0.5) + a.new_zeros(4), x(3, 4)),
    "attention": (lambda a: F.scaled_dot_product_attention(a, a, a, is_causal=True), x(1, 2, 3, 4)),
    "losses": (lambda a: F.cross_entropy(a, torch.arange(3), label_smoothing=0.1), x(3, 4)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_graphs_are_not_traced_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.export, "export", no_export)
    function, *arguments = PLAIN[name]
    compare(function, *arguments)


def test_modules_with_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of batch normalisation are written back."""
    monkeypatch.setattr(torch.export, "export", no_export)
    torch.manual_seed(0)
    make = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(2)]
    eager = nn.Sequential(*make)
    images = torch.randn(4, 2, 5, 5)
    eager(images)
    mine = nn.Sequential(*[nn.Sequential(part) for part in eager])
    state = {name: value.clone() for name, value in eager.state_dict().items()}
    eager(images).square().sum().backward()
    expected = {name: value.clone() for name, value in eager.state_dict().items()}
    gradients = [p.grad.clone() for p in eager.parameters()]
    eager.load_state_dict(state)
    eager.zero_grad()
    backend, record = make_aot_ort(mode="forward")
    torch.compile(mine, backend=backend)(images).square().sum().backward()
    assert [g.kind for g in record.graphs] == ["training"]
    torch.testing.assert_close(dict(eager.state_dict()), expected)
    for parameter, gradient in zip(eager.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)


def changed_through_a_view(a: torch.Tensor) -> torch.Tensor:
    b = a * 2
    b[0].add_(1)
    return b


def test_what_is_not_plain_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    functional = resolve.functional

    def told(module: Any) -> Any:
        try:
            return functional(module)
        except resolve.NotPlainError as reason:
            refused.append(str(reason))
            raise

    monkeypatch.setattr(resolve, "functional", told)
    compare(changed_through_a_view, x(3, 4))
    assert refused == ["it changes memory that may have several names"]
    backend, record = make_aot_ort(mode="forward")
    compiled = torch.compile(lambda a: a.sum(0) * a.shape[0], backend=backend, dynamic=True)
    for extent in (3, 5):
        torch.testing.assert_close(compiled(torch.ones(extent, 2)), torch.full((2,), float(extent**2)))
    assert len(record.graphs) == 1
    assert "tensors of known sizes" in refused[1]


def test_overlapping_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed under one name is seen under the other."""
    for first, second in ((0, 0), (0, 2)):
        buffers = [torch.arange(8.0) for _ in range(2)]
        backend, _ = make_aot_ort(mode="auto")
        for i, function in enumerate((counted, torch.compile(counted, backend=backend))):
            function(buffers[i][first : first + 4], buffers[i][second : second + 4])
        torch.testing.assert_close(*buffers)
