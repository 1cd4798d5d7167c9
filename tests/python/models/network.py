"""What a real network is to the tests and benchmarks: a torch module, its inputs, and which extents may vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Extents:
    """The numbers behind the symbols "batch" and "sequence"."""

    batch: int = 2
    sequence: int = 12

    def __str__(self) -> str:
        return f"{self.batch}x{self.sequence}"


@dataclass(frozen=True, eq=False)
class Network:
    """
    name      as users pick it
    build     size ("test" or "bench") -> module
    feeds     (size, extents, random numbers) -> one array per input, in the order of forward()
    dynamic   input -> axis -> symbol
    outputs   names
    bench     extents that the benchmark uses
    shapes    two sets of extents that the tests alternate
    frozen    symbols that torch.export refuses to keep symbolic, so that only the script exporter has them
    """

    name: str
    build: Callable[[str], torch.nn.Module]
    feeds: Callable[[str, Extents, np.random.Generator], Feeds]
    dynamic: Mapping[str, Mapping[int, str]]
    outputs: Sequence[str]
    bench: Extents
    shapes: tuple[Extents, Extents] = (Extents(2, 12), Extents(3, 7))
    frozen: Sequence[str] = ()

    def module(self, size: str) -> torch.nn.Module:
        """Always the same weights."""
        torch.manual_seed(0)
        return self.build(size).eval()

    def symbols(self, exporter: str) -> dict[str, dict[int, str]]:
        """What may vary in an export, as `dynamic`."""
        frozen = self.frozen if exporter == "dynamo" else ()
        return {name: {a: s for a, s in axes.items() if s not in frozen} for name, axes in self.dynamic.items()}

    def alternatives(self, exporter: str) -> tuple[Extents, Extents]:
        """`shapes`, as far as such an export can take them."""
        first, second = self.shapes
        frozen = self.frozen if exporter == "dynamo" else ()
        return first, replace(second, **{symbol: getattr(first, symbol) for symbol in frozen})

    def example(self, size: str, extents: Extents, seed: int = 0) -> Feeds:
        return self.feeds(size, extents, np.random.default_rng(seed))


def settle_statistics(module: torch.nn.Module, images: torch.Tensor) -> torch.nn.Module:
    """Gives BatchNormalization the statistics of random images, so that activations neither vanish nor explode."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None  # cumulative average
    with torch.no_grad():
        module.train()(images)
    return module.eval()


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape, dtype=np.float32)
