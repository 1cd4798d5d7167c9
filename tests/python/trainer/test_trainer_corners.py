"""Modules, states and models that change between steps, and steps that fail: no number is wrong without a word."""

from __future__ import annotations

import copy
from typing import Any

import backpass
import onnx
import pytest
import torch
from backpass import IODescription, ModelDescription, ORTTrainer
from backpass.optim import FusedAdam
from torch import nn

RATE = torch.tensor([0.1])
X, Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 0])


def trainer_of(module: Any, shape: Any = ("batch", 6), loss: Any = nn.functional.cross_entropy, **options: Any) -> Any:
    description = ModelDescription(
        [IODescription("x", list(shape)), IODescription("label", ["batch"])],
        [IODescription("loss", []), IODescription("scores", ["batch", 4])],
    )
    function = None if loss is None else (lambda scores, label: loss(scores, label))
    return ORTTrainer(
        module, function, description, "SGDOptimizer", None, IODescription("rate", [1]), "cpu", **options
    )  # fmt: skip


def square() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))


def expected(module: nn.Module) -> float:
    return nn.functional.cross_entropy(copy.deepcopy(module)(X), Y).item()


def test_another_view_of_the_same_memory_is_noticed() -> None:
    module = square()
    trainer = trainer_of(module)
    trainer.train_step(X, Y, RATE)
    module[0].weight.data = module[0].weight.data.t()
    wanted = expected(module)
    assert trainer.train_step(X, Y, RATE)[0].item() == pytest.approx(wanted, rel=1e-6)
    module[0].weight.data = module[0].weight.data.reshape(4, 9)
    with pytest.raises(backpass.InvalidInput, match="expected"):
        trainer.train_step(X, Y, RATE)


def test_freezing_after_the_first_step_is_refused() -> None:
    module = square()
    trainer = trainer_of(module)
    trainer.train_step(X, Y, RATE)
    module[0].weight.requires_grad_(False)
    with pytest.raises(backpass.InvalidInput, match="got requires_grad=False after the first step"):
        trainer.train_step(X, Y, RATE)


def test_a_failed_step_begins_the_accumulation_anew() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.embedding(x).mean(1))

    words = torch.randint(0, 7, (5, 6))
    module, other = Words(), Words()
    trainer = trainer_of(module, gradient_accumulation_steps=2)
    trainer.train_step(words, Y, RATE)
    with pytest.raises(backpass.Error, match="gradients since the last update are dropped"):
        trainer.train_step(words + 50, Y, RATE)
    reference = trainer_of(other, gradient_accumulation_steps=2)
    for each in (trainer, reference):
        each.train_step(words, Y, RATE)
        each.train_step(words, Y, RATE)
        assert each.global_step_ == 1
    assert torch.equal(module.out.weight, other.out.weight)


def test_a_model_of_a_batch_normalisation_evaluates_with_its_statistics(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))
    trainer = trainer_of(module)
    for _ in range(30):
        trainer.train_step(X, Y, RATE)
    trainer.save_as_onnx(str(tmp_path / "model.onnx"))
    again = trainer_of(onnx.load(tmp_path / "model.onnx"), loss=None)
    wanted = trainer.eval_step(X, Y)[0].item()
    assert again.eval_step(X, Y)[0].item() == pytest.approx(wanted, rel=1e-5)
    for _ in range(30):
        trainer.train_step(X, Y, RATE)
        again.train_step(X, Y, RATE)
    wanted = trainer.eval_step(X, Y)[0].item()
    assert again.eval_step(X, Y)[0].item() == pytest.approx(wanted, rel=0.05)  # ONNX's variance is the population's


def stepped(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    module(torch.ones(1, module.in_features)).sum().backward()  # type: ignore[arg-type]
    optimizer.step()


def test_moments_of_another_shape_are_refused() -> None:
    first, second = nn.Linear(4, 3), nn.Linear(5, 3)
    mine, other = FusedAdam(first.parameters(), lr=0.1), FusedAdam(second.parameters(), lr=0.1)
    stepped(first, mine)
    other.load_state_dict(mine.state_dict())
    with pytest.raises(RuntimeError, match="expected the same"):
        stepped(second, other)


@pytest.mark.parametrize("option", ["amsgrad", "maximize"])
def test_states_of_other_kinds_of_adam_are_refused(option: str) -> None:
    module = nn.Linear(4, 3)
    theirs = torch.optim.Adam(module.parameters(), lr=0.1, **{option: True})
    stepped(module, theirs)
    with pytest.raises(ValueError, match=option):
        FusedAdam(module.parameters(), lr=0.1).load_state_dict(theirs.state_dict())


def test_states_whose_parameters_took_other_numbers_of_steps_are_refused() -> None:
    module = nn.Linear(4, 3)
    theirs = torch.optim.Adam(module.parameters(), lr=0.1)
    stepped(module, theirs)
    module.bias.requires_grad_(False)
    stepped(module, theirs)
    with pytest.raises(ValueError, match=r"took \[1, 2\] steps"):
        FusedAdam(module.parameters(), lr=0.1).load_state_dict(theirs.state_dict())
