"""Reading, writing and naming by index: torch refuses what is out of range, also what ONNX would count from the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from backpass import ORTModule
from torch import nn
from torch.nn import functional

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CLASSES = 6

FUNCTIONS: dict[str, tuple[str, Function]] = {
    "gather": ("GatherElements", lambda x, i: x.gather(1, i.view(-1, 1))),
    "loss written out": (
        "GatherElements",
        lambda x, i: -functional.log_softmax(x, -1).gather(-1, i.view(-1, 1)).mean(),
    ),
    "scatter": ("ScatterElements", lambda x, i: torch.zeros(CLASSES, 3).scatter(0, i.view(-1, 1), x[:, :1])),
    "scatter_add": ("ScatterElements", lambda x, i: torch.zeros(3, CLASSES).scatter_add(1, i.view(-1, 1), x)),
    "index_add": ("ScatterND", lambda x, i: x.index_add(1, i, torch.ones(3, 3))),
    "index_copy": ("ScatterND", lambda x, i: x.index_copy(1, i, torch.ones(3, 3))),
    "one_hot": ("Gather", lambda x, i: functional.one_hot(i, CLASSES).float() + x.sum()),
}


@pytest.mark.parametrize("index", [-100, -1, CLASSES])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_index_out_of_range_is_refused(name: str, index: int) -> None:
    operator, function = FUNCTIONS[name]

    class Module(nn.Module):
        def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            return function(x, places)

    module = ORTModule(Module())
    x = torch.randn(3, CLASSES, requires_grad=True)
    good, bad = torch.tensor([0, CLASSES - 1, 2]), torch.tensor([0, index, 2])
    torch.testing.assert_close(module(x, good), function(x, good))
    with pytest.raises(
        Exception, match=rf"\[{operator} '.*'\] index at position 1: got {index}, expected one in \[0, 6\)"
    ):
        module(x, bad)
    with pytest.raises((IndexError, RuntimeError)):
        function(x, bad)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_a_batch_of_nothing_leaves_statistics_alone(kind: type[nn.Module]) -> None:
    """Also once extents are symbols: batches of three sizes come before it."""
    reference, trained = kind(3), kind(3)
    module = ORTModule(trained)
    extents = (4, 5) if kind is nn.BatchNorm2d else ()
    for batch in (4, 6, 3, 0, 5):
        x = torch.randn(batch, 3, *extents)
        for run, owner in ((reference, reference), (module, trained)):
            owner.zero_grad()
            run(x.clone().requires_grad_()).square().sum().backward()
        for (name, want), got in zip(reference.state_dict().items(), trained.state_dict().values(), strict=True):
            torch.testing.assert_close(got, want, msg=lambda text, n=name, b=batch: f"{n} after {b}: {text}")
        torch.testing.assert_close(trained.weight.grad, reference.weight.grad, rtol=1e-4, atol=1e-4)


def test_of_equal_maxima_one_gets_the_gradient() -> None:
    x = torch.ones(2, 3, 8, 7)
    x[0, 0, 2, 2] = float("nan")
    x[1, 1, 3:5] = 2
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    pool = nn.AdaptiveMaxPool2d((3, 2), return_indices=True)
    (y, places), (want, their_places) = ORTModule(pool)(ours), pool(theirs)
    torch.testing.assert_close(y, want, equal_nan=True)
    assert torch.equal(places, their_places)
    y.nan_to_num().sum().backward()
    want.nan_to_num().sum().backward()
    assert torch.equal(ours.grad, theirs.grad)
