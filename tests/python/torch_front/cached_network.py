"""A network in a file of its own, trained in processes that share a cache: `cached_network.py <steps> [key=value ...]`.

Prints as JSON the losses, whether exports came from the cache, what was logged, and whether torch's tracing was
loaded.
"""

from __future__ import annotations

import json
import logging
import sys

import torch
from backpass.ortmodule import FallbackPolicy, ORTModule, RuntimeOptions
from torch import nn

FACTOR = 2.0


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Settings:
    """As transformers' GenerationConfig keeps it: another number in every process."""

    def __init__(self) -> None:
        self._original_object_hash = hash("settings")


class Network(nn.Module):
    def __init__(self, width: int = 8, function: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, 2)
        self.dropout = nn.Dropout(dropout)
        self.function = function
        self.constant = torch.tensor([1.0, 2.0])
        self.settings = Settings()
        self.calls: int | None = None

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls = 1  # no part of what the next process asks for
        h = self.dropout(torch.tanh(self.norm(self.first(x)))) * FACTOR
        if self.function:
            h = Double.apply(h)
        y = self.last(h) * self.constant
        return {"loss": (y * y).mean(), "y": y}


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def main(steps: int, **options: object) -> dict[str, object]:
    records = _Records()
    logging.getLogger("backpass.ortmodule").addHandler(records)
    torch.manual_seed(0)
    seed = int(options.pop("weights", 0))  # type: ignore[call-overload]
    rows = int(options.pop("rows", 3))  # type: ignore[call-overload]
    module = Network(**options)  # type: ignore[arg-type]
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = ORTModule(module, options=RuntimeOptions(fallback_policy=FallbackPolicy.FALLBACK_DISABLE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        loss = model(torch.randn(rows, 4))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    cached = [variant.from_cache for variant in model._manager.variants]
    tracing = "torch.export._trace" in sys.modules
    return {"losses": losses, "cached": cached, "told": records.texts, "tracing": tracing}


if __name__ == "__main__":
    arguments = {key: json.loads(value) for key, _, value in (a.partition("=") for a in sys.argv[2:])}
    print(json.dumps(main(int(sys.argv[1]), **arguments)))
