"""Exported: a model and how it belongs to an fx graph."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from backpass.torch import Slot


@dataclass
class Exported:
    """For each input of the model the position among the graph's placeholders, for each result of the graph where it
    comes from, and the operators left to torch."""

    proto: onnx.ModelProto
    feeds: list[int]
    results: list[Slot]
    fallbacks: list[str]
