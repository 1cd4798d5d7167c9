"""Operators of users may keep what they see: the engine never uses that memory again."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import user_operators
from backpass.dynamo import make_aot_ort
from ortmodule_check import wrap
from torch import nn
from user_operators import KEEPING, KINDS, STYLES, TRACEABLE, Fuzzed

BUDGET = float(os.environ.get("BACKPASS_FUZZ_SECONDS", "600"))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def compiled(module: nn.Module, mode: str) -> Callable[..., Any]:
    return torch.compile(module, backend=make_aot_ort(mode=mode)[0], fullgraph=True)


def close(got: Any, wanted: Any, what: str) -> None:
    assert (got is None) == (wanted is None), what
    if wanted is not None:
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what}: {text}")


def compare(make: Callable[[], nn.Module], front: Callable[[nn.Module], Callable[..., Any]]) -> None:
    module, eager = make(), make()
    ours = user_operators.trained(front(module), list(module.parameters()))
    theirs = user_operators.trained(eager, list(eager.parameters()))
    wanted = list(theirs)  # one after the other: both write to one list
    for step, (got, expected) in enumerate(zip(ours, wanted, strict=True)):
        assert got[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-4)
        for i, pair in enumerate(zip(got[1], expected[1], strict=True)):
            close(*pair, f"step {step}, gradient {i}")
        used = getattr(module, "used", {0}) if step else ()  # the first step's capture calls them too
        for place in expected[2].keys() & used:
            found, tensors = got[2][place], expected[2][place]
            assert len(found) == len(tensors), f"step {step}, operator {place}"
            for i, pair in enumerate(zip(found, tensors, strict=True)):
                close(*pair, f"step {step}, operator {place}, remembered tensor {i}")


class Between(nn.Module):
    """One operator of a user between operators of the engine, whose memory goes from one to the next."""

    def __init__(self, operator: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.operator = operator
        self.first, self.second, self.last = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.operator(torch.tanh(self.first(x)), torch.sigmoid(self.second(x)), 0)
        values = found if isinstance(found, tuple) else (found,)
        return tuple(self.last(torch.tanh(self.last(v * 2)) + 1) for v in values)


def pairs(ways: Iterable[str]) -> list[Any]:
    """All kinds with all ways of keeping; every day each kind and each way once."""
    everyday = {*(("scaled", way) for way in ways), *((kind, "attribute") for kind in KINDS)}
    both = itertools.product(KINDS, ways)
    return [pytest.param(*p, marks=() if p in everyday else pytest.mark.slow) for p in both]


@pytest.mark.parametrize(("kind", "keeping"), pairs(KEEPING))
@pytest.mark.parametrize("style", STYLES)
def test_what_an_operator_keeps_stays(style: str, kind: str, keeping: str) -> None:
    compare(lambda: Between(user_operators.written(style, kind, keeping, True)), wrap)


@pytest.mark.parametrize("mode", ["forward", pytest.param("aot", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "keeping"), pairs(TRACEABLE))
def test_what_an_operator_keeps_stays_in_torch_compile(kind: str, keeping: str, mode: str) -> None:
    operator = user_operators.written("custom_op", kind, keeping, False)
    compare(lambda: Between(operator), lambda m: compiled(m, mode))


def check_seed(seed: int) -> None:
    compare(lambda: Fuzzed(seed), wrap)
    torch._dynamo.reset()
    compare(lambda: Fuzzed(seed, traceable=True), lambda m: compiled(m, "forward"))


@pytest.mark.parametrize("seed", range(3))
def test_random_modules(seed: int) -> None:
    check_seed(seed)


@pytest.mark.slow
def test_random_modules_for_long() -> None:
    end, seed = time.monotonic() + BUDGET, 1000
    while time.monotonic() < end:
        try:
            check_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seed += 1
