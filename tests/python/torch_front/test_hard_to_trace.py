"""What torch cannot trace by itself (CTC loss, packed sequences, distributions, torch.func) in modules through both
front ends: values and gradients against eager, and that the engine ran them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backpass.dynamo import make_aot_ort
from backpass.ortmodule import DebugOptions, LogLevel, ORTModule
from ortmodule_check import Pair, total, wrap
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Case = tuple[nn.Module, tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(3)


class Speech(nn.Module):
    def __init__(self, lengths: str, **settings: Any) -> None:
        super().__init__()
        self.scores = nn.Linear(5, 6)
        self.loss = nn.CTCLoss(**settings)
        self.lengths = lengths

    def forward(self, x: torch.Tensor, words: torch.Tensor, lengths: torch.Tensor, counts: torch.Tensor) -> Any:
        scores = functional.log_softmax(self.scores(x), -1)
        if self.lengths == "numbers":
            return self.loss(scores, words, (7, 6), (3, 2))
        if self.lengths == "one":
            return self.loss(scores[:, 0], words[0], lengths[0], counts[0])
        return self.loss(scores, words, lengths, counts) * 2


def speech(lengths: str = "tensors", **settings: Any) -> Case:
    given = (torch.randn(7, 2, 5), torch.randint(1, 6, (2, 3)), torch.tensor([7, 6]), torch.tensor([3, 2]))
    return Speech(lengths, **settings), given


class Packed(nn.Module):
    def __init__(
        self, network: nn.RNNBase, is_sorted: bool, total_length: bool = False, own_state: bool = False
    ) -> None:
        super().__init__()
        self.embedding, self.network = nn.Linear(4, 5), network
        width = (getattr(network, "proj_size", 0) or network.hidden_size) * (2 if network.bidirectional else 1)
        self.last = nn.Linear(width, 3)
        self.start = nn.Parameter(torch.randn(network.num_layers, 1, network.hidden_size)) if own_state else None
        self.is_sorted, self.total_length = is_sorted, total_length

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        first = self.network.batch_first
        packed = pack_padded_sequence(torch.tanh(self.embedding(x)), lengths, first, self.is_sorted)
        packed = PackedSequence(packed.data * 2, *packed[1:])
        start = None if self.start is None else self.start.expand(-1, lengths.shape[0], -1).contiguous()
        states, last = self.network(packed, start)
        whole = x.shape[1 if first else 0] if self.total_length else None
        padded, counts = pad_packed_sequence(states, first, padding_value=0.5, total_length=whole)
        hidden = last[0] if isinstance(last, tuple) else last
        return self.last(padded), hidden, counts


def packed(kind: type[nn.RNNBase], lengths: list[int], more: dict[str, Any] | None = None, **settings: Any) -> Case:
    network = kind(5, 6, **{"batch_first": True, **(more or {})})
    shape = (3, 6, 4) if network.batch_first else (6, 3, 4)
    is_sorted = lengths == sorted(lengths, reverse=True)
    return Packed(network, is_sorted, **settings), (torch.randn(shape), torch.tensor(lengths))


class Drawn(nn.Module):
    def __init__(self, make: Callable[[torch.Tensor, torch.Tensor], torch.distributions.Distribution]) -> None:
        super().__init__()
        self.scale = nn.Linear(5, 5)
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        law = self.make(functional.softplus(self.scale(x)) + 1, x)
        if isinstance(law, torch.distributions.StudentT):  # its normal numbers are the engine's own
            return law.log_prob(x * 2)
        sample = law.rsample()
        return sample, law.log_prob(sample), law.log_prob(sample.detach())


def drawn(make: Callable[..., Any]) -> Case:
    return Drawn(make), (torch.randn(4, 5),)


class Transformed(nn.Module):
    def __init__(self, transform: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 5), nn.Linear(5, 2)
        self.transform = transform

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.transform(lambda v: torch.tanh(self.inner(v)), x))


def transformed(transform: Callable[..., Any]) -> Case:
    return Transformed(transform), (torch.randn(4, 5, requires_grad=True),)


laws = torch.distributions
CASES: dict[str, Callable[[], Case]] = {
    "ctc": speech,
    "ctc, sum": lambda: speech(reduction="sum", blank=5, zero_infinity=True),
    "ctc, none": lambda: speech(reduction="none"),
    "ctc, numbers": lambda: speech("numbers"),
    "ctc, no batch": lambda: speech("one"),
    "lstm": lambda: packed(nn.LSTM, [6, 4, 2]),
    "lstm, not sorted": lambda: packed(nn.LSTM, [3, 6, 2], {"bidirectional": True, "num_layers": 2}),
    "lstm, shorter": lambda: packed(nn.LSTM, [5, 4, 2], {"proj_size": 3}, total_length=True),
    "gru": lambda: packed(nn.GRU, [4, 3, 5], {"batch_first": False}, own_state=True),
    "rnn": lambda: packed(nn.RNN, [6, 3, 1], {"nonlinearity": "relu"}),
    "student": lambda: drawn(lambda s, x: laws.StudentT(s, x, 2.0)),
    "chi2": lambda: drawn(lambda s, x: laws.Chi2(s)),
    "gamma": lambda: drawn(lambda s, x: laws.Gamma(s, s + 1)),
    "beta": lambda: drawn(lambda s, x: laws.Beta(s, s + 1)),
    "dirichlet": lambda: drawn(lambda s, x: laws.Dirichlet(s)),
    "vmap": lambda: transformed(lambda f, x: torch.func.vmap(f)(x)),
    "jvp": lambda: transformed(lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]),
}


BY_TORCH_COMPILE: dict[str, Callable[[], Case]] = {
    "grad": lambda: transformed(lambda f, x: torch.func.grad(lambda v: f(v).pow(2).sum())(x)),
    "jacrev": lambda: transformed(lambda f, x: torch.func.jacrev(f)(x[0])),
    "jacfwd": lambda: transformed(lambda f, x: torch.func.jacfwd(f)(x[0])),
    "hessian": lambda: transformed(lambda f, x: torch.func.hessian(lambda v: f(v).sum())(x[0])),
    "grad of samples": lambda: transformed(
        lambda f, x: torch.func.vmap(torch.func.grad(lambda v: f(v).pow(2).sum()))(x)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_ortmodule(case: str) -> None:
    """Failures are raised: nothing falls back. The second call has other contents, and for sequences other lengths."""
    module, inputs = CASES[case]()
    pair = Pair(module)
    others = [t.flip(0) if t.is_floating_point() else t for t in inputs]
    if "lstm" in case or case in ("gru", "rnn"):
        others[1] = (inputs[1] - 1).clamp(min=1)
    for given in (inputs, others, inputs):
        results = []
        for run in (pair.ours, pair.eager):
            torch.manual_seed(11)
            results.append(run(*given))
            total(results[-1]).backward()
        for got, wanted in zip(*map(_listed, results), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        pair.compare()
    assert pair.exports == 1


def test_samples_of_student() -> None:
    class Samples(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.freedom = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(5.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.distributions.StudentT(self.freedom, self.place, 1.0).rsample(x.shape)

    module = Samples()
    sample = wrap(module)(torch.zeros(40000))
    sample.mean().backward()
    assert abs(sample.detach().abs().median().item() - 0.7267) < 0.02  # the third quartile
    assert abs(sample.detach().mean().item()) < 0.03
    assert module.place.grad.item() == pytest.approx(1)
    assert abs(module.freedom.grad.item()) < 0.1
    assert module.freedom.grad.item() != 0


@torch._dynamo.config.patch(allow_rnn=True)
@pytest.mark.parametrize(
    "case", ["ctc", "lstm, not sorted", "gru", "student", "chi2", "beta", "vmap", *BY_TORCH_COMPILE]
)
def test_torch_compile(case: str) -> None:
    module, inputs = {**CASES, **BY_TORCH_COMPILE}[case]()
    eager = copy.deepcopy(module)
    backend, record = make_aot_ort(mode="auto")
    compiled = torch.compile(module, backend=backend)
    for run in (compiled, eager):
        torch.manual_seed(11)
        result = run(*inputs)
        total(result).backward()
        run_results = _listed(result)
        if run is compiled:
            got = run_results
    for ours, wanted in zip(got, run_results, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert record.execution_count


def _listed(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", BY_TORCH_COMPILE)
def test_what_falls_back_says_so_in_five_lines(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """Derivatives taken inside forward are torch's to compute."""
    module, inputs = BY_TORCH_COMPILE[case]()
    eager = copy.deepcopy(module)
    result = ORTModule(module, DebugOptions(log_level=LogLevel.INFO))(*inputs)
    torch.testing.assert_close(result, eager(*inputs))
    (said,) = [r.getMessage() for r in caplog.records if "PyTorch runs the module" in r.getMessage()]
    assert len(said.splitlines()) <= 5
    assert max(map(len, said.splitlines())) < 400
    assert "test_hard_to_trace.py:" in said
    assert any("Traceback" in r.getMessage() for r in caplog.records if r.levelno == logging.INFO)


class Experts(nn.Module):
    """Each row goes to the expert that the gate chooses; experts without rows are not asked."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.gate, self.how = nn.Linear(5, 3), how
        self.experts = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for number in torch.unique(chosen) if self.how == "hit" else range(3):
            rows = torch.where(chosen == number)[0]
            if self.how == "asked" and rows.numel() == 0:
                continue
            result = result.index_add(0, rows, self.experts[int(number)](x[rows]) * weights[rows, None])
        return torch.tanh(result)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)  # else it leaves the loop to torch
@pytest.mark.parametrize("front", ["ortmodule", "torch.compile"])
@pytest.mark.parametrize("how", ["all", "asked", "hit"])
def test_experts_chosen_by_data(how: str, front: str) -> None:
    """Other data choose others: what was captured for some is not used for others."""
    eager = Experts(how)
    module = copy.deepcopy(eager)
    run = wrap(module) if front == "ortmodule" and how == "all" else ORTModule(module)
    if front == "torch.compile":
        backend, record = make_aot_ort(mode="auto")
        run = torch.compile(module, backend=backend)
    for x in (torch.randn(6, 5), torch.randn(6, 5), torch.full((6, 5), 0.3), -torch.ones(6, 5)):
        results = []
        for call, net in ((run, module), (eager, eager)):
            net.zero_grad()
            results.append(call(x))
            results[-1].pow(2).sum().backward()
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
        for (name, ours), theirs in zip(module.named_parameters(), eager.parameters(), strict=True):
            got, wanted = (torch.zeros_like(ours) if p.grad is None else p.grad for p in (ours, theirs))
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    if front == "torch.compile" and how != "asked":  # torch.compile leaves loops to torch where they ask about data
        assert record.execution_count
