"""Modules that decide by the contents of tensors what to compute: never another result than the module's own."""

from __future__ import annotations

import copy
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import backpass
import pytest
import torch
from backpass.dynamo import backpass as backend
from backpass.ortmodule import ORTModule
from backpass.ortmodule.fallback import ORTModuleTorchModelException
from backpass.torch import to_onnx
from decision_programs import WIDTH, Deciding
from ortmodule_check import Pair, wrap
from rounding import first_wrong, gradients
from torch import nn

SECONDS = float(os.environ.get("BACKPASS_FUZZ_SECONDS", "600"))
CALLS = 6


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
    torch._dynamo.reset()


class Branching(nn.Module):
    def __init__(self, way: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(4, 4), nn.Parameter(torch.tensor(0.1))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(self, x)


def on_weights(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.layer(x)
    return h * 2 if h.sum() > 0 else h - 1


def on_input(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.layer(x) if x.max() > 3 else m.layer(x) * 3


def on_number(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Bounds of a float: torch knows no range of it, and asserts none."""
    mean = x.mean().item()
    return m.layer(x) * mean if mean > 0.1 else -m.layer(x)


def with_number(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A number is a constant to gradients."""
    h = m.layer(x)
    return h * h.max().item() + h.mean().item()


def on_list(m: Any, x: torch.Tensor) -> torch.Tensor:
    row = x[0].tolist()
    return m.layer(x) * row[1] if row[0] >= 0 else m.layer(x)


def on_buffer(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.count += 1
    return m.layer(x) if m.count < 3 else m.layer(x) * 5


def on_equality(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.layer(x) if torch.equal(x, x.abs()) or x.allclose(x * 0) else m.layer(x) * 3


def in_loop(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.layer(x)
    while h.abs().max() > 0.5:
        h = h / 2
    return h


def by_count(m: Any, x: torch.Tensor) -> torch.Tensor:
    for _ in range(int((x > 0).sum()) % 3):
        x = torch.tanh(m.layer(x))
    return m.layer(x)


def in_shapes(m: Any, x: torch.Tensor) -> torch.Tensor:
    chosen = x[x[:, 0] > 0]
    if chosen.shape[0] == 0:
        return m.layer(x).sum()
    return torch.cat([m.layer(x), m.layer(chosen)]).sum()


def asserting(m: Any, x: torch.Tensor) -> torch.Tensor:
    assert x.max() < 100, "too large"
    return m.layer(x)


WAYS = [
    with_number,
    on_weights,
    on_input,
    on_number,
    on_list,
    on_buffer,
    on_equality,
    in_loop,
    by_count,
    in_shapes,
    asserting,
]


def inputs(count: int = CALLS) -> list[torch.Tensor]:
    return [torch.randn(3, 4) * (1 + i % 3) + (i % 3 - 1) for i in range(count)] + [torch.rand(3, 4)]


@pytest.mark.parametrize("seed", range(6))
def test_a_branch_on_weights_is_the_one_the_weights_take(seed):
    torch.manual_seed(seed)
    Pair(Branching(on_weights)).step(torch.randn(2, 4))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_decisions_follow_the_data(way):
    """Everything in the engine: a fallback would be raised."""
    pair = Pair(Branching(way))
    for x in inputs():
        pair.step(x)


def test_a_branch_follows_its_parameter_through_training():
    def on_gate(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.layer(x) * m.gate if m.gate > 0 else m.layer(x) - m.gate

    pair = Pair(Branching(on_gate))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02) for m in (pair.ours, pair.eager)]
    x, signs = torch.randn(3, 4), set()
    for _ in range(8):
        for optimizer in optimizers:
            optimizer.zero_grad()
        pair.step(x, loss=lambda y: y.sum())
        signs.add(bool(pair.eager.gate > 0))
        for optimizer in optimizers:
            optimizer.step()
    assert signs == {True, False}
    assert pair.exports == 2


def test_decisions_are_graphs_that_serve_again():
    pair = Pair(Branching(on_weights))
    x = torch.randn(3, 4)
    for sign in (1, -1, 1, -1, -1, 1):
        with torch.no_grad():
            for module in (pair.ours, pair.eager):
                module.layer.bias.fill_(10.0 * sign)
        pair.step(x)
    assert pair.exports == 2


def test_the_modules_own_error_is_raised():
    ours = ORTModule(Branching(asserting))
    ours(torch.ones(3, 4))
    with pytest.raises(AssertionError, match="too large"):
        ours(torch.full((3, 4), 200.0))


def test_nothing_is_changed_by_a_graph_that_does_not_answer():
    """Random numbers and buffers are as if only the one that answers had run."""

    def random_way(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.count += 1
        x = torch.dropout(x, 0.5, True)
        return m.layer(x) if m.gate > 0 else -m.layer(x)

    ours, drawn = wrap(Branching(random_way)), []
    for gate in (1.0, -1.0, 1.0):
        with torch.no_grad():
            ours.gate.fill_(gate)
        torch.manual_seed(3)
        drawn.append(ours(torch.ones(3, 4)) * gate)
    torch.testing.assert_close(drawn[1], drawn[0])
    torch.testing.assert_close(drawn[2], drawn[0])
    assert int(ours.count) == 3


def test_what_a_graph_cannot_check_is_refused():
    def by_whole_part(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.layer(x) * {0: 1.0, 1: 2.0, -1: 3.0}.get(int(x.sum().item()), 7.0)

    with pytest.raises(ORTModuleTorchModelException, match="in a way that a graph cannot check"):
        wrap(Branching(by_whole_part))(torch.randn(3, 4))
    ours = ORTModule(Branching(by_whole_part))
    for x in inputs():
        torch.testing.assert_close(ours(x), ours.module(x))


def test_too_many_ways_go_to_torch():
    def often(m: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.sum())):
            x = torch.tanh(m.layer(x))
        return m.layer(x)

    ours = ORTModule(Branching(often))
    for i in range(12):
        x = torch.zeros(3, 4)
        x[0, 0] = i
        torch.testing.assert_close(ours(x), ours.module(x), rtol=1e-4, atol=1e-5)
    assert len(ours._manager.variants) <= 8


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_models_take_the_ways_of_their_examples(way):
    """Weights, and the data of the example, decide; conditions are not part of the model."""
    for x in inputs(3):
        module = Branching(way)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = to_onnx(copy.deepcopy(module), (x,))
        found = backpass.InferenceSession(model.SerializeToString()).run(None, {model.graph.input[0].name: x.numpy()})
        assert len(found) == 1
        torch.testing.assert_close(torch.from_numpy(found[0]), module(x).detach(), rtol=1e-4, atol=1e-5)


# ---- programs made at random
def ortmodule(module: nn.Module) -> Any:
    return ORTModule(module)


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend=backend)


def check_training(front: Callable[[nn.Module], Any], seed: int) -> bool:
    """Calls with other inputs, weights that change between them. Whether the engine ran to the end."""
    torch.manual_seed(seed)
    eager = Deciding(seed)
    twin = copy.deepcopy(eager)
    ours = front(twin)
    for i in range(CALLS):
        x = torch.randn(3, WIDTH) * (1 + i % 2) + (i % 3 - 1) * 0.7
        before = copy.deepcopy(eager)
        results = [m(x) for m in (ours, eager)]
        assert torch.allclose(*results, rtol=1e-3, atol=1e-4), f"seed {seed}, call {i}: got, expected {results}"
        for module, result in zip((twin, eager), results, strict=True):
            module.zero_grad()
            result.square().mean().backward()
        check_members(twin, eager, before, x, f"seed {seed}, call {i}")
        with torch.no_grad():  # both by the same gradients: each call is judged by itself
            for mine, its in zip(twin.parameters(), eager.parameters(), strict=True):
                if its.grad is not None:
                    its -= 0.1 * its.grad.clamp(-1, 1)
                    mine.copy_(its)
    return front is not ortmodule or ours._manager.fallback.reason is None


def check_members(ours: nn.Module, eager: nn.Module, before: nn.Module, x: torch.Tensor, what: str) -> None:
    found, wanted = gradients(ours), gradients(eager)
    wrong = first_wrong(found, wanted, before, x)
    assert wrong is None, f"{what}, {wrong}: got {found[wrong]}, expected {wanted[wrong]}"
    for (name, a), (_, b) in zip(ours.named_buffers(), eager.named_buffers(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4), f"{what}, {name}: got {a}, expected {b}"


def check_model(seed: int) -> None:
    torch.manual_seed(seed)
    module, x = Deciding(seed), torch.randn(3, WIDTH)
    try:
        model = to_onnx(copy.deepcopy(module), (x,))
    except Exception:  # refused: no model is no wrong model
        return
    (found,) = backpass.InferenceSession(model.SerializeToString()).run(None, {model.graph.input[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), module(x).detach(), rtol=1e-3, atol=1e-4, msg=str(seed))


def test_random_programs_equal_eager():
    ran = [check_training(ortmodule, seed) for seed in range(6)]
    assert sum(ran) >= 5  # others are left to torch, by the policy


def test_gradients_that_cancel_are_judged_by_rounding():
    """A bias in front of a batch norm: rows of -304, 201 and 103 that add up to zero, and to 4e-3 in float32."""
    assert check_training(ortmodule, 1189)


def test_rounding_excuses_no_wrong_gradients():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    before, x = copy.deepcopy(module), 1 + 1e-3 * torch.randn(3, 4)
    module(x).square().mean().backward()
    wanted = gradients(module)
    assert first_wrong(wanted, wanted, before, x) is None
    for name, gradient in wanted.items():
        wrong = wanted | {name: gradient + 0.05 * max(1.0, float(gradient.abs().max()))}
        assert first_wrong(wrong, wanted, before, x) == name


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_compiled_equal_eager(seed):
    check_training(compiled, seed)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_as_models_equal_eager(seed):
    check_model(seed)


@pytest.mark.slow
def test_many_random_programs():
    """BACKPASS_FUZZ_SECONDS of them; the message names the seed."""
    end, seed, ran = time.monotonic() + SECONDS, 1000, []
    while time.monotonic() < end:
        ran.append(check_training(ortmodule, seed))
        check_model(seed)
        if seed % 5 == 0:
            check_training(compiled, seed)
            torch._dynamo.reset()
        seed += 1
    print(f"{len(ran)} programs, {sum(ran)} in the engine to the end")
    assert sum(ran) > len(ran) / 2
