"""Training within a budget of memory: the same bits, less memory, and what is said of it."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from backpass import InvalidInput, ORTModule
from backpass.ortmodule import RuntimeOptions
from torch import nn


def perceptron() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    """Blocks of a BERT."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 128, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.encoder(x)
        return result


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + x)


class Decoder(nn.Module):
    """Blocks of a GPT: masked attention, dropout everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(6)])
        self.heads = nn.ModuleList([nn.Linear(32, 96) for _ in range(3)])
        self.wide = nn.ModuleList([nn.Linear(32, 128) for _ in range(3)])
        self.narrow = nn.ModuleList([nn.Linear(128, 32) for _ in range(3)])
        self.dropout = nn.Dropout(0.1)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.reshape(*t.shape[:2], 2, 16).transpose(1, 2) for t in x.chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)) / 4 + torch.full((x.shape[1], x.shape[1]), -1e9).triu(1)
        attended: torch.Tensor = self.dropout(scores.softmax(-1)) @ v
        return attended.transpose(1, 2).flatten(-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, (heads, wide, narrow) in enumerate(zip(self.heads, self.wide, self.narrow, strict=True)):
            x = x + self.dropout(self.attend(heads(self.norms[2 * i](x))))
            x = x + self.dropout(narrow(nn.functional.gelu(wide(self.norms[2 * i + 1](x)))))
        return x


class Hourglass(nn.Module):
    """A U-Net: what goes down is read again on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.pair(3, 8), self.pair(8, 16), self.pair(16, 16)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.merge = nn.ModuleList([self.pair(32, 16), self.pair(16, 8)])

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Module:
        convolutions = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.Conv2d(outputs, outputs, 3, 1, 1)
        return nn.Sequential(convolutions[0], nn.BatchNorm2d(outputs), nn.ReLU(), convolutions[1], nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for i, pair in enumerate(self.down):
            x = pair(nn.functional.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i, (up, merge) in enumerate(zip(self.up, self.merge, strict=True)):
            x = merge(torch.cat([kept[1 - i], up(x)], 1))
        return x


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (64, 32)),
    "encoder": (Encoder, (4, 16, 32)),
    "residual": (lambda: nn.Sequential(*[Residual() for _ in range(4)]), (4, 8, 12, 12)),
    "decoder": (Decoder, (4, 12, 32)),
    "hourglass": (Hourglass, (2, 3, 20, 20)),
}


# What can be had at least; gradients of convolutions need memory of their own.
SURE = {"perceptron": 0.5, "encoder": 0.5, "residual": 0.8, "decoder": 0.5, "hourglass": 0.8}


def graph_of(module: Any) -> Any:
    return next(iter(module._manager.variants[0].graphs.values()))


def summary(module: Any) -> str:
    found = [r.what for r in graph_of(module).session.pass_reports() if r.pass_name == "recompute"]
    return found[0] if found else ""


def train(name: str, threads: int, **options: Any) -> tuple[list[torch.Tensor], Any]:
    """Loss, gradients and buffers after two steps, and the module."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = ORTModule(make(), options=RuntimeOptions(num_threads=threads, **options))
    x = torch.randn(shape)
    for _ in range(2):
        loss = module(x).square().mean()
        loss.backward()
    found = [loss.detach(), *[p.grad for p in module.parameters() if p.grad is not None], *module.buffers()]
    return [t.clone() for t in found], module


def least_share(error: InvalidInput) -> float:
    return float(str(error).split("expected at least ")[1].split(";")[0])


@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_same_bits(name: str) -> None:
    plain, _ = train(name, 2)
    for wanted, threads in ((0.8, 2), (0.5, 1), (0.3, 2)):
        share = wanted
        try:
            found, module = train(name, threads, max_memory=share)
        except InvalidInput as error:
            share = least_share(error)
            found, module = train(name, threads, max_memory=share)
        assert share == wanted or wanted < SURE[name]
        for a, b in zip(plain, found, strict=True):
            assert torch.equal(a, b)
        before, after = summary(module).removeprefix("peak ").split(" bytes")[0].split(" -> ")
        assert int(after) <= share * int(before)


def test_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train("encoder", 2)
    monkeypatch.setenv("BACKPASS_DISABLE_PASSES", "keep_less")  # it leaves nothing cheap to the levels
    config = tmp_path / "plans.json"
    config.write_text(json.dumps(["Gelu+Tile+Dropout+:1:3"]))
    for level in "012":
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", str(config))
        found, module = train("encoder", 2)
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
        assert "made again" in summary(module)
        assert "made again by the backward pass" in module.explain()
        if level == "0":
            assert " 3 made again" in summary(module)


def test_the_table_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    train("perceptron", 1, max_memory=0.5)
    assert "Memory Optimizer     ON   at most 50% of what it would take" in caplog.text
    caplog.clear()
    train("perceptron", 1)
    assert "Memory Optimizer     OFF  set max_memory" in caplog.text


def test_statistics(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_PRINT_MEMORY_STATS", "1")
    caplog.set_level(logging.WARNING)
    train("perceptron", 1)
    for text in ("step 0 memory (MiB) | phase: post_forward | planned: ", "step 1 memory (MiB) | phase: post_backward"):
        assert text in caplog.text


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"max_memory: got 100 bytes, expected at least \d+; use a smaller batch"):
        train("perceptron", 1, max_memory=100)
    with pytest.raises(ValueError, match="max_memory: got -1, expected"):
        RuntimeOptions(max_memory=-1)
    with pytest.raises(ValueError, match="memory_opt_level: got 3, expected 0, 1 or 2"):
        RuntimeOptions(memory_opt_level=3)
    config = tmp_path / "plans.json"
    config.write_text("{}")
    with pytest.raises(ValueError, match="expected a list of strings"):
        train("perceptron", 1, memory_opt_config=str(config))


def test_the_least_share_is_never_more_than_all() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with pytest.raises(Exception, match=r"max_memory: got 0\.5 of [0-9]+ bytes, expected at least 1;") as refused:
        ORTModule(module, options=RuntimeOptions(max_memory=0.5))(torch.randn(4, 8))
    assert "leave max_memory out" in str(refused.value)
    ORTModule(module, options=RuntimeOptions(max_memory=1.0))(torch.randn(4, 8)).sum().backward()


class TwoHeads(nn.Module):
    """The way back from the second result takes more memory than everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()
        self.wide = nn.Sequential(nn.Linear(32, 1024), nn.GELU(), nn.Linear(1024, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.body(x).square().mean(), self.wide(x)


def test_other_gradients_than_expected_are_not_refused() -> None:
    x = torch.randn(64, 32)
    torch.manual_seed(0)
    plain = ORTModule(TwoHeads())
    with pytest.raises(InvalidInput) as refused:
        ORTModule(TwoHeads(), options=RuntimeOptions(max_memory=100))(x)
    least = int(least_share(refused.value))
    module = ORTModule(TwoHeads(), options=RuntimeOptions(max_memory=least))
    module.load_state_dict(plain.state_dict())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for either in (plain, module):
            for step in range(3):
                torch.manual_seed(step)
                loss, y = either(x)
                (loss + y.sum() if step else loss).backward()
    for a, b in zip(plain.parameters(), module.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)
    excess = graph_of(module).session.memory_excess()
    said = [str(w.message) for w in caught if "max_memory" in str(w.message)]
    assert excess > least
    assert len(said) == 1
    assert f"take {excess} bytes" in said[0]


class Chosen(nn.Module):
    """How many rows go on, the data decide."""

    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(x[x[:, 0] > 0])
        return result


def test_sizes_that_data_decide() -> None:
    x = torch.randn(64, 32)
    torch.manual_seed(0)
    plain = ORTModule(Chosen())
    module = ORTModule(Chosen(), options=RuntimeOptions(max_memory=0.6))
    module.load_state_dict(plain.state_dict())
    for either in (plain, module):
        for step in range(2):
            torch.manual_seed(step)
            either(x if step else -x).square().sum().backward()
    assert "made again" in summary(module)
    for a, b in zip(plain.parameters(), module.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)
