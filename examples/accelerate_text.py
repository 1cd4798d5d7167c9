"""A training loop around accelerate whose model runs in Backpass: `ORTModule` goes to `prepare` in the model's place.

Accumulation of gradients, mixed precision, clipping, several processes (`accelerate launch`) and checkpoints are
accelerate's.

python examples/accelerate_text.py [--steps 100] [--plain] [--resume] [--mixed-precision bf16]
"""

from __future__ import annotations

import argparse
import itertools

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from backpass import ORTModule
from text_model import LanguageModel, options, texts
from torch import nn
from torch.utils.data import DataLoader


def evaluate(accelerator: Accelerator, model: nn.Module, batches: DataLoader[torch.Tensor]) -> float:
    model.eval()
    with torch.no_grad():
        losses = [accelerator.gather_for_metrics(model(batch).unsqueeze(0)) for batch in batches]
    model.train()
    return torch.cat(losses).mean().item()


def train(chosen: argparse.Namespace) -> tuple[list[float], float, nn.Module]:
    set_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=chosen.mixed_precision)
    plain = LanguageModel(chosen.vocabulary, chosen.dropout)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    loaders = [DataLoader(part, chosen.batch, drop_last=True) for part in texts(chosen)]
    model, optimizer, schedule, batches, held_out = accelerator.prepare(
        plain if chosen.plain else ORTModule(plain), optimizer, schedule, *loaders
    )
    done = 0
    if chosen.resume:
        accelerator.load_state(str(chosen.folder / "state"))
        done = accelerator.step
    losses = []
    for batch in itertools.islice(itertools.cycle(batches), done, 2 * chosen.steps):
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    accelerator.save_state(str(chosen.folder / "state"))
    return losses, evaluate(accelerator, model, held_out), accelerator.unwrap_model(model)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--resume", action="store_true", help="go on from the last state")
    parser.add_argument("--mixed-precision", choices=("no", "bf16"), default="no")
    losses, held_out, model = train(parser.parse_args())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, held out {held_out:.3f}")
    if isinstance(model, ORTModule):
        print(model.explain())


if __name__ == "__main__":
    main()
