"""Memory of training passes: what ``ORTMODULE_MEMORY_OPT_*`` ask for, and ``ORTMODULE_PRINT_MEMORY_STATS``."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from backpass.ortmodule.options import RuntimeOptions
    from backpass.torch.runtime import EngineGraph

_MEBIBYTE = 2**20
_LEVELS = {1: "cheap", 2: "blocks"}
_LEVEL_NOTES = {
    1: "Memory Optimization Level: [TRANSFORMER_LAYERWISE_RECOMPUTE], what takes no products is computed again",
    2: "Memory Optimization Level: [TRANSFORMER_LAYERWISE_RECOMPUTE_WITH_COMPROMISE], only what stands between blocks "
    "is kept",
}


def recomputed(options: RuntimeOptions) -> list[str]:
    """``SessionOptions.recompute`` for these options: a level above 0 stands for itself, else the file is followed."""
    if options.memory_opt_level in _LEVELS:
        return [_LEVELS[options.memory_opt_level]]
    return read_config(options.memory_opt_config) if options.memory_opt_config else []


def read_config(path: str) -> list[str]:
    """The plans in a file: a JSON array of strings, ``"Gelu+:1:-1"``."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"memory_opt_config {path!r}: {error}") from error
    if not isinstance(found, list) or not all(isinstance(plan, str) for plan in found):
        raise ValueError(
            f"memory_opt_config {path!r}: got {found!r:.60}, expected a list of strings such as 'Gelu+:1:-1'"
        )
    return found


def note(options: RuntimeOptions) -> tuple[bool, str]:
    """Whether anything is computed again, and the line of the start-up table."""
    parts = []
    if options.memory_opt_level in _LEVEL_NOTES:
        parts.append(_LEVEL_NOTES[options.memory_opt_level])
    elif options.memory_opt_config:
        config = options.memory_opt_config
        parts.append(f"Memory Optimization Level: [USER_SPECIFIED], Optimization Config: {config}")
    if options.max_memory:
        share = options.max_memory <= 1
        limit = f"{options.max_memory:.0%} of what it would take" if share else f"{options.max_memory:.0f} bytes"
        parts.append(f"at most {limit}")
    return bool(parts), "; ".join(parts) or "set max_memory, or ORTMODULE_MEMORY_OPT_LEVEL to 1 or 2"


class MemoryStats:
    """Logs a line after each forward and backward pass of a graph."""

    def __init__(self, graph: EngineGraph, logger: logging.Logger) -> None:
        self.graph = graph
        self.logger = logger
        self.step = 0

    def __call__(self, phase: str, inputs: Sequence[torch.Tensor]) -> None:
        planned = self.graph.session.plan(list(inputs)).peak_bytes
        self.logger.warning(
            "step %d memory (MiB) | phase: %s | planned: %.1f | resident: %.1f",
            self.step, phase, planned / _MEBIBYTE, resident_bytes() / _MEBIBYTE,
        )  # fmt: skip
        if phase == "post_backward":
            self.step += 1


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
