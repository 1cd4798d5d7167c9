"""Two processes with ZeRO write a checkpoint each; one process, or two, go on from them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

RANK = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from backpass import optim
from backpass.training import ORTTrainer, ORTTrainerOptions
from end_of_gloo import end_process
from trainer.generation2_models import LINEAR, cross_entropy, linear, linear_data, assert_same_state

rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
meeting = f"file://{sys.argv[1]}/meeting"  # a port that was free might not be any more
dist.init_process_group("gloo", init_method=meeting, rank=int(os.environ["RANK"]), world_size=2)
torch.set_num_threads(1)

def made(seed):
    distributed = {"world_rank": rank, "world_size": 2, "deepspeed_zero_optimization": {"stage": 1}}
    options = ORTTrainerOptions({"device": {"id": "cpu"}, "distributed": distributed})
    return ORTTrainer(linear(seed), LINEAR, optim.LambConfig(lr=0.1), cross_entropy, options)

trainer = made(1)
for step in range(3):
    trainer.train_step(*linear_data(2 * step + rank))
trainer.save_checkpoint(str(folder / f"{rank}.ortcp"), {"epoch": 2})
dist.barrier()
fresh = made(2)
assert fresh.load_checkpoint(str(folder / "1.ortcp"), str(folder / "0.ortcp")) == {"epoch": 2}
for step in range(3, 5):
    expected, found = (t.train_step(*linear_data(2 * step + rank)) for t in (trainer, fresh))
    assert torch.equal(expected[0], found[0])
state, whole = trainer.state_dict(), fresh.state_dict()
assert_same_state(whole["model"], state["model"])
assert_same_state(whole["optimizer"], state["optimizer"])
torch.save(state["model"]["full_precision"], folder / f"{rank}.after.pt")
dist.barrier()
end_process()
"""


def test_checkpoints_of_two_processes(tmp_path: Path) -> None:
    import torch
    from backpass import optim
    from backpass.training import ORTTrainer, ORTTrainerOptions, _checkpoint_storage, checkpoint
    from trainer.generation2_models import LINEAR, cross_entropy, linear, linear_data

    tests = str(Path(__file__).parents[1])
    places = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    shared = {**os.environ, "PYTHONPATH": places, "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", RANK, str(tmp_path)]
    ranks = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]

    pieces = [
        _checkpoint_storage.load(tmp_path / f"{rank}.ortcp", "optimizer/linear.weight/Moment_1") for rank in (0, 1)
    ]
    assert [piece.shape for piece in pieces] == [(4,), (4,)]
    paths = [str(tmp_path / f"{rank}.ortcp") for rank in (0, 1)]
    assert set(checkpoint.aggregate_checkpoints(paths)) == {"linear.weight", "linear.bias", "shift"}

    options = ORTTrainerOptions({"device": {"id": "cpu"}, "batch": {"gradient_accumulation_steps": 2}})
    alone = ORTTrainer(linear(5), LINEAR, optim.LambConfig(lr=0.1), cross_entropy, options)
    alone.load_checkpoint(*paths)
    for step in range(6, 10):  # the mean over two steps is what two processes do in one
        alone.train_step(*linear_data(step))
    found = alone.state_dict()["model"]["full_precision"]
    for rank in (0, 1):
        for name, value in torch.load(tmp_path / f"{rank}.after.pt", weights_only=False).items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
