"""Steps that compute only the rows which are needed, decided for each batch: results, and what is told of it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from backpass import ORTModule
from backpass.ortmodule import DebugOptions, LogLevel, RuntimeOptions
from torch import nn
from torch.nn import functional

LABELS = "skip_ignored_labels"
LOGGER = logging.getLogger("orttraining")
Result = tuple[torch.Tensor, ...]


class Tagger(nn.Module):
    """A tag for each token that has a label."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 24)
        self.inner, self.head = nn.Linear(24, 48), nn.Linear(48, 40)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Result:
        hidden = self.dropout(functional.gelu(self.inner(self.dropout(self.tokens(ids)))))
        scores = self.head(hidden)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), hidden.square().mean()


def batch(share: float, seed: int, shape: tuple[int, int] = (4, 10)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(40, shape, generator=generator)
    count = round(share * ids.numel())
    chosen = torch.randperm(ids.numel(), generator=generator)[:count]
    labels = torch.full((ids.numel(),), -100)
    labels[chosen] = torch.randint(40, (count,), generator=generator)
    return ids, labels.view(shape)


def wrap(dropout: float = 0.2, **options: Any) -> Any:
    torch.manual_seed(1)
    return ORTModule(Tagger(dropout), options=RuntimeOptions(**options))


def session_of(module: Any) -> Any:
    (variant,) = {id(v): v for v in module._manager.variants}.values()
    return next(iter(variant.graphs.values())).session


def gradients(module: Any) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return found


def assert_same(ours: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(ours, expected, strict=True):
        largest = float(b.detach().abs().max().nan_to_num(1))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * largest, equal_nan=True)


def step(module: Any, arguments: tuple[torch.Tensor, torch.Tensor], seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    loss, extra = module(*arguments)
    (loss + 0.5 * extra).backward()
    return [loss.detach(), extra.detach(), *gradients(module)]


@pytest.mark.parametrize("threads", [1, 3])
def test_densities_that_change_at_every_step(threads: int) -> None:
    """With dropout: the same elements are dropped whatever is left out."""
    ours, plain = wrap(num_threads=threads), wrap(sparse_threshold=0.0, num_threads=threads)
    generator = torch.Generator().manual_seed(5)
    for seed in range(30):
        share = [0.0, 1.0, 0.89, 0.9, 0.025][seed] if seed < 5 else float(torch.rand((), generator=generator))
        arguments = batch(share, seed)
        assert_same(step(ours, arguments, seed), step(plain, arguments, seed))
        count = int((arguments[1] != -100).sum())
        (density,) = session_of(ours).densities().densities
        assert (density.needed, density.total) == (count, 40)
        assert session_of(ours).densities().chosen == ([LABELS] if count < 36 else [])
    runs = {tuple(c.passes): c.runs for c in session_of(ours).densities().choices}
    assert sum(runs.values()) == 30
    assert set(runs) == {(), (LABELS,)}


def test_without_gradients() -> None:
    ours, eager = wrap(0.0), Tagger(0.0)
    eager.load_state_dict(ours.state_dict())
    with torch.no_grad():
        for share in (0.2, 1.0, 0.0, 0.5):
            assert_same(list(ours(*batch(share, 3))), list(eager(*batch(share, 3))))


def test_passes_under_way_at_once() -> None:
    """Sparse and dense ones, finished in another order than begun, one of them dropped."""
    ours, plain = wrap(), wrap(sparse_threshold=0.0)
    shares = [0.1, 1.0, 0.5, 0.95, 0.0, 0.3]
    found: list[list[list[torch.Tensor]]] = []
    for module in (ours, plain):
        torch.manual_seed(3)
        losses = [sum(module(*batch(share, i))) for i, share in enumerate(shares)]
        del losses[3]
        results = []
        for i in (2, 0, 4, 1, 3):
            losses[i].backward()
            results.append([losses[i].detach(), *gradients(module)])
        found.append(results)
    for a, b in zip(*found, strict=True):
        assert_same(a, b)


def test_gradients_of_another_output_repeat_the_same_choice() -> None:
    """The forward pass runs again with other gradients: the same rows, and the same elements dropped."""
    ours, plain = wrap(), wrap(sparse_threshold=0.0)
    found = []
    for module in (ours, plain):
        torch.manual_seed(4)
        step(module, batch(0.2, 1), 1)
        module(*batch(0.2, 2))[1].backward()  # not of the loss
        results = [p.grad for p in module.parameters() if p.grad is not None]
        module.zero_grad()
        loss = module(*batch(0.3, 3))[0]
        module(*batch(1.0, 4))
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([*results, *gradients(module)])
    assert_same(*found)


def test_several_threads() -> None:
    ours, plain = wrap(0.0), wrap(0.0, sparse_threshold=0.0)
    shares = [0.1, 1.0, 0.6, 0.95]
    expected = [torch.autograd.grad(sum(plain(*batch(s, i))), list(plain.parameters())) for i, s in enumerate(shares)]
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(10):
                got = torch.autograd.grad(sum(ours(*batch(shares[i], i))), list(ours.parameters()))
                assert_same(list(got), list(expected[i]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("budget", [0.95, 0.8])
def test_within_a_budget(budget: float) -> None:
    ours, plain = wrap(max_memory=budget), wrap(sparse_threshold=0.0)
    for seed, share in enumerate([0.1, 1.0, 0.5, 0.0, 0.95, 0.2]):
        arguments = batch(share, seed, (8, 16))
        assert_same(step(ours, arguments, seed), step(plain, arguments, seed))


def test_a_budget_that_only_dense_data_fit_into() -> None:
    """What data decide is planned at its largest: where that does not fit, nothing is left out, and it is told."""
    plain = wrap(sparse_threshold=0.0)
    step(plain, batch(0.1, 0, (8, 16)), 0)
    least = session_of(plain).plan(list(_feeds(plain, batch(0.1, 0, (8, 16))))).peak_bytes
    ours = wrap(max_memory=float(least))
    assert_same(step(ours, batch(0.1, 0, (8, 16)), 0), step(plain, batch(0.1, 0, (8, 16)), 0))
    chosen = session_of(ours).densities().chosen
    told = [r.what for r in session_of(ours).pass_reports() if r.pass_name == LABELS]
    assert chosen == [LABELS] or any("is not chosen" in line for line in told), told


def _feeds(module: Any, arguments: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    (variant,) = module._manager.variants
    found: list[torch.Tensor] = variant.feeds(list(arguments))
    return found


def test_many_counts_take_no_more_memory() -> None:
    """1,000 different numbers of rows."""

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    ours = wrap(0.1)
    ids = torch.randint(40, (10, 120))
    labels = torch.randint(40, (10, 120))
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).tolist()
    before = 0
    for i, count in enumerate(order):
        given = labels.clone().flatten()
        given[count:] = -100
        sum(ours(ids, given.view(10, 120))).backward()
        ours.zero_grad()
        if i == 200:
            before = resident()
    assert resident() - before < 30e6


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session_of_run(wrap()).densities().chosen == [LABELS]
    assert session_of_run(wrap(enable_label_sparse_optimizer=False)).densities().densities == []
    assert session_of_run(wrap(enable_compute_optimizer=False)).densities().densities == []
    assert session_of_run(wrap(disabled_passes=[LABELS])).densities().densities == []
    assert session_of_run(wrap(sparse_threshold=0.1)).densities().chosen == []
    for name, value, on in (
        ("ORTMODULE_ENABLE_LABEL_SPARSE_OPTIMIZER", "0", False),
        ("ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER", "0", True),
        ("ORTMODULE_ENABLE_COMPUTE_OPTIMIZER", "0", False),
        ("ORTMODULE_ENABLE_SPARSE_OPTIMIZER", "0", False),
        ("ORTMODULE_ENABLE_LABEL_SPARSITY_OPT", "0", False),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert bool(session_of_run(wrap()).densities().chosen) == on, name
    monkeypatch.setenv("ORTMODULE_ENABLE_SPARSE_OPTIMIZER", "0")
    monkeypatch.setenv("ORTMODULE_ENABLE_LABEL_SPARSE_OPTIMIZER", "1")  # today's name wins
    assert session_of_run(wrap()).densities().chosen == [LABELS]


def session_of_run(module: Any) -> Any:
    step(module, batch(0.2, 1), 1)
    return session_of(module)


@pytest.mark.parametrize(("share", "state"), [(0.2, "ON"), (1.0, "OFF")])
def test_the_first_batch_is_told(share: float, state: str, caplog: pytest.LogCaptureFixture) -> None:
    ours = ORTModule(Tagger(), DebugOptions(LogLevel.INFO))
    with caplog.at_level(logging.INFO, LOGGER.name):
        step(ours, batch(share, 1), 1)
        step(ours, batch(1 - share, 2), 2)
    assert caplog.text.count("sparsity-based optimization is") == 1
    assert f"Label sparsity-based optimization is {state} for labels (density {share:.1%})" in caplog.text
    (table,) = [r.getMessage() for r in caplog.records if "was built for" in r.getMessage()]
    line = f"- Label Sparsity    {state:<3}  labels: {share:.1%} of 40 rows are needed (input 'labels')"
    assert line in table, table


@pytest.mark.parametrize("name", ["ORTMODULE_PRINT_INPUT_DENSITY", "ORTMODULE_ENABLE_INPUT_DENSITY_INSPECTOR"])
def test_densities_are_printed(name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    ours = wrap()
    for i, share in enumerate((0.2, 1.0, 0.5)):
        step(ours, batch(share, i), i)
    tables = [r.getMessage().splitlines() for r in caplog.records if "VALID TOKENS/BATCH" in r.getMessage()]
    assert len(tables) == 3
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[0]]
    assert cells[0] == [
        "STEP", "INPUT TYPE", "INPUT NAME", "PAD IDX", "DENSITY", "VALID TOKENS", "TOTAL TOKENS", "VALID TOKENS/BATCH",
    ]  # fmt: skip
    assert cells[1] == ["0", "LABEL", "labels", "-100", "20.00%", "8", "40", "N/A"]
    assert "| 2 " in tables[2][1]


def test_explain_says_what_was_left_out() -> None:
    ours = wrap()
    for i, share in enumerate((0.2, 1.0, 0.2)):
        step(ours, batch(share, i), i)
    text = ours.explain()
    assert "labels: 20.0% of 40 rows are needed (input 'labels'), by [backpass.LabelledRows" in text
    assert "the others are left out" in text
    report = session_of(ours).data_report()
    dense, sparse = report.choices
    assert (dense.runs, sparse.runs) == (1, 2)
    assert f"{LABELS}: 2 batch(es), {sparse.operations / 1e9:.3g} GF" in text
    rows = 2 * 48 * 40 * 3  # operations on a row of the last product: forward, and two gradients
    saved = dense.operations - sparse.operations
    assert saved == pytest.approx(32 * rows, rel=0.3)
    assert sparse.bytes < dense.bytes


def test_torch_compile_does_the_same() -> None:
    compiled = torch.compile(Tagger(0.0), backend="backpass")
    eager = Tagger(0.0)
    eager.load_state_dict(compiled.state_dict(), strict=False)
    eager.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in compiled.state_dict().items()})
    for i, share in enumerate((0.2, 1.0, 0.0, 0.6)):
        assert_same(step(compiled, batch(share, i), i), step(eager, batch(share, i), i))
