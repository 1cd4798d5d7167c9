"""Recomputation changes no bit: as little memory as possible, and both levels, against a plan that computes nothing
twice, on the networks of the training curves and twelve model families, with dropout, for one thread and two."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from backpass import InvalidInput
from ortmodule_check import wrap
from torch import nn
from training_networks import CLASSES, TRAINEES

pytestmark = pytest.mark.usefixtures("one_capture")

STEPS = 2
RATE = 0.1
FAMILIES = [
    "bert_mlm", "deberta_v2", "gpt2", "llama", "lstm_tagger", "mobilenet", "resnet", "swin", "t5",
    "transformer", "unet", "vit",
]  # fmt: skip
EVERYDAY = {"mlp", "resnet18", "bert", "bert_mlm"}
NOTHING_TWICE = {"disabled_passes": ("keep_less",)}
Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def marked(names: list[str]) -> list[Any]:
    return [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.slow) for name in names]


class Classified(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, labels: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        scores = nn.functional.dropout(self.model(*inputs), RATE, self.training)
        return nn.functional.cross_entropy(scores, labels)


def trainee(name: str) -> Made:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    inputs = TRAINEES[name].batch(rng)
    labels = rng.integers(0, CLASSES, len(inputs[0]))
    return Classified(TRAINEES[name].build()).train(), tuple(map(torch.from_numpy, (labels, *inputs)))


def family(name: str) -> Made:
    """With dropout, whichever way a library spells it; behind activations where it has none."""
    module, inputs = zoo.make(name)
    spelt = [
        (part, attribute)
        for part in module.modules()
        for attribute, value in vars(part).items()
        if isinstance(value, float) and ("dropout" in attribute or isinstance(part, nn.Dropout))
    ]
    for part, attribute in spelt:
        setattr(part, attribute, RATE)
    if not spelt:
        drop_behind_activations(module)
    return module, inputs


def drop_behind_activations(module: nn.Module) -> None:
    for part in list(module.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.ReLU | nn.ReLU6 | nn.SiLU | nn.Hardswish):
                setattr(part, name, nn.Sequential(child, nn.Dropout(RATE)))


def trained(made: Made, threads: int, **options: Any) -> tuple[list[torch.Tensor], Any]:
    """Losses, gradients and the buffers that training changes, and the session. All rows are computed: a plan of some
    that does not fit gives way to the one of all, which rounds in another order."""
    module, inputs = copy.deepcopy(made[0]), made[1]
    ours = wrap(module, num_threads=threads, sparse_threshold=0, **options)
    torch.manual_seed(3)
    found = []
    for _ in range(STEPS):
        module.zero_grad()
        loss = ours(*inputs)
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    (variant,) = ours._manager.variants
    (graph,) = variant.graphs.values()
    return [*found, *module.buffers()], graph.session


def least_share(made: Made) -> float:
    with pytest.raises(InvalidInput) as refused:
        trained(made, 1, max_memory=1e-6)
    found = re.search(r"expected at least ([\d.]+);", str(refused.value))
    assert found is not None
    return float(found[1])


def repeated(session: Any) -> int:
    """Values that the plan makes again."""
    lines = [r.what for r in session.pass_reports() if r.pass_name == "recompute"]
    return sum(int(found[1]) for line in lines if (found := re.search(r"(\d+) made again,", line)))


def check_plans(made: Made) -> None:
    expected, session = trained(made, 1, **NOTHING_TWICE)
    assert session.is_random()
    share = least_share(made)
    for plan in ({}, {"max_memory": share}, {"memory_opt_level": 1, **NOTHING_TWICE}, {"memory_opt_level": 2}):
        for threads in (1, 2):
            found, session = trained(made, threads, **plan)
            for i, (a, b) in enumerate(zip(expected, found, strict=True)):
                assert torch.equal(a, b), f"{plan}, {threads} threads: tensor {i} of {len(expected)}"
        if share < 1 and "max_memory" in plan:
            assert repeated(session) > 0


@pytest.mark.parametrize("name", marked(list(TRAINEES)))
def test_networks_of_the_curves(name: str) -> None:
    check_plans(trainee(name))


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_model_families(name: str) -> None:
    check_plans(family(name))
