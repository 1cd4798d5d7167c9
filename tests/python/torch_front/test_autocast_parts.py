"""torch.autocast around operators that are made of those it casts: the same element types as in eager torch, results
and gradients about as near to exact ones as its own, and nothing left to PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import backpass.dynamo  # noqa: F401  # registers its backend
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from backpass.torch import autocast
from backpass.trainer.engine import Description, Engine, Settings
from ortmodule_check import tensors_in, wrap
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

FLOAT, BFLOAT = torch.float32, torch.bfloat16
Results = tuple[list[torch.Tensor], list[torch.Tensor]]


def results_of(module: nn.Module, args: tuple[Any, ...], dtype: torch.dtype | None) -> Results:
    """Results, and gradients of parameters, then of arguments."""
    module.zero_grad()
    given = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        results = list(tensors_in(module(*given)))
    chance = torch.Generator().manual_seed(1)
    weighted = [(r.double() * torch.randn(r.shape, generator=chance)).sum() for r in results]
    torch.stack(weighted).sum().backward()
    leaves = [*module.parameters(), *given]
    return results, [leaf.grad for leaf in leaves if leaf.grad is not None]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm().clamp(min=1e-6))


def check(module: nn.Module, args: tuple[torch.Tensor, ...], ours: nn.Module | None = None) -> None:
    twin, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    ours = wrap(copy.deepcopy(module)) if ours is None else ours
    found, theirs = results_of(ours, args, BFLOAT), results_of(twin, args, BFLOAT)
    goal = results_of(exact, tuple(a.double() if a.is_floating_point() else a for a in args), None)
    for a, b, c in zip(found, theirs, goal, strict=True):
        assert [t.dtype for t in a] == [t.dtype for t in b]
        for mine, other, best in zip(a, b, c, strict=True):
            assert mine.shape == other.shape
            assert distance(mine, best) <= 2 * distance(other, best) + 2**-7


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


class Calls(nn.Module):
    """Calls a function with arguments and weights."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([torch.randn(shape) for shape in shapes])

    def forward(self, *x: torch.Tensor) -> Any:
        return self.function(*x, *self.weights)


# ---- einsum
EQUATIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "bld,ed->ble": ((2, 3, 8), (4, 8)),
    "...d,de->...e": ((2, 3, 4), (4, 5)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "td,edf,te->tf": ((6, 8), (3, 8, 5), (6, 3)),
    "ij,jk,kl->il": ((3, 4), (4, 5), (5, 2)),
    "bi,ij->bj": ((1, 4), (4, 5)),
    "i,j->ij": ((3,), (4,)),  # no product of matrices in it
    "ij,ij->ij": ((3, 4), (3, 4)),
}


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str, dtype: torch.dtype) -> None:
    first, *others = EQUATIONS[equation]
    check(Calls(lambda *operands: torch.einsum(equation, *operands), *others), (of(dtype, *first),))


def test_einsum_of_one() -> None:
    check(Calls(lambda x: torch.einsum("ii->i", x)), (of(FLOAT, 4, 4),))


def test_extents_vary() -> None:
    module = Calls(lambda x, w: torch.einsum("btd,bsd->bts", F.linear(x, w), x @ w), (8, 8))
    ours = wrap(copy.deepcopy(module))
    for extents in ((2, 3), (4, 3), (5, 3), (7, 3), (7, 6), (7, 9), (1, 5)):
        check(module, (of(FLOAT, *extents, 8),), ours)
    assert len(ours._manager.variants) <= 4


# ---- recurrent layers
KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm with projections": (nn.LSTM, {"proj_size": 3}),
    "gru": (nn.GRU, {}),
    "rnn": (nn.RNN, {}),
}


class Recurrent(nn.Module):
    def __init__(self, kind: str, **form: Any) -> None:
        super().__init__()
        made, more = KINDS[kind]
        self.layer: Any = made(6, 5, **form, **more)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> Any:
        result, ends = self.layer(x, *([states] if len(states) > 1 else states))
        return result, ends


def states(kind: str, dtype: torch.dtype, batch: int, form: dict[str, Any]) -> list[torch.Tensor]:
    count = form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)
    hidden = of(dtype, count, batch, KINDS[kind][1].get("proj_size", 5))
    return [hidden, of(dtype, count, batch, 5)] if kind.startswith("lstm") else [hidden]


FORMS: list[dict[str, Any]] = [
    {},
    {"batch_first": True, "bias": False},
    {"num_layers": 2, "bidirectional": True},
]


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers(kind: str, form: dict[str, Any], dtype: torch.dtype) -> None:
    check(Recurrent(kind, **form), (of(dtype, 3, 4, 6),))


@pytest.mark.parametrize("of_states", [FLOAT, BFLOAT])
@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT])
@pytest.mark.parametrize("kind", KINDS)
def test_states_that_are_given(kind: str, dtype: torch.dtype, of_states: torch.dtype) -> None:
    form = {"num_layers": 2, "batch_first": True}
    check(Recurrent(kind, **form), (of(dtype, 3, 4, 6), *states(kind, of_states, 3, form)))


def test_layers_stay_whole() -> None:
    ours = wrap(nn.Sequential(nn.Linear(6, 6), nn.LSTM(6, 5, 2)))
    with torch.autocast("cpu", BFLOAT):
        ours(of(FLOAT, 4, 3, 6))
    (variant,) = ours._manager.variants
    assert not variant.exported.fallbacks
    assert [n.op_type for n in variant.exported.proto.graph.node].count("LSTM") == 2


def test_64_bits_are_left_alone() -> None:
    module = Recurrent("gru").double()
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    with torch.autocast("cpu", BFLOAT):
        torch.testing.assert_close(wrap(copy.deepcopy(module))(x), module(x))


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT])
def test_cells(cell: type[nn.Module], dtype: torch.dtype) -> None:
    check(cell(4, 6), (of(dtype, 3, 4),))


class Packed(Recurrent):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        result, ends = super().forward(packed, *states)
        return pad_packed_sequence(result, batch_first=True)[0], ends


@pytest.mark.parametrize("of_states", [None, FLOAT, BFLOAT])
@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str, dtype: torch.dtype, of_states: torch.dtype | None) -> None:
    given = [] if of_states is None else states(kind, of_states, 3, {})
    module, lengths = Packed(kind), torch.tensor([4, 7, 2])
    check(module, (of(dtype, 3, 7, 6), lengths, *given))


# ---- others
def _scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(x @ w, -1)


LABELS = torch.tensor([1, 0, 2, 3, 1])
OTHERS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "inner": (torch.inner, ((5, 4), (3, 4))),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 1), ((5, 4), (4, 3))),
    "chain_matmul": (torch.chain_matmul, ((5, 4), (4, 3), (3, 2))),
    "multi_dot": (lambda *factors: torch.linalg.multi_dot(factors), ((5, 4), (4, 3), (3, 2))),
    "linalg.matmul": (torch.linalg.matmul, ((5, 4), (4, 3))),
    "matrix_power": (lambda x, w: torch.linalg.matrix_power(w, 3) * x[0, 0], ((5, 4), (4, 4))),
    "affine_grid": (lambda x, w: F.affine_grid(w * x[0, 0], [2, 1, 3, 3], align_corners=False), ((5, 4), (2, 2, 3))),
    "reflected": (lambda x, w: F.pad((x @ w)[None], (1, 1), mode="reflect"), ((5, 4), (4, 4))),
    "replicated": (lambda x, w: F.pad((x @ w)[None], (1, 1), mode="replicate"), ((5, 4), (4, 4))),
    "circular": (lambda x, w: F.pad((x @ w)[None], (1, 1), mode="circular"), ((5, 4), (4, 4))),
    "nll_loss": (lambda x, w: F.nll_loss(_scores(x, w), LABELS), ((5, 4), (4, 4))),
    "losses": (lambda x, w: F.nll_loss(_scores(x, w), LABELS, reduction="none"), ((5, 4), (4, 4))),
    "ctc_loss": (
        lambda x, w: F.ctc_loss(_scores(x, w)[:, None], torch.tensor([[1, 2]]), (5,), (2,)),
        ((5, 4), (4, 4)),
    ),
    "inverse": (lambda x, w: x @ torch.linalg.inv(w + 8 * torch.eye(4)), ((5, 4), (4, 4))),
    "solved": (lambda x, w: torch.linalg.solve(w + 8 * torch.eye(4), x.T.to(w.dtype)), ((5, 4), (4, 4))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators(name: str) -> None:
    function, (first, *shapes) = OTHERS[name]
    check(Calls(function, *shapes), (of(FLOAT, *first),))


def test_losses_are_still_joined_with_scores() -> None:
    """That logarithms become float32 between the softmax and the loss does not hide the one from the other."""
    ours = wrap(Calls(lambda x, w: F.nll_loss(_scores(x, w), torch.arange(64)), (8, 4096)))
    with torch.autocast("cpu", BFLOAT):
        loss = ours(of(FLOAT, 64, 8))
    loss.backward()
    assert loss.dtype == FLOAT
    assert "some rows at a time" in str(ours.explain())


def test_none_is_on_the_list_of_autocast() -> None:
    """Where torch casts arguments itself, the capture must not."""
    on_list = torch._C._dispatch_has_kernel_for_dispatch_key
    assert on_list("aten::bmm", "AutocastCPU")
    assert not [op.name() for op in autocast._kernels() if on_list(op.name(), "AutocastCPU")]


# ---- regions
class Region(nn.Module):
    """Casts inside, whatever is around; then computes as what is around says."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside = inside
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.layer = nn.LSTM(6, 6, proj_size=3)
        self.last = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", BFLOAT, enabled=self.inside):
            y = torch.einsum("bld,ed->ble", x, self.weight)
            z, _ = self.layer(y)
        return y, z, torch.einsum("bld,de->ble", z, self.last.to(z.dtype))


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("around", [True, False])
def test_regions(inside: bool, around: bool) -> None:
    module, x = Region(inside), of(FLOAT, 3, 4, 6)
    dtype = BFLOAT if around else None
    found, theirs = results_of(wrap(copy.deepcopy(module)), (x,), dtype), results_of(module, (x,), dtype)
    rounding = 0.03 if inside or around else 1e-5
    for a, b in zip(found, theirs, strict=True):
        assert [t.dtype for t in a] == [t.dtype for t in b]
        assert max(distance(*pair) for pair in zip(a, b, strict=True)) < rounding
    if not inside:  # exact, whatever is around: neither the operator that torch runs nor parts of others are cast again
        assert max(distance(*pair) for pair in zip(found[0][:2], theirs[0][:2], strict=True)) < 1e-5


def test_what_torch_runs_is_not_cast_again() -> None:
    class Inside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                return torch.linalg.pinv(x)

    x, ours = of(FLOAT, 4, 4), wrap(Inside())
    with torch.autocast("cpu", BFLOAT), torch.no_grad():
        torch.testing.assert_close(ours(x), torch.linalg.pinv(x.double()).float(), rtol=1e-3, atol=1e-3)


# ---- the other front ends
class Tagger(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(4, 6, bidirectional=True, batch_first=True)
        self.weight = nn.Parameter(torch.randn(12, 3) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("blh,hc->bc", self.layer(x)[0], self.weight)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_torch_compile_agrees(kind: type[nn.Module]) -> None:
    torch._dynamo.reset()
    module = Tagger(kind)
    check(module, (of(FLOAT, 3, 5, 4),), torch.compile(copy.deepcopy(module), backend="backpass"))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_trainers_agree(kind: type[nn.Module]) -> None:
    module = Tagger(kind)
    twin = copy.deepcopy(module)
    inputs = [Description("x", ["batch", 5, 4]), Description("label", ["batch"])]
    outputs = [Description("loss", []), Description("out", ["batch", 3])]
    settings = Settings("sgd", mixed_precision=True)
    engine = Engine.from_torch(module, lambda out, label: F.cross_entropy(out, label), inputs, outputs, 0, settings)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(3):
        x, label = torch.randn(6, 5, 4), torch.randint(3, (6,))
        found = engine.train_step({"x": x, "label": label}, 0.1).outputs
        optimizer.zero_grad()
        with torch.autocast("cpu", BFLOAT):
            out = twin(x)
            loss = F.cross_entropy(out, label)
        loss.backward()
        optimizer.step()
        assert found["out"].dtype == out.dtype
        torch.testing.assert_close(found["out"], out.detach(), rtol=0.05, atol=0.05)
        torch.testing.assert_close(found["loss"], loss.detach(), rtol=0.02, atol=0.02)
