"""What users give a trainer of the first generation, in the form the engine takes."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any


def loss_of_two(loss_fn: Callable[..., Any] | None) -> Callable[[Any, Any], Any] | None:
    """Without the arguments that have defaults: torch's own losses have many."""
    if loss_fn is None:
        return None
    signature = inspect.signature(loss_fn)
    try:
        signature.bind(None, None)
    except TypeError:
        raise RuntimeError("loss function should take two arguments - predict and label.") from None
    own = list(signature.parameters.values())
    if len(own) == 2:
        return loss_fn

    def loss(prediction: Any, label: Any) -> Any:
        return loss_fn(prediction, label)

    if len(own) > 2:  # the label may be bound by the name it has there
        loss.__signature__ = signature.replace(parameters=own[:2])  # type: ignore[attr-defined]
    return loss


def model_proto(model: Any) -> Any:
    """Of a file or its contents, too."""
    import onnx

    import backpass._needs_onnx  # noqa: F401

    if isinstance(model, bytes):
        return onnx.load_model_from_string(model)
    return onnx.load(model) if isinstance(model, str | os.PathLike) else model


def is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
