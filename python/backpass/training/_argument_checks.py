"""What the constructor of ORTTrainer asks of its arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from backpass.optim._require import require
from backpass.optim.config import _OptimizerConfig
from backpass.training.orttrainer_options import ORTTrainerOptions


def is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever has a module has imported it
    return torch is not None and isinstance(model, torch.nn.Module)


def check_arguments(model: Any, model_desc: Any, optim_config: Any, loss_fn: Any, options: Any) -> None:
    """AssertionError, as in the original, but ValueError for a model that is none."""
    require(model is not None, "'model' is required and must be either a 'torch.nn.Module' or ONNX model")
    require(isinstance(model_desc, Mapping), "'model_desc' is required and must be a 'dict'")
    require(isinstance(optim_config, _OptimizerConfig), "'optim_config' is required and must be an optim.*Config")
    require(
        loss_fn is None or (callable(loss_fn) and _takes_two(loss_fn)),
        "'loss_fn' must be either 'None' or a function with two parameters, prediction and label",
    )
    require(
        options is None or isinstance(options, ORTTrainerOptions),
        "'options' must be either 'None' or an 'ORTTrainerOptions'",
    )
    if is_module(model):
        return
    if type(model).__name__ != "ModelProto":
        raise ValueError(f"'model' must be either 'torch.nn.Module' or 'onnx.ModelProto', not {type(model).__name__}")
    require(loss_fn is None, "'loss_fn' must not be specified when 'model' is an ONNX model: its loss is an output")


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        return len(inspect.signature(function).parameters) == 2
    except (TypeError, ValueError):  # compiled: nothing is known of it
        return True
