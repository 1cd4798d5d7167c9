"""load_from_json: options of an ORTModule from a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from backpass.ortmodule.debug import DebugOptions, read_level
from backpass.ortmodule.options import RuntimeOptions, read_policy
from backpass.ortmodule.wrapper import ORTModule

JSON_PATH_ENVIRONMENT_KEY = "ORTMODULE_JSON_CONFIG_PATH"
_WITHOUT_EFFECT = {
    "PropagateCastOps": "the engine runs the casts that a model has",
    "UseExternalGPUAllocator": "Backpass runs on CPUs",
    "EnableGradAccOptimization": "torch adds gradients to those it was handed",
    "RunSymbolicShapeInference": "shapes are always inferred",
    "SkipCheck": "each call looks whether module or inputs changed",
    "UseMemoryEfficientGradient": "gradients are handed to torch without a copy",
}


def load_from_json(ortmodule: ORTModule, path: str | os.PathLike[str] | None = None) -> None:
    """Sets options of `ortmodule` from a JSON file; by default the one ``ORTMODULE_JSON_CONFIG_PATH`` names.

    Known are ``EnableCustomAutogradFunction``, ``UseStaticShape``, ``FallbackPolicy`` (a list of names),
    ``OnnxOpsetVersion`` and ``DebugOptions`` (``LogLevel``, ``SaveONNX``, ``ONNXPrefix``, ``SaveONNXPath``). Keys that
    change nothing here are logged, others are a ValueError. Environment variables win over the file. The module is
    exported again.
    """
    place = path or os.environ.get(JSON_PATH_ENVIRONMENT_KEY)
    if not place:
        raise ValueError("path: got none, expected one, or the environment variable ORTMODULE_JSON_CONFIG_PATH")
    settings = json.loads(Path(place).read_text(encoding="utf-8"))
    options = vars(ortmodule)["_given_options"] or RuntimeOptions()
    debug = vars(ortmodule)["_debug_options"]
    for key, value in settings.items():
        if key == "DebugOptions":
            debug = _debug_options(value)
        elif key in _READERS:
            options = replace(options, **_READERS[key](value))
        elif key in _WITHOUT_EFFECT:
            ortmodule._manager.logger.warning("%s: %s has no effect: %s", place, key, _WITHOUT_EFFECT[key])
        else:
            raise ValueError(f"{place}: got {key!r}, expected {', '.join(sorted({*_READERS, 'DebugOptions'}))}")
    vars(ortmodule)["_given_options"] = options
    vars(ortmodule)["_debug_options"] = debug
    ortmodule._start()


_READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "EnableCustomAutogradFunction": lambda v: {"enable_custom_autograd_function": bool(v)},
    "UseStaticShape": lambda v: {"dynamic_shapes": "never" if v else "auto"},
    "FallbackPolicy": lambda v: {"fallback_policy": read_policy("|".join(v))},
    "OnnxOpsetVersion": lambda v: {"onnx_opset_version": int(v)},
}


def _debug_options(values: dict[str, Any]) -> DebugOptions:
    level = read_level("DebugOptions.LogLevel", values.get("LogLevel", "WARNING"))
    return DebugOptions(
        level, values.get("SaveONNX", False), values.get("ONNXPrefix", ""), values.get("SaveONNXPath", "")
    )
