"""Trains the transformer of model.py with PyTorch alone, as its tutorial does: what train_ort.py started from.

python train.py [--steps 600] [--vocabulary 28782] [--dropout 0.2] [--threads 2] [--seed 1]
"""

from __future__ import annotations

import torch
from course import Batch, Course, Data, options
from torch import nn

from model import TransformerModel

args = options(__doc__, lr=5.0)
data = Data(args)
ntokens = args.vocabulary
model = TransformerModel(ntokens, dropout=args.dropout)

criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.95)


def train_step(epoch: int, batch: Batch) -> torch.Tensor:
    tokens, targets = batch
    while scheduler.last_epoch < epoch:
        scheduler.step()
    optimizer.zero_grad()
    output = model(tokens)
    loss = criterion(output.view(-1, ntokens), targets)
    loss.backward()
    if args.clip > 0:
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    return loss.detach()


def evaluate() -> float:
    model.eval()
    with torch.no_grad():
        losses = [criterion(model(tokens).view(-1, ntokens), targets).item() for tokens, targets in data.valid]
    model.train()
    return sum(losses) / len(losses)


course = Course("torch", args)
course.run(data.steps(args.steps), train_step, evaluate)
print(f"recorded in {course.save()}")
