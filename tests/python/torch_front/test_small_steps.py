"""What a step costs besides its arithmetic, counted in calls of Python, and what makes it little: calls and modules
that are recognised at a glance, which must not take one thing for another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backpass import _core
from backpass.optim import FusedAdam
from backpass.ortmodule import FallbackPolicy, ORTModule, RuntimeOptions
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

STRICT = RuntimeOptions(fallback_policy=FallbackPolicy.FALLBACK_DISABLE)

# Calls of Python functions and of C functions from Python, by our own code and torch's, for four parameters.
KEPT = {"forward": 55, "backward": 53, "update": 19, "zero": 2}
TOLERANCE = 0.1
# For each further one: forward asks whether its sign is put off, and torch's tensors are hashed by Python.
OF_A_PARAMETER = {"forward": 1, "backward": 0, "update": 2, "zero": 0}


class Sum(nn.Module):
    """The sum of its parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.full((8,), 0.5)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, *self.parts]).sum()


def calls(work: Callable[[], Any]) -> int:
    """How many functions are called by what is called often."""
    for _ in range(3):
        work()
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def calls_of_a_step(parameters: int) -> dict[str, int]:
    module = Sum(parameters)
    trained, optimizer, x = ORTModule(module, options=STRICT), FusedAdam(module.parameters()), torch.zeros(1)

    def forward() -> torch.Tensor:
        loss: torch.Tensor = trained(x)
        return loss

    def both() -> None:
        forward().backward()

    both()
    counts = {"forward": calls(forward), "update": calls(optimizer.step)}
    counts["backward"] = calls(both) - counts["forward"]
    counts["zero"] = calls(optimizer.zero_grad)
    return counts


def test_a_step_is_few_calls_whatever_the_number_of_parameters() -> None:
    few, many = calls_of_a_step(4), calls_of_a_step(36)
    assert all(few[name] <= count * (1 + TOLERANCE) for name, count in KEPT.items()), few
    assert all((many[name] - few[name]) / 32 <= count for name, count in OF_A_PARAMETER.items()), (few, many)


# ---- calls
def test_kinds_tell_types_and_extents() -> None:
    def kinds(*tensors: Any) -> bytes | None:
        return _core.kinds_of(tensors)

    base = torch.zeros(2, 3)
    assert kinds(base) == kinds(torch.ones(3, 2).t())  # strides are not part of a graph
    assert kinds(base) == kinds(nn.Parameter(base))
    others = [torch.zeros(3, 2), torch.zeros(6), torch.zeros(2, 3, 1), base.double(), base.long(), base.bfloat16()]
    assert len({kinds(t) for t in [base, *others]}) == 1 + len(others)
    assert kinds(torch.zeros(2), torch.zeros(3)) != kinds(torch.zeros(2, 3))
    assert kinds(torch.zeros(0)) != kinds(torch.zeros(()))


@pytest.mark.parametrize(
    "thing",
    [None, 1.0, "x", [torch.zeros(1)], torch.zeros(2, device="meta"), torch.zeros(2).to_sparse(), object()],
    ids=["none", "number", "text", "list", "meta", "sparse", "object"],
)
def test_other_things_have_no_kinds(thing: Any) -> None:
    assert _core.kinds_of((thing,)) is None
    assert _core.kinds_of((torch.zeros(1), thing)) is None


def test_subclasses_have_no_kinds() -> None:
    class Marked(torch.Tensor):
        pass

    assert _core.kinds_of((torch.zeros(1).as_subclass(Marked),)) is None


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.factor = 1.0

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, times: float = 1.0) -> torch.Tensor:
        z = x @ torch.diag(self.weight).to(x.dtype) * self.factor * times + torch.zeros(2).to(x.dtype)
        return z if y is None else z + y


def test_calls_that_look_alike_are_told_apart() -> None:
    module = Scaled()
    trained = ORTModule(module, options=STRICT)
    x, y = torch.rand(3, 2), torch.rand(3, 2)
    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}), ((x, y), {}), ((x,), {"y": y}), ((), {"y": y, "x": x}), ((x, None, 2.0), {}),
        ((x,), {"times": 2.0}), ((x, y), {"times": 3.0}), ((x.double(),), {}), ((x[:2],), {}),
        ((x.t().contiguous().t(),), {}), ((x,), {}),
    ]  # fmt: skip
    for _ in range(2):
        for args, kwargs in asked:
            torch.testing.assert_close(trained(*args, **kwargs), module(*args, **kwargs))
        module.factor += 1.0
        module.weight = nn.Parameter(module.weight.detach() * 2)


def test_types_in_force_are_told_apart() -> None:
    trained = ORTModule(nn.Linear(4, 4), options=STRICT)
    x = torch.rand(2, 4)
    assert trained(x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert trained(x).dtype == torch.bfloat16
    assert trained(x).dtype == torch.float32


# ---- modules
def test_noted_tables() -> None:
    child, table = object(), {"child": None, "n": 1, "flag": True, "weight": 3}
    table["child"] = child  # type: ignore[assignment]

    def unchanged() -> bool:
        return _core.all_as_noted(
            [(table, 4)], [(table, "child", child)], [(table, "n", 1), (table, "flag", True)], [(table, "weight")]
        )

    assert unchanged()
    for name, value in [("child", object()), ("n", 2), ("n", 1.0), ("n", True), ("flag", 1), ("weight", None)]:
        before, table[name] = table[name], value  # type: ignore[assignment]
        assert not unchanged(), (name, value)
        table[name] = before
        assert unchanged()
    del table["n"]
    assert not unchanged()
    table["m"] = 1
    assert not unchanged()


def test_what_compares_by_raising_is_heard() -> None:
    class Strange:
        def __eq__(self, other: object) -> bool:
            raise ValueError("not to be compared")

        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(ValueError, match="not to be compared"):
        _core.all_as_noted([], [], [({"a": Strange()}, "a", Strange())], [])


# ---- the optimizer, which leaves out torch's watch where nobody watches
def stepped() -> tuple[FusedAdam, nn.Parameter]:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return FusedAdam([weight], lr=0.1), weight


def test_hooks_of_an_optimizer_are_called() -> None:
    optimizer, _ = stepped()
    seen: list[str] = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: seen.append("before")),
        optimizer.register_step_post_hook(lambda *_: seen.append("after")),
        register_optimizer_step_pre_hook(lambda *_: seen.append("before any")),
        register_optimizer_step_post_hook(lambda *_: seen.append("after any")),
    ]
    optimizer.step()
    assert seen == ["before any", "before", "after", "after any"]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert len(seen) == 4
    assert optimizer.param_groups[0]["step"] == 2


def test_a_hook_may_give_the_closure() -> None:
    optimizer, weight = stepped()
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((opt, lambda: 7.0), {}))
    assert optimizer.step() == 7.0
    assert weight[0] < 1


def test_a_profiler_sees_steps() -> None:
    optimizer, _ = stepped()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
        optimizer.zero_grad()
    names = {event.key for event in profile.key_averages()}
    assert {"Optimizer.step#FusedAdam.step", "Optimizer.zero_grad#FusedAdam.zero_grad"} <= names


def test_schedulers_see_steps(recwarn: pytest.WarningsRecorder) -> None:
    optimizer, _ = stepped()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]


def test_only_what_has_a_gradient_changes() -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = FusedAdam(weights, lr=0.1)
    weights[1].grad = torch.ones(3)
    versions = [w._version for w in weights]
    optimizer.step()
    assert [w._version - v for w, v in zip(weights, versions, strict=True)] == [0, 1, 0]
    assert list(optimizer.state) == [weights[1]]
    optimizer.zero_grad()
    assert all(w.grad is None for w in weights)


def test_a_state_that_is_replaced_is_used() -> None:
    optimizer, weight = stepped()
    optimizer.step()
    optimizer.state[weight] = {"exp_avg": torch.full((3,), 5.0), "exp_avg_sq": torch.full((3,), 5.0)}
    optimizer.step()
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"], torch.full((3,), 5.0 * 0.9 + 0.1))
