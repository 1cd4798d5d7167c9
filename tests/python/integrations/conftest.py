"""Small models and texts; every test draws the same numbers, and nothing is asked of a hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZE = {"vocab_size": 61, "max_position_embeddings": 16}


def bert(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SIZE, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def classified(count: int) -> list[dict[str, Any]]:
    numbers = torch.Generator().manual_seed(1)
    return [
        {
            "input_ids": torch.randint(3, 61, (8,), generator=numbers),
            "attention_mask": torch.ones(8, dtype=torch.long),
            "labels": torch.tensor(i % 2),
            "not_a_parameter": torch.zeros(3),
        }
        for i in range(count)
    ]


def continued(count: int) -> list[dict[str, Any]]:
    """Texts of different lengths, filled up: batches have as many words as labels that count."""
    numbers = torch.Generator().manual_seed(2)
    texts = []
    for i in range(count):
        words = torch.randint(3, 61, (8,), generator=numbers)
        kept = torch.arange(8) < 4 + i % 5
        labels = torch.where(kept, words, -100)
        texts.append({"input_ids": words * kept, "attention_mask": kept.long(), "labels": labels})
    return texts


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def arguments(tmp_path: Path) -> Callable[..., Any]:
    """TrainingArguments of a short, silent training."""

    def make(name: str, **changes: Any) -> Any:
        settings = {
            "max_steps": 4, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "learning_rate": 1e-2,
            "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "seed": 0, "report_to": [],
            "use_cpu": True,
        }  # fmt: skip
        return transformers.TrainingArguments(output_dir=str(tmp_path / name), **{**settings, **changes})

    return make
