"""Both ORTTrainer on this rank's share of joined batches; alone (comm None) on all of them."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

STEPS = 4
ROWS = 3


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.GELU(), nn.Linear(10, 4))


def loss_of(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, labels)


def generation1(model: Any, comm: Any, world: int, accumulates: int, stage: int) -> Any:
    from backpass import IODescription, ModelDescription, ORTTrainer

    described = ModelDescription(
        [IODescription("x", ["rows", 6], torch.float32), IODescription("label", ["rows"], torch.int64, num_classes=4)],
        [IODescription("loss", [], torch.float32), IODescription("scores", ["rows", 4], torch.float32)],
    )
    rate = IODescription("Learning_Rate", [1], torch.float32)
    trainer = ORTTrainer(
        model, loss_of, described, "LambOptimizer", None, rate, "cpu", gradient_accumulation_steps=accumulates,
        world_rank=0 if comm is None else comm.rank, world_size=1 if comm is None else comm.size,
        allreduce_post_accumulation=True, deepspeed_zero_stage=stage,
    )  # fmt: skip
    return trainer, lambda x, labels: trainer.train_step(x, labels, torch.tensor([0.02]))


def generation2(model: Any, comm: Any, world: int, accumulates: int, stage: int) -> Any:
    from backpass.optim import AdamConfig
    from backpass.training import ORTTrainer, ORTTrainerOptions

    described = {
        "inputs": [("x", ["rows", 6]), ("label", ["rows"])],
        "outputs": [("loss", [], True), ("scores", ["rows", 4])],
    }
    distributed = {"deepspeed_zero_optimization": {"stage": stage}, "allreduce_post_accumulation": True}
    if comm is not None:
        distributed |= {"world_rank": comm.rank, "world_size": comm.size}
    options = ORTTrainerOptions(
        {"device": {"id": "cpu"}, "distributed": distributed, "batch": {"gradient_accumulation_steps": accumulates}}
    )
    trainer = ORTTrainer(model, described, AdamConfig(lr=0.02, epsilon=1e-4), loss_of, options)
    return trainer, trainer.train_step


def train(comm: Any, generation: int, world: int, accumulates: int, stage: int) -> dict[str, np.ndarray]:
    module = network()
    if comm is not None and comm.rank > 0:
        with torch.no_grad():
            for p in module.parameters():
                p.add_(comm.rank)  # of which nothing is left after the first step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        face = generation1 if generation == 1 else generation2
        trainer, step = face(module, comm, world, accumulates, stage if comm is not None else 0)
        rng = np.random.default_rng(generation)
        losses = []
        for _ in range(STEPS * accumulates):
            x, labels = rng.standard_normal((ROWS * world, 6)).astype(np.float32), rng.integers(0, 4, ROWS * world)
            if comm is not None:
                x, labels = (part[comm.rank * ROWS : (comm.rank + 1) * ROWS] for part in (x, labels))
            losses.append(step(torch.from_numpy(x), torch.from_numpy(labels))[0].item())
    found = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    torch.save(trainer.state_dict(), io.BytesIO())  # with moments of all ranks: everybody asks for it
    return found | {"losses": np.array(losses)}
