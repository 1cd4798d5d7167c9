"""ORTModule where others look at it: transformers.Trainer, inspect, dir, type checkers; and what it cannot capture."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import backpass
import pytest
import torch
from backpass.ortmodule import FallbackPolicy, ORTModule, RuntimeOptions
from backpass.ortmodule.fallback import ORTModuleFallbackException
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, words: torch.Tensor, scale: float = 1.0, *, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Own words."""
        return self.layer(words) * scale


def test_forward_is_a_method_with_the_modules_parameters():
    module = Named()
    ours = ORTModule(module)
    assert inspect.ismethod(ours.forward)
    assert ours.forward.__self__ is ours
    assert inspect.signature(ours.forward) == inspect.signature(module.forward)
    assert ours.forward.__doc__ == "Own words."
    assert inspect.isfunction(ORTModule.forward)
    twin = copy.deepcopy(ours)
    assert twin.forward.__self__ is twin
    assert list(inspect.signature(twin.forward).parameters) == ["words", "scale", "labels"]


def test_forward_put_in_its_place_wraps_it():
    """As accelerate does for mixed precision."""
    ours = ORTModule(Named())
    inner, x = ours.forward, torch.randn(4, 3)
    wanted = ours.module(x) + 1
    ours.forward = types.MethodType(lambda self, *args, **kwargs: inner(*args, **kwargs) + 1, ours)
    torch.testing.assert_close(ours(x), wanted)
    torch.testing.assert_close(ours.module(x), wanted - 1)


def _text(count: int) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    return [
        {
            "input_ids": torch.randint(3, 61, (8,)),
            "attention_mask": torch.ones(8, dtype=torch.long),
            "labels": torch.tensor(i % 2),
            "not_a_parameter": torch.zeros(3),
        }
        for i in range(count)
    ]


def _trained(module: nn.Module, folder: Path) -> Any:
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[],
        use_cpu=True, logging_steps=1, save_strategy="no", disable_tqdm=True, seed=0,
        label_names=["labels"],
    )  # fmt: skip
    trainer = transformers.Trainer(model=module, args=arguments, train_dataset=_text(8), eval_dataset=_text(4))
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row], trainer.evaluate()["eval_loss"]


def test_transformers_trainer(tmp_path):
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    plain = transformers.BertForSequenceClassification(config)
    wrapped = copy.deepcopy(plain)
    ours = ORTModule(wrapped, options=RuntimeOptions(fallback_policy=FallbackPolicy.FALLBACK_DISABLE))
    losses, evaluated = _trained(ours, tmp_path / "ours")
    wanted, wanted_evaluated = _trained(plain, tmp_path / "plain")
    assert len(losses) == 4
    assert losses == pytest.approx(wanted, rel=1e-3)
    assert evaluated == pytest.approx(wanted_evaluated, rel=1e-3)
    assert ours._manager.variants
    for (name, a), (_, b) in zip(wrapped.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


# ---- what cannot be captured goes where the policy says
class _Note:
    is_used = False


class _Remembers(torch.autograd.Function):
    """Takes an object that is another in each call, and one and the same for a graph."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, note: _Note) -> torch.Tensor:
        if note.is_used:
            raise RuntimeError("the note was used before")
        note.is_used = True
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * 2, None


class Reminded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Remembers.apply(self.layer(x), _Note())


def _frozen() -> nn.Module:
    return torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU())).eval())


UNCAPTURED = {
    "data_parallel": lambda: nn.DataParallel(nn.Linear(3, 3)),
    "script": lambda: torch.jit.script(nn.Linear(3, 3)),
    "trace": lambda: torch.jit.trace(nn.Linear(3, 3), torch.randn(2, 3)),
    "script_inside": lambda: nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.ReLU()),
    "trace_inside": lambda: nn.Sequential(torch.jit.trace(nn.Linear(3, 3), torch.randn(2, 3)), nn.ReLU()),
    "frozen_inside": lambda: nn.Sequential(_frozen(), nn.Linear(3, 2)),
    "remembering_function": Reminded,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNCAPTURED)
def test_what_cannot_be_captured_follows_the_policy(kind, caplog):
    module, x = UNCAPTURED[kind](), torch.randn(2, 3)
    with caplog.at_level(logging.WARNING):
        ours = ORTModule(module)
        for _ in range(2):
            torch.testing.assert_close(ours(x), module(x))
    assert caplog.text.count("PyTorch runs the module from here on") == 1
    refusing = RuntimeOptions(fallback_policy=FallbackPolicy.FALLBACK_DISABLE)
    with pytest.raises((ORTModuleFallbackException, RuntimeError)):
        ORTModule(UNCAPTURED[kind](), options=refusing)(x)


def test_what_is_no_module_is_refused_whatever_the_policy():
    with pytest.raises(ORTModuleFallbackException, match=r"expected a torch\.nn\.Module"):
        ORTModule(len)  # type: ignore[arg-type]
    with pytest.raises(ORTModuleFallbackException, match="needs no other around it"):
        ORTModule(ORTModule(nn.Linear(2, 2)))


# ---- the package
def test_ortmodule_is_seen_without_loading_torch():
    code = "import sys, backpass; print('ORTModule' in dir(backpass), 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == [
        "True",
        "False",
    ]
    assert backpass.ORTModule is ORTModule


@pytest.mark.slow
def test_type_checkers_see_ortmodule(tmp_path):
    pytest.importorskip("mypy", reason="the check is mypy's")
    program = tmp_path / "uses.py"
    program.write_text("import torch\nfrom backpass import ORTModule\nreveal_type(ORTModule(torch.nn.Linear(1, 1)))\n")
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent", str(program)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "backpass.ortmodule.wrapper.ORTModule" in found.stdout, found.stdout + found.stderr
