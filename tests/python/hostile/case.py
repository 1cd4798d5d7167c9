"""What a row of the table is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import backpass
import onnx

INVALID = backpass.InvalidInput
UNSUPPORTED = backpass.Unsupported

OPSET = 20
Model = bytes | Path | onnx.ModelProto
MakeModel = Callable[[Path], Model]  # given an empty folder


@dataclass(frozen=True, eq=False)
class Case:
    """
    model   text of a graph (see `parse`), a model, or a function of an empty folder that returns bytes or a file
    kind    error class
    says    every one of these stands in the message
    feeds   None: refused when loaded, and `backpass.check` says the same. Else: loads, and running it is refused.
    """

    name: str
    model: str | Model | MakeModel
    kind: type[backpass.Error]
    says: tuple[str, ...]
    feeds: dict[str, Any] | None = field(default=None)

    def make(self, folder: Path) -> bytes | Path:
        model = self.model(folder) if callable(self.model) else self.model
        if isinstance(model, str):
            model = parse(model)
        return model.SerializeToString() if isinstance(model, onnx.ModelProto) else model


def bad(name: str, model: str | Model | MakeModel, *says: str) -> Case:
    return Case(name, model, INVALID, says)


def unsupported(name: str, model: str | Model | MakeModel, *says: str) -> Case:
    return Case(name, model, UNSUPPORTED, says)


def bad_run(name: str, model: str | Model | MakeModel, feeds: dict[str, Any], *says: str) -> Case:
    return Case(name, model, INVALID, says, feeds)


def parse(text: str) -> onnx.ModelProto:
    """A model from ONNX's text form; the header may be left out: `(float[2] x) => (y) { [name] y = Relu(x) }`."""
    if not text.lstrip().startswith("<"):
        text = f'<ir_version: 9, opset_import: ["" : {OPSET}, "my" : 1, "com.microsoft" : 1]> g {text}'
    return onnx.parser.parse_model(text)


def edited(text: str, edit: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    """The parsed model after `edit`, for what the text form cannot say."""
    model = parse(text)
    edit(model)
    return model
