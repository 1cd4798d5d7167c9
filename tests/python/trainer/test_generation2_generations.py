"""Both generations of ORTTrainer have the same bits: they are faces of one engine."""

from __future__ import annotations

import backpass
import numpy as np
import pytest
import torch
from backpass import optim, trainer
from backpass.training import ORTTrainer, ORTTrainerOptions, amp
from trainer.generation2_models import (
    BATCH,
    BPTT,
    NTOKENS,
    flat_loss,
    transformer,
    transformer_data,
    transformer_description,
)

CONFIGS = {"SGDOptimizer": optim.SGDConfig, "AdamOptimizer": optim.AdamConfig, "LambOptimizer": optim.LambConfig}
RATE = 0.01


def first(name, **options):
    description = trainer.ModelDescription(
        [
            trainer.IODescription("input1", [BPTT, BATCH], torch.int64),
            trainer.IODescription("label", [BPTT * BATCH], torch.int64),
        ],
        [
            trainer.IODescription("loss", [], torch.float32),
            trainer.IODescription("predictions", [BPTT, BATCH, NTOKENS], torch.float32),
        ],
    )
    rate = trainer.IODescription("Learning_Rate", [1], torch.float32)
    return trainer.ORTTrainer(transformer(), flat_loss, description, name, None, rate, "cpu", **options)


def second(name, **options):
    given = ORTTrainerOptions({"device": {"id": "cpu"}, **options})
    return ORTTrainer(transformer(), transformer_description(), CONFIGS[name](lr=RATE), flat_loss, given)


def run(made, *rate):
    backpass.set_seed(5)
    torch.manual_seed(5)
    trained = made()
    results = [trained.train_step(*transformer_data(step), *rate) for step in range(6)]
    return trained, [loss for loss, *_ in results]


KINDS = ["plain", "accumulated", "mixed", "scheduled"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "kind"), [*((n, "plain") for n in CONFIGS), *(("AdamOptimizer", k) for k in KINDS[1:])]
)
def test_the_same_bits(name, kind):
    rate = [torch.tensor([RATE])]
    schedule = optim.LinearWarmupLRScheduler(8, 0.5)
    old, new = {
        "plain": ({}, {}),
        "accumulated": ({"gradient_accumulation_steps": 3}, {"batch": {"gradient_accumulation_steps": 3}}),
        "mixed": (
            {"use_mixed_precision": True, "loss_scaler": trainer.LossScaler("scale", True)},
            {"mixed_precision": {"enabled": True, "loss_scaler": amp.DynamicLossScaler()}},
        ),
        "scheduled": (
            {"get_lr_this_step": lambda n: RATE * (n / 4 if n < 4 else (8 - n) / 4)},
            {"lr_scheduler": schedule},
        ),
    }[kind]
    legacy, expected = run(lambda: first(name, **old), *([] if kind == "scheduled" else rate))
    latest, found = run(lambda: second(name, **new))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    states = latest._training_session.get_state(), legacy.session.get_state()
    assert list(states[0]) == list(states[1])
    assert all(np.array_equal(states[0][key], value) for key, value in states[1].items())
