"""A training by transformers' Trainer whose model runs in Backpass: another import, nothing else.

python examples/transformers_text.py [--steps 100] [--plain] [--resume]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers
from backpass.integrations.transformers import Trainer
from text_model import LENGTH, options, texts


def rows(pieces: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def train(chosen: argparse.Namespace) -> Any:
    transformers.set_seed(1)
    config = transformers.GPT2Config(
        vocab_size=chosen.vocabulary, n_positions=LENGTH + 1, n_embd=128, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=1, resid_pdrop=chosen.dropout, embd_pdrop=chosen.dropout, attn_pdrop=chosen.dropout,
    )  # fmt: skip
    half = max(1, chosen.steps // 2)
    arguments = transformers.TrainingArguments(
        output_dir=str(chosen.folder), max_steps=chosen.steps, per_device_train_batch_size=chosen.batch,
        gradient_accumulation_steps=2, max_grad_norm=0.5, learning_rate=1e-3, lr_scheduler_type="cosine",
        eval_strategy="steps", eval_steps=half, save_strategy="steps", save_steps=half, logging_steps=half,
        use_cpu=True, report_to=[], seed=1,
    )  # fmt: skip
    train_rows, held_out = (rows(part) for part in texts(chosen))
    kind = transformers.Trainer if chosen.plain else Trainer
    model = transformers.GPT2LMHeadModel(config)
    trainer = kind(model=model, args=arguments, train_dataset=train_rows, eval_dataset=held_out)
    trainer.train(resume_from_checkpoint=chosen.resume)
    return trainer


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    trainer = train(parser.parse_args())
    if isinstance(trainer, Trainer):
        print(trainer.explain())


if __name__ == "__main__":
    main()
