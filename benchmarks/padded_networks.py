"""Networks on batches as they come: sentences of different lengths, padded, few of whose tokens have a label. Eight
batches take turns, each with another number of tokens and labels. With BENCHMARK_DENSE=1 all sentences are full and all
labels count, which leaves an engine nothing to leave out. Runs in either environment, as torch_networks.py does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

BATCHES = 8
IGNORED = -100
DENSE = os.environ.get("BENCHMARK_DENSE") == "1"
# transformers' implementation of attention; without a name, the library's choice
ATTENTION = os.environ.get("BENCHMARK_ATTENTION") or None
NAMES = ("input_ids", "attention_mask", "labels")

Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Text:
    """Of all places `tokens` hold one, and of those `labels` have a label: as shares."""

    rows: int
    length: int
    tokens: float
    labels: float
    words: int
    padding: int


def masks(text: Text, rng: np.random.Generator) -> np.ndarray:
    """bool [BATCHES, rows, length]: sentences of all lengths around the mean, in any order."""
    count = BATCHES * text.rows
    least = max(0.0, 2 * text.tokens - 1)
    shares = (
        np.full(count, text.tokens) if text.tokens in (0, 1) else np.linspace(least, 2 * text.tokens - least, count)
    )
    lengths = np.clip(np.rint(rng.permutation(shares) * text.length), 1, text.length)
    found = np.arange(text.length) < lengths.reshape(BATCHES, text.rows, 1)
    return np.ones_like(found) if DENSE else found


def draw(text: Text, classes: int = 0) -> list[Batch]:
    """Words, attention mask and labels of each batch; with `classes`, one label for each sentence."""
    rng = np.random.default_rng(0)
    batches = []
    for valid in masks(text, rng):
        words = np.where(valid, rng.integers(3, text.words, valid.shape), text.padding)
        if classes:
            labels = rng.integers(0, classes, text.rows)
        else:
            chosen = valid & (DENSE | (rng.random(valid.shape) < text.labels))
            labels = np.where(chosen, words, IGNORED)
        batches.append(tuple(torch.from_numpy(a.astype(np.int64)) for a in (words, valid, labels)))
    return batches


def start(module: nn.Module) -> nn.Module:
    """Versions of the library start differently: the same numbers for all, in the order of the names."""
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            if parameter.dim() > 1:
                parameter.copy_(torch.from_numpy(rng.normal(0, 0.02, tuple(parameter.shape)).astype(np.float32)))
    return module


def encoder(kind: str, head: str, layers: int, width: int, dropout: float) -> nn.Module:
    import transformers

    extra = {"max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 50265} if kind == "Roberta" else {}
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, attn_implementation=ATTENTION, **extra,
    )  # fmt: skip
    return start(getattr(transformers, f"{kind}For{head}")(config))


def gpt2(layers: int, width: int, dropout: float) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=width // 64, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, use_cache=False, attn_implementation=ATTENTION,
    )  # fmt: skip
    return start(GPT2LMHeadModel(config))


Made = tuple[nn.Module, list[Batch]]

PADDED: dict[str, Callable[[float], Made]] = {
    "bert_masked_padded": lambda p: (
        encoder("Bert", "MaskedLM", 4, 512, p), draw(Text(16, 128, 0.6, 0.15, 30522, 0))
    ),
    "bert_classify_padded": lambda p: (
        encoder("Bert", "SequenceClassification", 4, 512, p), draw(Text(16, 128, 0.6, 1.0, 30522, 0), classes=2)
    ),
    "roberta_classify": lambda p: (
        encoder("Roberta", "SequenceClassification", 4, 512, p), draw(Text(16, 128, 1.0, 1.0, 50265, 1), classes=2)
    ),
    "gpt2_padded": lambda p: (gpt2(12, 768, p), draw(Text(4, 128, 0.5, 1.0, 50257, 50256))),
    "gpt2_small_padded": lambda p: (gpt2(4, 384, p), draw(Text(8, 128, 0.5, 1.0, 50257, 50256))),
}  # fmt: skip
