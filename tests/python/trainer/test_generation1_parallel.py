"""ORTTrainer of the first generation on several ranks, which are threads here."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backpass import parallel
from backpass.trainer import ORTTrainer, load_checkpoint, save_checkpoint
from networks_of_generation1 import RATE, batch_of, description, perceptron, rate_of, trainer_of
from test_generation1_onnx import onnx_trainer

ROWS = 6


def losses(trainer: ORTTrainer, steps: range, rank: int = 0, ranks: int = 1) -> list[float]:
    """Of a rank's share of each batch."""
    found = []
    for step in steps:
        data, target = (part.tensor_split(ranks)[rank] for part in batch_of(step, ROWS))
        found.append(trainer.train_step(data, target, rate_of(0.05))[0].item())
    return found


def on_ranks(ranks: int, work: Any, **options: Any) -> list[Any]:
    """What work(trainer, rank) gives on each; only the first has the weights that training starts from."""

    def run(communicator: parallel.ThreadCommunicator) -> Any:
        rank = communicator.rank
        return work(onnx_trainer(seed=1 + rank, world_rank=rank, world_size=ranks, **options), rank)

    return parallel.run_threads(ranks, run, timeout=60)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer", "LambOptimizer"])
def test_ranks_train_as_one_with_the_joined_batch(optimizer: str, zero: int) -> None:
    ranks = 3
    single = onnx_trainer(optimizer)
    expected = losses(single, range(6))

    def work(trainer: ORTTrainer, rank: int) -> tuple[list[float], dict[str, Any]]:
        return losses(trainer, range(6), rank, ranks), trainer.state_dict()

    found = on_ranks(
        ranks, work, optimizer=optimizer, deepspeed_zero_stage=zero, allreduce_post_accumulation=True
    )  # fmt: skip
    np.testing.assert_allclose(np.mean([each for each, _ in found], axis=0), expected, rtol=1e-5)
    for _, state in found:
        assert state.keys() == single.state_dict().keys()
        assert all(torch.equal(value, found[0][1][name]) for name, value in state.items())
        for name, value in single.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)


def test_updates_combined_by_adasum_are_the_same_on_all_ranks() -> None:
    def work(trainer: ORTTrainer, rank: int) -> tuple[list[float], dict[str, Any]]:
        return losses(trainer, range(6), rank, 2), trainer.state_dict()

    (_, state), (_, other) = on_ranks(2, work, optimizer="SGDOptimizer", enable_adasum=True)
    assert all(torch.equal(value, other[name]) for name, value in state.items())
    plain = on_ranks(2, work, optimizer="SGDOptimizer")[0][1]
    assert not all(torch.equal(value, plain[name]) for name, value in state.items())


def test_parts_of_all_ranks_go_on_together(tmp_path: Path) -> None:
    """Written by two ranks, read by two, and by one."""

    def write(trainer: ORTTrainer, rank: int) -> list[float]:
        losses(trainer, range(3), rank, 2)
        save_checkpoint(trainer, tmp_path)
        return losses(trainer, range(3, 5), rank, 2)

    def read(trainer: ORTTrainer, rank: int) -> list[float]:
        load_checkpoint(trainer, tmp_path, strict=True)
        assert trainer.current_step == 3
        return losses(trainer, range(3, 5), rank, 2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = on_ranks(2, write, optimizer="AdamOptimizer", deepspeed_zero_stage=1)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["ORT_checkpoint.ZeRO.0.1.ort.pt", "ORT_checkpoint.ZeRO.1.1.ort.pt"]
        assert on_ranks(2, read, optimizer="AdamOptimizer", deepspeed_zero_stage=1) == expected
        alone = onnx_trainer("AdamOptimizer", seed=2)
        load_checkpoint(alone, tmp_path, strict=True)
    assert losses(alone, range(3, 5)) == pytest.approx(np.mean(expected, axis=0), rel=1e-5)


def test_ranks_are_those_of_the_launcher() -> None:
    with pytest.raises(
        ValueError, match="world_rank, world_size: got 1, 4, expected 0, 1 as the processes were started"
    ):
        trainer_of(perceptron(), world_rank=1, world_size=4)
    mnist = (1, 0, 1)  # accumulation, rank and size by position, as the mnist samples have them
    trainer = ORTTrainer(perceptron(), None, description(), "SGDOptimizer", None, RATE, "cpu", *mnist)
    assert trainer.shard() == ()
