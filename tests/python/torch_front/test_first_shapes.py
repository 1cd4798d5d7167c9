"""What the first calls cost: the first shapes, the first others, and the third, from which on shapes are free.

In processor time of this process: that of the clock depends on who else is at work.
"""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import zoo
from ortmodule_check import wrap
from test_zoo import cut

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def longformer() -> Made:
    import transformers

    config = transformers.LongformerConfig(**zoo.TEXT, attention_window=4, **zoo.NO_DROPOUT)
    words = torch.randint(3, zoo.WORDS, (2, 12))
    return zoo.LossOf(transformers.LongformerForMaskedLM(config), ("input_ids", "labels")), (words, words.clone())


def wav2vec2() -> Made:
    import transformers

    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=(16, 16),
        conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        feat_proj_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, final_dropout=0.0, classifier_proj_size=16,
    )  # fmt: skip
    model = transformers.Wav2Vec2ForSequenceClassification(config)
    return zoo.LossOf(model, ("input_values", "labels")), (torch.randn(2, 400), torch.tensor([0, 1]))


def marian() -> Made:
    import transformers

    config = transformers.MarianConfig(
        vocab_size=zoo.WORDS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, dropout=0.0,
        attention_dropout=0.0, use_cache=False, decoder_start_token_id=2, forced_eos_token_id=2, **zoo.TOKENS,
    )  # fmt: skip
    words = torch.randint(3, zoo.WORDS, (2, 12))
    return zoo.LossOf(transformers.MarianMTModel(config), ("input_ids", "labels")), (words, words[:, 3:].clone())


MORE: dict[str, Callable[[], Made]] = {"longformer": longformer, "wav2vec2": wav2vec2, "marian": marian}


def made(family: str) -> Made:
    torch.manual_seed(0)
    return MORE[family]() if family in MORE else zoo.make(family)


def first_calls(family: str) -> list[float]:
    """Seconds of the first step with each of four sets of shapes."""
    module, batch = made(family)
    trained, seconds = wrap(module.train()), []
    for _ in range(4):
        begin = time.process_time()
        trained(*batch).backward()
        seconds.append(time.process_time() - begin)
        batch = cut(batch, family)
    return seconds


def ratios(families: list[str]) -> list[list[float]]:
    first_calls("unet")  # what is loaded once
    rows: list[list[Any]] = []
    for family in families:
        seconds = first_calls(family)
        rows.append([s / seconds[0] for s in seconds[1:]])
        times = " ".join(f"{s:7.2f}" for s in seconds)
        print(f"{family:14}{times}   second {rows[-1][0]:5.2f}, third {rows[-1][1]:5.2f}", flush=True)
    return rows


@pytest.mark.slow
def test_other_shapes_cost_little_more_than_the_first():
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = ratios([*zoo.FAMILIES, *MORE])
    logging.disable(logging.NOTSET)
    second, third, fourth = zip(*rows, strict=True)
    print(f"median: second {statistics.median(second):.2f}, third {statistics.median(third):.2f}")
    assert statistics.median(second) < 1.5
    assert max(second) < 3
    assert statistics.median(fourth) < 0.2
