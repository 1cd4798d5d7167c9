"""What random graphs are drawn by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass
class Choices:
    rng: np.random.Generator

    def coin(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def number(self, low: int, high: int) -> int:
        """In [low, high]."""
        return int(self.rng.integers(low, high + 1))
