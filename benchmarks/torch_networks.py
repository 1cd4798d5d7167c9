"""The networks that PyTorch users' steps are timed on. Runs with the torch and transformers of either environment: ours
and the one of onnxruntime-training 1.19.2."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from padded_networks import NAMES, PADDED
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]

# transformers' implementation of attention; without a name, the library's choice
ATTENTION = os.environ.get("BENCHMARK_ATTENTION") or None


class WithLoss(nn.Module):
    """The loss is part of what is wrapped: nothing else leaves the graph."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=False)[0]


def bert(masked: bool, dropout: float, layers: int, width: int, batch: int, length: int) -> Made:
    from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, attn_implementation=ATTENTION,
    )  # fmt: skip
    words, mask = torch.randint(0, config.vocab_size, (batch, length)), torch.ones(batch, length, dtype=torch.long)
    if masked:
        labels = torch.randint(0, config.vocab_size, (batch, length))
        labels[torch.rand(batch, length) > 0.15] = -100
    else:
        labels = torch.randint(0, 2, (batch,))
    model = (BertForMaskedLM if masked else BertForSequenceClassification)(config)
    return WithLoss(model, ("input_ids", "attention_mask", "labels")), (words, mask, labels)


def gpt2(dropout: float, layers: int, width: int, batch: int, length: int) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=width // 64, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, use_cache=False, attn_implementation=ATTENTION,
    )  # fmt: skip
    words = torch.randint(0, config.vocab_size, (batch, length))
    return WithLoss(GPT2LMHeadModel(config), ("input_ids", "labels")), (words, words.clone())


class Translator(nn.Module):
    """The language model of PyTorch's transformer tutorial."""

    def __init__(self, words: int, width: int, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 200, dropout)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embedding = nn.Embedding(words, width)
        self.decoder = nn.Linear(width, words)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("places", torch.randn(500, 1, width))

    def forward(self, source: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embedding(source) * self.embedding.embedding_dim**0.5
        x = self.encoder(self.dropout(x + self.places[: source.size(0)]), mask)
        scores = self.decoder(x)
        return nn.functional.cross_entropy(scores.view(-1, scores.size(-1)), target)


def tutorial(dropout: float) -> Made:
    words, length, batch = 28782, 35, 20
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    inputs = torch.randint(0, words, (length, batch)), mask, torch.randint(0, words, (length * batch,))
    return Translator(words, 200, 2 * dropout), inputs


class Classifier(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), labels)


def mlp(dropout: float) -> Made:
    network = Classifier(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    return network, (torch.randn(64, 784), torch.randint(0, 10, (64,)))


def cnn(dropout: float) -> Made:
    """For MNIST; no dropout, so that losses can be compared."""
    network = Classifier(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    return network, (torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second_norm(self.second(torch.relu(self.first_norm(self.first(x)))))
        return torch.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        blocks = [Block(a, b, 2 if b > a else 1) for a, b in pairwise(widths)]
        stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        self.body = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), labels)


def resnet18(dropout: float) -> Made:
    return ResNet18(), (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))


class UNet(nn.Module):
    """Four levels down and up again, two convolutions at each, joined level by level."""

    def __init__(self, width: int = 32, levels: int = 4, classes: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(self.convolutions(a, b) for a, b in pairwise([3, *widths]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.joined = nn.ModuleList(self.convolutions(2 * a, a) for a in widths[:-1])
        self.scores = nn.Conv2d(width, classes, 1)

    @staticmethod
    def convolutions(inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for width in (inputs, outputs):
            layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen = []
        for level, convolutions in enumerate(self.down):
            x = convolutions(nn.functional.max_pool2d(x, 2) if level else x)
            seen.append(x)
        for level in reversed(range(len(self.up))):
            x = self.joined[level](torch.cat([seen[level], self.up[level](x)], 1))
        return nn.functional.cross_entropy(self.scores(x), labels)


def unet(dropout: float) -> Made:
    return UNet(), (torch.randn(4, 3, 128, 128), torch.randint(0, 4, (4, 128, 128)))


class MeanOfStates(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(words, mask, return_dict=False)[0].mean()


def llama(dropout: float) -> Made:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaModel

    config = LlamaConfig(
        hidden_size=16, num_hidden_layers=1, vocab_size=1024, intermediate_size=16, max_position_embeddings=1024,
        num_attention_heads=2, use_cache=False,
    )  # fmt: skip
    config._attn_implementation = "eager"
    words = torch.randint(0, 1023, (2, 1024))
    return MeanOfStates(LlamaModel(config)), (words, torch.tril(torch.ones(2, 1024)))


NETWORKS: dict[str, Callable[[float], Made]] = {
    "mlp": mlp,
    "cnn": cnn,
    "bert_classify": lambda p: bert(False, p, 4, 512, 16, 128),
    "bert_masked": lambda p: bert(True, p, 4, 512, 16, 128),
    "gpt2": lambda p: gpt2(p, 4, 384, 4, 128),
    "tutorial": tutorial,
    "resnet18": resnet18,
    "unet": unet,
    "llama": llama,
    "bert_base": lambda p: bert(True, p, 12, 768, 2, 128),
    "gpt2_base": lambda p: gpt2(p, 12, 768, 2, 128),
}


def make_batches(name: str, dropout: float) -> tuple[nn.Module, list[tuple[Any, ...]]]:
    """The module and the batches that take turns; most networks have one."""
    torch.manual_seed(0)
    if name in PADDED:
        model, batches = PADDED[name](dropout)
        return WithLoss(model, NAMES).train(), batches
    module, inputs = NETWORKS[name](dropout)
    return module.train(), [inputs]


def make(name: str, dropout: float) -> tuple[nn.Module, tuple[Any, ...]]:
    module, batches = make_batches(name, dropout)
    return module, batches[0]
