"""A module that is changed after it was exported computes what it says now."""

from __future__ import annotations

import enum
import functools
import gc
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from backpass.ortmodule.fallback import ORTModuleTorchModelException
from ortmodule_check import wrap
from torch import nn


class Side(enum.Enum):
    LEFT = 1.0
    RIGHT = -1.0


class Net(nn.Module):
    gain = 1.0  # of the class, until an instance gets its own

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.steps = [1.0, [2.0]]
        self.table = {"a": 1.0}
        self.settings = types.SimpleNamespace(shift=0.5)
        self.function = functools.partial(F.leaky_relu, negative_slope=0.1)
        self.side = Side.LEFT
        self.part = slice(0, 3)
        self.scale = np.float32(1.5)
        self.count = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.function(self.linear(x)) * self.gain * self.steps[1][0]  # type: ignore[index]
        y = (y * self.table["a"] + self.settings.shift)[:, self.part] * float(self.scale) * self.side.value
        return y + (torch.ones(1, dtype=torch.int64) * self.count).dtype.itemsize


def _narrow(net: Net) -> None:
    net.linear.weight = nn.Parameter(torch.randn(2, 4))
    net.linear.bias = nn.Parameter(torch.randn(2))


CHANGES: dict[str, Callable[[Net], Any]] = {
    "an attribute over the class's": lambda net: setattr(net, "gain", 3.0),
    "inside a list": lambda net: net.steps[1].__setitem__(0, 5.0),  # type: ignore[attr-defined]
    "another list": lambda net: setattr(net, "steps", [1.0, [7.0]]),
    "inside a dictionary": lambda net: net.table.update(a=4.0),
    "inside settings": lambda net: setattr(net.settings, "shift", -1.0),
    "other settings": lambda net: setattr(net, "settings", types.SimpleNamespace(shift=9.0)),
    "another partial function": lambda net: setattr(
        net, "function", functools.partial(F.leaky_relu, negative_slope=2.0)
    ),
    "another forward": lambda net: setattr(net.linear, "forward", lambda x: x[:, :3] * 2),
    "a bound forward": lambda net: setattr(
        net.linear, "forward", types.MethodType(lambda self, x: F.linear(x, self.weight), net.linear)
    ),
    "a member of an enumeration": lambda net: setattr(net, "side", Side.RIGHT),
    "another slice": lambda net: setattr(net, "part", slice(1, 3)),
    "a scalar of numpy's": lambda net: setattr(net, "scale", np.float32(2.5)),
    "a number of another type": lambda net: setattr(net, "count", 1.0),
    "a hook": lambda net: net.linear.register_forward_hook(lambda module, args, result: result * 2),
    "no bias": lambda net: setattr(net.linear, "bias", None),
    "other shapes": _narrow,
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name: str) -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 4)
    ours = wrap(net)
    torch.testing.assert_close(ours(x), net(x))
    CHANGES[name](net)
    torch.testing.assert_close(ours(x), net(x))
    assert len(ours._manager.variants) == 2
    torch.testing.assert_close(ours(x), net(x))
    assert len(ours._manager.variants) == 2


def test_tensors_that_take_the_place_of_others_in_memory() -> None:
    """Python gives the id of an object that is gone to the next one."""

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.masks = [torch.zeros(1)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.masks[0].shape[0]

    net, x = Sized(), torch.ones(2)
    ours = wrap(net)
    for i in range(21):
        net.masks = [torch.zeros(i % 7 + 1)]
        gc.collect(1)  # what the last round made: to look through all modules takes most of a second
        assert ours(x).tolist() == [i % 7 + 1] * 2


def test_parameters_under_other_names() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.a if hasattr(self, "a") else self.b)

    net, x = Either(), torch.randn(2, 3)
    ours = wrap(net)
    ours(x)
    del net.a
    net.b = nn.Parameter(torch.full((3,), 2.0))
    torch.testing.assert_close(ours(x), 2 * x)


def test_backward_hooks_that_come_late_are_refused() -> None:
    net, x = Net(), torch.randn(5, 4)
    ours = wrap(net)
    ours(x)
    handle = net.linear.register_full_backward_hook(lambda *_: None)
    with pytest.raises(ORTModuleTorchModelException, match="backward hooks of Linear"):
        ours(x)
    handle.remove()
    ours(x)
    assert len(ours._manager.variants) == 1
