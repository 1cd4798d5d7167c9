"""Which operators stay whole when torch decomposes a captured graph: those that have a lowering."""

from __future__ import annotations

import functools
from typing import Any

import torch

from backpass.torch.decompose import VALUES_ONLY
from backpass.torch.dispatch import Dispatcher, names_of


def training_table(dispatcher: Dispatcher) -> dict[Any, Any]:
    """torch's default decompositions without those of the operators that are lowered whole."""
    return dict(_table(dispatcher.names()))


@functools.lru_cache(maxsize=8)
def _table(lowered: frozenset[str]) -> dict[Any, Any]:
    table: Any = torch.export.default_decompositions()
    kept = {op for op in table if next(names_of(op)) in lowered or op._schema.name in VALUES_ONLY}
    return {op: rule for op, rule in table.items() if op not in kept}
