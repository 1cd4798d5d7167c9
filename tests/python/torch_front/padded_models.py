"""Small transformers whose batches hold rows that nobody needs: families of the transformers library, and one written
by hand. What they are trained on is in padded_batches.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import zoo
from torch import nn
from zoo import TEXT, TOKENS, VISION, WIDTH, WORDS

Build = Callable[[str, float], nn.Module]
BROADCAST_4D = ("additive_4d", "infinite_4d", "bool_4d")


@dataclass(frozen=True)
class Family:
    """`build(attention, dropout)`: with transformers' "eager" or "sdpa" attention; `task` says what a batch holds."""

    task: str
    build: Build
    attentions: tuple[str, ...] = ("eager", "sdpa")
    forms: tuple[str, ...] = ("bool", "float", *BROADCAST_4D, "square_4d", "square_bool_4d")  # masks besides "long"


def _model(kind: str, head: str, attention: str, settings: dict[str, Any]) -> nn.Module:
    library = zoo._library()
    config = getattr(library, f"{kind}Config")(**settings)
    config._attn_implementation = attention
    return getattr(library, kind + head)(config)


def _text(kind: str, head: str, rates: tuple[str, ...], **settings: Any) -> Build:
    def build(attention: str, dropout: float) -> nn.Module:
        return _model(kind, head, attention, {**TEXT, **dict.fromkeys(rates, dropout), **settings})

    return build


def encoder(kind: str, head: str = "ForMaskedLM", **settings: Any) -> Build:
    return _text(kind, head, ("hidden_dropout_prob", "attention_probs_dropout_prob"), **settings)


def _gpt2(attention: str, dropout: float) -> nn.Module:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    settings = {
        "vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return _model("GPT2", "LMHeadModel", attention, {**settings, **rates})


def _t5(attention: str, dropout: float) -> nn.Module:
    settings = {
        "vocab_size": WORDS, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "dropout_rate": dropout, "use_cache": False, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    return _model("T5", "ForConditionalGeneration", attention, settings)


def _bart(attention: str, dropout: float) -> nn.Module:
    settings = {
        "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
        "dropout": dropout, "attention_dropout": dropout, "use_cache": False, "decoder_start_token_id": 2,
        "forced_eos_token_id": 2, **TOKENS,
    }  # fmt: skip
    return _model("Bart", "ForConditionalGeneration", attention, settings)


def _vit(attention: str, dropout: float) -> nn.Module:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return _model("ViT", "ForImageClassification", attention, {**VISION, **rates, "num_labels": 3})


@dataclass
class Scored:
    loss: torch.Tensor
    logits: torch.Tensor


class Tagger(nn.Module):
    """Written by hand, with torch's own layers: a tag for each word, padding told by `src_key_padding_mask`."""

    def __init__(self, batch_first: bool, dropout: float) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.places = nn.Embedding(64, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, dropout, "gelu", batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.tags = nn.Linear(WIDTH, 7)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Scored:
        """A mask of floats is added to the scores, one of booleans says which words are padding."""
        x = self.words(input_ids) + self.places(torch.arange(input_ids.size(1)))
        if not self.batch_first:
            x = x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=attention_mask)
        if not self.batch_first:
            x = x.transpose(0, 1)
        logits = self.tags(x)
        return Scored(nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


FAMILIES: dict[str, Family] = {
    "bert_masked": Family("masked", encoder("Bert")),
    "bert_classify": Family("classify", encoder("Bert", "ForSequenceClassification")),
    "roberta": Family("masked", encoder("Roberta", max_position_embeddings=66)),
    "roberta_classify": Family(
        "classify", encoder("Roberta", "ForSequenceClassification", max_position_embeddings=66)
    ),
    "electra": Family("masked", encoder("Electra", embedding_size=16)),
    "distilbert": Family(
        "masked",
        _text("DistilBert", "ForMaskedLM", ("dropout", "attention_dropout"), dim=WIDTH, n_layers=2, n_heads=4,
              hidden_dim=48),
    ),
    "albert": Family("masked", encoder("Albert", embedding_size=16)),
    "deberta": Family(
        "masked",
        encoder(
            "DebertaV2", relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
            pooler_hidden_size=WIDTH,
        ),
        attentions=("eager",),
        forms=("bool", "float", "bool_4d"),
    ),
    "mpnet": Family("masked", encoder("MPNet", max_position_embeddings=66), attentions=("eager",)),
    "gpt2": Family("causal", _gpt2),
    "gpt2_left": Family("causal_left", _gpt2),
    "opt": Family(
        "causal",
        _text("OPT", "ForCausalLM", ("dropout", "attention_dropout"), ffn_dim=48, word_embed_proj_dim=WIDTH,
              layerdrop=0.0, use_cache=False, **TOKENS),
        forms=("bool", "float"),
    ),
    "t5": Family("translate", _t5, forms=("bool", "float", *BROADCAST_4D)),
    "bart": Family("translate", _bart, forms=("bool", "float", *BROADCAST_4D)),
    "vit": Family("image", _vit, forms=()),
    "tagger": Family("tags", lambda _, p: Tagger(True, p), ("sdpa",), ("additive", "infinite")),
    "tagger_sequence_first": Family("tags", lambda _, p: Tagger(False, p), ("sdpa",), ("additive", "infinite")),
}  # fmt: skip


class LossOnly(nn.Module):
    """Nothing but the loss leaves the graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        return self.model(**batch).loss


def make(name: str, attention: str, dropout: float, loss_only: bool) -> nn.Module:
    torch.manual_seed(0)
    model = FAMILIES[name].build(attention, dropout)
    zoo.reinitialize(model)
    return (LossOnly(model) if loss_only else model).train()
