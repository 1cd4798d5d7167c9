"""What the original's first generation did, and Backpass does not: each by what a user would see."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from backpass.trainer import IODescription, ModelDescription, ORTTrainer
from networks_of_generation1 import batch_of, description, nll, perceptron, rate_of, train, trainer_of
from torch import Tensor, nn


def test_descriptions_stay_as_they_are() -> None:
    described = description()
    described.outputs_[1].dtype_ = None
    before = copy.deepcopy([vars(each) for each in (*described.inputs_, *described.outputs_)])
    rate = IODescription("Learning_Rate", [1])
    trainer = ORTTrainer(perceptron(), nll, described, "SGDOptimizer", None, rate, "cpu")
    train(trainer, range(1))
    assert trainer.model_desc_ is described
    assert [vars(each) for each in (*described.inputs_, *described.outputs_)] == before


def test_list_of_frozen_weights_stays_as_it_is() -> None:
    frozen = ["fc1.weight"]
    train(trainer_of(perceptron(), frozen_weights=frozen), range(1))
    assert frozen == ["fc1.weight"]


@pytest.mark.parametrize("training", [True, False])
def test_module_is_trained_itself_and_stays_where_it_is(training: bool) -> None:
    module = perceptron()
    module.train(training)
    start = copy.deepcopy(module)
    addresses = [parameter.data_ptr() for parameter in module.parameters()]
    trainer = trainer_of(module)
    train(trainer, range(3))
    trainer.eval_step(*batch_of(0))
    assert module.training is training
    assert [parameter.data_ptr() for parameter in module.parameters()] == addresses
    assert not torch.equal(module.fc1.weight, start.fc1.weight)
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in trainer.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_module_may_be_loaded_between_steps() -> None:
    module, other = perceptron(), perceptron(2)
    trainer = trainer_of(module)
    train(trainer, range(2))
    module.load_state_dict(other.state_dict())
    assert train(trainer, range(2, 4)) == train(trainer_of(other), range(2, 4))


def test_fetches_do_not_change_the_schedule() -> None:
    modules = [perceptron() for _ in range(2)]
    for module, fetches in zip(modules, (None, ["loss"]), strict=True):
        trainer = trainer_of(module, "AdamOptimizer", gradient_accumulation_steps=2)
        for step in range(5):
            trainer.train_step(*batch_of(step), rate_of(0.05), fetches=fetches)
        assert (trainer.current_step, trainer.global_step_) == (5, 2)
    assert all(torch.equal(one, two) for one, two in zip(*(m.parameters() for m in modules), strict=True))


def test_positions_and_names_may_be_mixed() -> None:
    trainer = trainer_of(perceptron())
    data, target = batch_of(0)
    expected = trainer.eval_step(data, target)[0]
    assert torch.equal(trainer.eval_step(target, input1=data)[0], expected)


class Weighted(nn.Module):
    """A float constant in forward, which an export may store as an initializer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.scales = torch.tensor([1.0, 2.0, 3.0, 4.0])  # neither parameter nor buffer

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.scales


def test_constants_are_not_trained() -> None:
    torch.manual_seed(0)
    module = Weighted()
    trainer = trainer_of(module, "AdamOptimizer")
    train(trainer, range(3))
    assert module.scales.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert {name for name in trainer.state_dict() if "_" not in name} == {"fc.weight", "fc.bias"}
    assert len(trainer.state_dict()) == 2 + 2 * 3


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.lock = threading.Lock()  # cannot be copied

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return self.fc(x)


def test_module_need_not_be_copied() -> None:
    torch.manual_seed(0)
    losses = train(trainer_of(Locked()), range(2))
    assert losses[0] > 0


def test_outputs_may_have_extents_that_no_input_has() -> None:
    described = ModelDescription(
        [IODescription("input1", ["batch", 6]), IODescription("label", ["batch"])],
        [IODescription("loss", []), IODescription("probability", ["rows", "classes"])],
    )
    trainer = ORTTrainer(perceptron(), nll, described, "SGDOptimizer", None, IODescription("Learning_Rate", [1]), "cpu")
    _, scores = trainer.train_step(*batch_of(0), rate_of(0.1))
    assert scores.shape == (5, 4)


def test_loss_is_a_scalar() -> None:
    trainer = trainer_of(perceptron(), loss_fn=lambda x, y: nn.functional.cross_entropy(x, y, reduction="none"))
    with pytest.raises(Exception, match="scalar"):
        train(trainer, range(1))


def test_results_are_new_at_every_call() -> None:
    trainer = trainer_of(perceptron())
    first, scores = trainer.train_step(*batch_of(0), rate_of(0.1))
    kept, kept_scores = first.clone(), scores.clone()
    train(trainer, range(1, 4))
    assert torch.equal(first, kept)
    assert torch.equal(scores, kept_scores)
