"""A training by Lightning whose model runs in Backpass: `ORTModule` around it is all there is to do.

Accumulation of gradients, clipping, schedule, validation and checkpoints are Lightning's. The checkpoint holds the
names and values that it would hold without Backpass, so either can go on from the other's.

python examples/lightning_text.py [--steps 100] [--plain] [--resume]
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
from backpass import ORTModule
from lightning.pytorch.callbacks import ModelCheckpoint
from text_model import LanguageModel, options, texts
from torch.utils.data import DataLoader


class LanguageTask(lightning.LightningModule):
    def __init__(self, vocabulary: int, dropout: float, is_plain: bool) -> None:
        super().__init__()
        model = LanguageModel(vocabulary, dropout)
        self.model = model if is_plain else ORTModule(model)
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch)
        self.losses.append(loss.item())
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: torch.Tensor, number: int) -> None:
        self.log("valid_loss", self.model(batch), prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(chosen: argparse.Namespace) -> tuple[LanguageTask, lightning.Trainer]:
    lightning.seed_everything(1, verbose=False)
    task = LanguageTask(chosen.vocabulary, chosen.dropout, chosen.plain)
    batches, held_out = (DataLoader(part, chosen.batch, drop_last=True) for part in texts(chosen))
    half = max(1, chosen.steps // 2)
    saving = ModelCheckpoint(chosen.folder, every_n_train_steps=half, save_top_k=-1, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=chosen.steps, accumulate_grad_batches=2, gradient_clip_val=0.5,
        val_check_interval=2 * half, check_val_every_n_epoch=None, callbacks=[saving], logger=False,
        default_root_dir=chosen.folder, enable_progress_bar=chosen.progress, enable_model_summary=False,
    )  # fmt: skip
    last = chosen.folder / "last.ckpt"
    trainer.fit(task, batches, held_out, ckpt_path=last if chosen.resume else None, weights_only=False)
    return task, trainer


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="without a bar")
    chosen = parser.parse_args()
    task, trainer = train(chosen)
    print(f"loss {task.losses[0]:.3f} -> {task.losses[-1]:.3f}, held out {trainer.callback_metrics['valid_loss']:.3f}")
    if isinstance(task.model, ORTModule):
        print(task.model.explain())


if __name__ == "__main__":
    main()
