"""Small members of the model families that people train, made on the spot: a module whose forward returns the loss, and
what it is called with."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]

BATCH, LENGTH, WORDS, WIDTH = 2, 12, 61, 32
TEXT: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class LossOf(nn.Module):
    """A model of the transformers library, called with tensors by position."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, tensors, strict=True))).loss


def _library() -> Any:
    import transformers

    return transformers


def _words(*shape: int) -> torch.Tensor:
    return torch.randint(3, WORDS, shape)


def _text(kind: str, head: str, labels: Callable[[], torch.Tensor], **config: Any) -> Made:
    library = _library()
    model = getattr(library, head)(getattr(library, f"{kind}Config")(**{**TEXT, **config}))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, -3:] = 0
    return LossOf(model, ("input_ids", "attention_mask", "labels")), (_words(BATCH, LENGTH), mask, labels())


def _masked() -> torch.Tensor:
    labels = _words(BATCH, LENGTH)
    labels[:, ::3] = -100
    return labels


def _classes() -> torch.Tensor:
    return torch.randint(0, 2, (BATCH,))


def encoder(kind: str, head: str = "ForMaskedLM", **config: Any) -> Callable[[], Made]:
    labels = _classes if "Sequence" in head else _masked
    return lambda: _text(kind, kind + head, labels, **{**NO_DROPOUT, **config})


def decoder(kind: str, head: str | None = None, **config: Any) -> Callable[[], Made]:
    settings = {**TOKENS, "num_key_value_heads": 2, "use_cache": False, **config}
    return lambda: _text(kind, head or f"{kind}ForCausalLM", lambda: _words(BATCH, LENGTH), **settings)


def fnet() -> Made:
    library = _library()
    model = library.FNetForMaskedLM(library.FNetConfig(**TEXT, hidden_dropout_prob=0.0))
    return LossOf(model, ("input_ids", "labels")), (_words(BATCH, LENGTH), _masked())


def gpt2() -> Made:
    config = _library().GPT2Config(
        vocab_size=WORDS, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    words = _words(BATCH, LENGTH)
    return LossOf(_library().GPT2LMHeadModel(config), ("input_ids", "labels")), (words, words.clone())


def opt() -> Made:
    return decoder(
        "OPT", ffn_dim=48, word_embed_proj_dim=WIDTH, dropout=0.0, layerdrop=0.0, do_layer_norm_before=True
    )()  # fmt: skip


def bloom() -> Made:
    config = _library().BloomConfig(
        vocab_size=WORDS, hidden_size=WIDTH, n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0,
        use_cache=False, **TOKENS,
    )  # fmt: skip
    words = _words(BATCH, LENGTH)
    return LossOf(_library().BloomForCausalLM(config), ("input_ids", "labels")), (words, words.clone())


def mamba() -> Made:
    config = _library().MambaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, state_size=8, time_step_rank=4, use_cache=False,
        use_mambapy=False,
    )  # fmt: skip
    words = _words(BATCH, LENGTH)
    return LossOf(_library().MambaForCausalLM(config), ("input_ids", "labels")), (words, words.clone())


def t5() -> Made:
    config = _library().T5Config(
        vocab_size=WORDS, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
        use_cache=False, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LossOf(_library().T5ForConditionalGeneration(config), ("input_ids", "labels")), (
        _words(BATCH, LENGTH),
        _words(BATCH, LENGTH - 3),
    )


def bart() -> Made:
    config = _library().BartConfig(
        vocab_size=WORDS, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, dropout=0.0,
        attention_dropout=0.0, use_cache=False, decoder_start_token_id=2, forced_eos_token_id=2, **TOKENS,
    )  # fmt: skip
    return LossOf(_library().BartForConditionalGeneration(config), ("input_ids", "labels")), (
        _words(BATCH, LENGTH),
        _words(BATCH, LENGTH - 3),
    )


def whisper() -> Made:
    config = _library().WhisperConfig(
        vocab_size=WORDS, num_mel_bins=8, d_model=WIDTH, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_source_positions=10, max_target_positions=32, dropout=0.0, use_cache=False, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None, **TOKENS,
    )  # fmt: skip
    model = _library().WhisperForConditionalGeneration(config)
    return LossOf(model, ("input_features", "labels")), (torch.randn(BATCH, 8, 20), _words(BATCH, 6))


def clip() -> Made:
    library = _library()
    text = {**TEXT, "projection_dim": 16, **TOKENS}
    vision = {
        "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "image_size": 16, "patch_size": 8, "projection_dim": 16,
    }  # fmt: skip
    model = library.CLIPModel(library.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))

    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, words: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=words, pixel_values=pixels, return_loss=True).loss

    return Contrast(), (_words(BATCH, LENGTH), torch.randn(BATCH, 3, 16, 16))


def image(kind: str, size: int = 16, **config: Any) -> Callable[[], Made]:
    def make() -> Made:
        library = _library()
        settings = getattr(library, f"{kind}Config")(num_labels=3, **config)
        model = getattr(library, f"{kind}ForImageClassification")(settings)
        labels = torch.randint(0, 3, (BATCH,))
        return LossOf(model, ("pixel_values", "labels")), (torch.randn(BATCH, 3, size, size), labels)

    return make


def segformer() -> Made:
    library = _library()
    config = library.SegformerConfig(
        num_labels=3, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, sr_ratios=[2, 1],
        num_attention_heads=[1, 2], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, drop_path_rate=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip
    model = library.SegformerForSemanticSegmentation(config)
    return LossOf(model, ("pixel_values", "labels")), (
        torch.randn(BATCH, 3, 32, 32),
        torch.randint(0, 3, (BATCH, 32, 32)),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.smooth = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.last = nn.Conv2d(8 + 8 + 16, 2, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        wide = self.down(x)
        deep = self.middle(wide)
        scores = self.last(torch.cat([wide, self.up(deep), self.smooth(deep)], 1))
        return nn.functional.cross_entropy(scores, target, label_smoothing=0.1)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(24, 5)

    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(words))
        return nn.functional.cross_entropy(self.tags(states).flatten(0, 1), tags.flatten(), ignore_index=4)


def tagger() -> Made:
    words = _words(BATCH, LENGTH)
    words[:, -2:] = 0
    return Tagger(), (words, torch.randint(0, 5, (BATCH, LENGTH)))


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((3, 8, 2), (8, 16, 1), (16, 16, 2)):
            layers += [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs)]
            layers += [nn.ReLU6(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.Hardswish()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), labels)


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 1, 2, 48, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(WIDTH, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        states = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
        return nn.functional.cross_entropy(self.scores(states).transpose(1, 2), target)


VISION: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 8, **NO_DROPOUT,
}  # fmt: skip

# With the library's own choice of how experts are computed.
EXPERTS: dict[str, Callable[[], Made]] = {
    "mixtral": decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": decoder(
        "Qwen2Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24
    ),
    "qwen3_moe": decoder("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8),
    "deepseek_v3": decoder(
        "DeepseekV3",
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=16,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "gpt_oss": decoder("GptOss", num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=8),
    "olmoe": decoder("Olmoe", num_experts=4, num_experts_per_tok=2),
    "jamba": decoder(
        "Jamba",
        num_experts=4,
        num_experts_per_tok=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "qwen3_next": decoder(
        "Qwen3Next",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=24,
        head_dim=8,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
}

FAMILIES: dict[str, Callable[[], Made]] = {
    "bert_mlm": encoder("Bert"),
    "bert_seqcls": encoder("Bert", "ForSequenceClassification"),
    "roberta": encoder("Roberta", max_position_embeddings=66),
    "distilbert": lambda: _text(
        "DistilBert",
        "DistilBertForMaskedLM",
        _masked,
        dim=WIDTH,
        n_layers=2,
        n_heads=4,
        hidden_dim=48,
        dropout=0.0,
        attention_dropout=0.0,
    ),
    "electra": encoder("Electra", embedding_size=16),
    "albert": encoder("Albert", embedding_size=16),
    "deberta_v2": encoder(
        "DebertaV2", relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], pooler_hidden_size=WIDTH
    ),
    "mpnet": encoder("MPNet"),
    "modernbert": encoder("ModernBert", **TOKENS, cls_token_id=1, sep_token_id=2, reference_compile=False),
    "fnet": fnet,
    "gpt2": gpt2,
    "gpt_neox": decoder("GPTNeoX", hidden_dropout=0.0, attention_dropout=0.0),
    "opt": opt,
    "bloom": bloom,
    "llama": decoder("Llama"),
    "mistral": decoder("Mistral", sliding_window=8),
    "qwen2": decoder("Qwen2"),
    "qwen3": decoder("Qwen3", head_dim=8),
    "gemma2": decoder("Gemma2", head_dim=8, sliding_window=8),
    "phi3": decoder("Phi3", resid_pdrop=0.0, embd_pdrop=0.0),
    "olmo2": decoder("Olmo2"),
    **EXPERTS,
    "mamba": mamba,
    "t5": t5,
    "bart": bart,
    "vit": image("ViT", **VISION),
    "deit": image("DeiT", **VISION),
    "swin": image(
        "Swin",
        image_size=32,
        size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 2],
        window_size=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        drop_path_rate=0.0,
    ),
    "convnext": image("ConvNext", size=32, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, drop_path_rate=0.0),
    "resnet": image("ResNet", size=32, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    "segformer": segformer,
    "whisper": whisper,
    "clip": clip,
    "unet": lambda: (UNet(), (torch.randn(BATCH, 3, 8, 12), torch.randint(0, 2, (BATCH, 8, 12)))),
    "lstm_tagger": tagger,
    "mobilenet": lambda: (MobileNet(), (torch.randn(4, 3, 16, 16), torch.randint(0, 4, (4,)))),
    "transformer": lambda: (Translator(), (_words(BATCH, LENGTH), _words(BATCH, LENGTH - 4))),
}


def reinitialize(module: nn.Module) -> None:
    """With the libraries' own start many gradients are so small that no error would show."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.2)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))


def make(family: str) -> Made:
    torch.manual_seed(0)
    module, inputs = FAMILIES[family]()
    module.train()
    reinitialize(module)
    return module, inputs
