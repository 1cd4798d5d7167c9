"""Trains the transformer of model.py with ORTTrainer: train.py with its passes, loss and update as one step.

python train_ort.py [--steps 600] [--vocabulary 28782] [--dropout 0.2] [--threads 2] [--seed 1]
"""

from __future__ import annotations

import torch
from backpass import IODescription, ModelDescription, ORTTrainer
from course import Batch, Course, Data, batch_size, bptt, options
from torch import nn

from model import TransformerModel

args = options(__doc__, lr=0.001)
data = Data(args)
ntokens = args.vocabulary
lr = args.lr
device = "cpu"
model = TransformerModel(ntokens, dropout=args.dropout)

criterion = nn.CrossEntropyLoss()


def loss_with_flat_output(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    output = output.view(-1, ntokens)
    return criterion(output, target)


def model_description() -> ModelDescription:
    input_desc = IODescription("src", [bptt, batch_size], torch.int64)
    label_desc = IODescription("label", [bptt * batch_size], torch.int64)
    loss_desc = IODescription("loss", [], torch.float32)
    output_desc = IODescription("output", [bptt, batch_size, ntokens], torch.float32)
    return ModelDescription([input_desc, label_desc], [loss_desc, output_desc])


def learning_rate_description() -> IODescription:
    return IODescription("Learning_Rate", [1], torch.float32)


trainer = ORTTrainer(
    model,  # model
    loss_with_flat_output,  # loss function
    model_description(),  # model description
    "SGDOptimizer",  # optimizer name
    None,  # optimizer attributes
    learning_rate_description(),  # learning rate description
    device,  # device
    _opset_version=12,  # opset version
)


def train_step(epoch: int, batch: Batch) -> torch.Tensor:
    tokens, targets = batch
    loss: torch.Tensor = trainer.train_step(tokens, targets, torch.tensor([lr * 0.95**epoch]), fetches=["loss"])
    return loss


def evaluate() -> float:
    losses = [trainer.eval_step(tokens, targets, fetches=["loss"]).item() for tokens, targets in data.valid]
    return sum(losses) / len(losses)


course = Course("ORTTrainer", args)
course.run(data.steps(args.steps), train_step, evaluate)
print(f"recorded in {course.save()}")
