"""The snippets of the getting-started sample that ORTTrainer came with, as they stand there, on the model of ours."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import backpass
import pytest
import torch
from torch import nn

SAMPLE = Path(__file__).parents[3] / "examples" / "getting_started"

LOSS = """
def loss_with_flat_output(output, target):
    output = output.view(-1, ntokens)
    return criterion(output, target)
"""

DESCRIPTION = """
def model_description():
    input_desc = IODescription('src', [bptt, batch_size], torch.float32)
    label_desc = IODescription('label', [bptt, batch_size, ntokens], torch.int64)
    loss_desc = IODescription('loss', [], torch.float32)
    output_desc = IODescription('output', [bptt, batch_size, ntokens], torch.float32)
    return ModelDescription([input_desc, label_desc], [loss_desc, output_desc])
"""

RATE = """
def learning_rate_description():
    return IODescription('Learning_Rate', [lr,], torch.float32)
"""

TRAINER = """
trainer = ORTTrainer(model,                       # model
                     loss_with_flat_output,       # loss function
                     model_description(),         # model description
                     "SGDOptimizer",              # optimizer name
                     None,                        # optimizer attributes
                     learning_rate_description(), # learning rate description
                     device,                      # device
                     _opset_version=12)           # opset version
"""

NTOKENS, BPTT, COLUMNS, SMALL = 211, 7, 4, {"ninp": 16, "nhead": 2, "nhid": 24, "nlayers": 2}


@pytest.fixture
def make_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SAMPLE))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    module = importlib.import_module("model")
    monkeypatch.delitem(sys.modules, "model")

    def make(dropout: float) -> nn.Module:
        torch.manual_seed(1)
        return module.TransformerModel(NTOKENS, dropout=dropout, **SMALL)

    return make


def run_snippets(model: nn.Module, **names: Any) -> Any:
    space: dict[str, Any] = {
        "torch": torch,
        "ORTTrainer": backpass.ORTTrainer,
        "IODescription": backpass.IODescription,
        "ModelDescription": backpass.ModelDescription,
        "model": model,
        "criterion": nn.CrossEntropyLoss(),
        "device": torch.device("cpu"),
        "ntokens": NTOKENS,
        "bptt": BPTT,
        "batch_size": COLUMNS,
        "lr": 0.1,
        **names,
    }
    for snippet in (LOSS, DESCRIPTION, RATE, TRAINER):
        exec(snippet, space)
    return space["trainer"]


def words(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Text in columns, each number after the one before it, so that there is something to learn."""
    torch.manual_seed(0)
    start = torch.randint(0, NTOKENS, (steps, 1, COLUMNS))
    text = (start + torch.arange(BPTT + 1).reshape(1, -1, 1)) % NTOKENS
    return [(part[:-1], part[1:].reshape(-1)) for part in text]


def test_losses_follow_torch_step_by_step(make_model: Any) -> None:
    ours, theirs = make_model(0.0), make_model(0.0)
    trainer, optimizer = run_snippets(ours), torch.optim.SGD(theirs.parameters(), 0.1)
    for data, targets in words(12):
        results = trainer.train_step(data, targets, torch.tensor([0.1]))
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(theirs(data).view(-1, NTOKENS), targets)
        expected.backward()
        optimizer.step()
        assert results[0].item() == pytest.approx(expected.item(), rel=1e-5)
        assert results[1].shape == (BPTT, COLUMNS, NTOKENS)
    loss, output = trainer.eval_step(*words(1)[0])
    with torch.no_grad():
        torch.testing.assert_close(output, theirs.eval()(words(1)[0][0]), rtol=1e-4, atol=1e-5)
    assert math.exp(loss) < NTOKENS


def test_learns_with_dropout_as_torch_does(make_model: Any) -> None:
    ours, theirs = make_model(0.2), make_model(0.2)
    trainer, optimizer = run_snippets(ours), torch.optim.SGD(theirs.parameters(), 0.5)
    courses: list[list[float]] = [[], []]
    for data, targets in words(120):
        courses[0].append(trainer.train_step(data, targets, torch.tensor([0.5]))[0].item())
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(theirs(data).view(-1, NTOKENS), targets)
        loss.backward()
        optimizer.step()
        courses[1].append(loss.item())
    late = [sum(course[-30:]) / 30 for course in courses]
    assert all(value < 0.9 * courses[0][0] for value in late)
    assert late[0] == pytest.approx(late[1], rel=0.13)  # twice what ten seeds of torch differ by, 2.99 to 3.18


def test_device_of_the_sample_was_a_gpu(make_model: Any) -> None:
    trainer = run_snippets(make_model(0.2), device=torch.device("cuda"))
    assert trainer.train_step(*words(1)[0], torch.tensor([0.1]))[0].item() > 0
