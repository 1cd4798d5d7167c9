"""Run by torchrun: trains with several processes and writes what rank 0 saw, and whether all ended with one model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from backpass.integrations.transformers import Trainer
from conftest import continued, gpt2
from end_of_gloo import end_process


def main(folder: Path, is_plain: bool) -> None:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "run"), max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=1e-2, logging_steps=1, save_strategy="no", disable_tqdm=True, report_to=[], use_cpu=True,
        ddp_backend="gloo",
    )  # fmt: skip
    kind = transformers.Trainer if is_plain else Trainer
    trainer = kind(model=gpt2(), args=arguments, train_dataset=continued(32), eval_dataset=continued(6))
    if not is_plain:  # transformers' own does not distribute a model that was evaluated before
        trainer.evaluate()
    trainer.train()
    evaluated = trainer.evaluate()["eval_loss"]
    mine = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    is_one = torch.tensor(int(torch.equal(first, mine)))
    dist.all_reduce(is_one, dist.ReduceOp.MIN)
    if trainer.is_world_process_zero():
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        wrapped = type(trainer.model_wrapped).__name__
        record = {"losses": losses, "eval": evaluated, "is_one": bool(is_one), "wrapped": wrapped}
        (folder / "record.json").write_text(json.dumps(record))
    end_process()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "plain")
