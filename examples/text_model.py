"""What three examples train, each with a trainer of somebody else's: a transformer with its loss, on text."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from getting_started import corpus
from getting_started.model import TransformerModel
from torch import nn

LENGTH = 35


class LanguageModel(nn.Module):
    """The loss is part of the module, so that the engine runs it: scores of all words need never exist together."""

    def __init__(self, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.network = TransformerModel(vocabulary, dropout=dropout)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """Mean loss of telling each word of [batch, LENGTH + 1] from those before it."""
        words = texts.t()
        scores = self.network(words[:-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), words[1:].flatten())


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=100, help="updates (%(default)s)")
    add("--batch", type=int, default=20, help="texts in a batch (%(default)s)")
    add("--vocabulary", type=int, default=2000, help="words the model knows (%(default)s)")
    add("--dropout", type=float, default=0.2, help="(%(default)s)")
    add("--plain", action="store_true", help="let PyTorch run the model")
    add("--folder", type=Path, default=Path("build/text"), help="for checkpoints (%(default)s)")
    add("--text", type=Path, help="a file to train with, instead of what getting_started trains with")
    return parser


def texts(chosen: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of text to train with and to test with, one a row."""
    needed = (chosen.steps + 10) * chosen.batch * (LENGTH + 1)
    found = corpus.load(chosen.vocabulary, chosen.text, Path("build/getting_started"), needed)
    print(found.describe())
    train, valid = (corpus.batchify(part, len(part) // (LENGTH + 1)).t() for part in (found.train, found.valid))
    return train, valid[: 5 * chosen.batch]
