"""Engine on random modules, against the same loop in torch."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from backpass.trainer.engine import Description, Engine, Settings
from torch import nn
from torch_loops import TorchLoop, random_module

CLASSES = 4


def _loss(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, label)


def _settings(chance: random.Random) -> tuple[str, dict[str, float]]:
    algorithm = chance.choice(["sgd", "adam", "adam", "lamb"])
    if algorithm == "sgd":
        return algorithm, {}
    fields: dict[str, float] = {"weight_decay": chance.choice([0.0, 0.02]), "epsilon": chance.choice([1e-8, 1e-6])}
    fields |= {"alpha": chance.choice([0.9, 0.5]), "correct_bias": chance.random() < 0.7}
    if algorithm == "adam":
        fields["decays_after"] = chance.random() < 0.4
    return algorithm, fields


@pytest.mark.parametrize("seed", range(12))
def test_follows_torch(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    module, make = random_module(chance, CLASSES)
    module = module.double()
    algorithm, fields = _settings(chance)
    clips = algorithm != "sgd" and chance.random() < 0.6
    if clips:
        fields["max_norm"] = chance.choice([0.1, 1.0])
    count = chance.choice([1, 1, 3])
    names = [n for n, _ in module.named_parameters()]
    frozen = (chance.choice(names),) if len(names) > 1 and chance.random() < 0.3 else ()
    loop = TorchLoop(copy.deepcopy(module), _loss, algorithm, fields, count, clips, frozen)
    engine = Engine.from_torch(
        module,
        _loss,
        [Description("x", ["batch"]), Description("label", ["batch"])],
        [Description("loss"), Description("scores")],
        0,
        Settings(algorithm, fields, accumulation_steps=count, clips_gradients=clips, frozen=frozen),
    )
    for step in range(10):
        x, label = make(4 + step % 2), torch.randint(CLASSES, (4 + step % 2,))
        x = x.double() if x.is_floating_point() else x
        result = engine.train_step({"x": x, "label": label}, 0.02, [None, ["loss"]][step % 3 == 2])
        torch.testing.assert_close(result.outputs["loss"], loop.train_step((x,), label, 0.02), rtol=1e-8, atol=1e-9)
        assert result.updated == ((step + 1) % count == 0)
    for name, value in loop.module.state_dict().items():
        torch.testing.assert_close(
            module.state_dict()[name], value, rtol=1e-6, atol=1e-8, msg=lambda m, n=name: f"{n} {m}"
        )
    assert (engine.steps, engine.updates) == (10, 10 // count)
    loop.module.eval()
    x = make(3)
    x = x.double() if x.is_floating_point() else x
    expected = loop.module(x).detach()
    torch.testing.assert_close(engine.eval_step({"x": x}, ["scores"])["scores"], expected, rtol=1e-6, atol=1e-7)
    assert module.training
