"""Small helpers that scripts and tests of the original take from here: element types, devices, keys of the state."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from backpass.optim._require import require

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Element types by the code ONNX gives them.
_ONNX_TYPES = [
    "undefined",
    "float",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "int32",
    "int64",
    "string",
    "bool",
    "float16",
    "double",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
    "bfloat16",
    "float8e4m3fn",
    "float8e4m3fnuz",
    "float8e5m2",
    "float8e5m2fnuz",
]
_TORCH_NAMES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}


def dtype_onnx_to_torch(onnx_type: int | str) -> Any:
    """torch's type for an ONNX one, given by its code or its name; `str` for text, None for "undefined"."""
    if isinstance(onnx_type, str):
        name = onnx_type.lower()
        require(name in _ONNX_TYPES, f"Invalid onnx_type string: {onnx_type!r}")
    elif isinstance(onnx_type, int):
        require(0 <= onnx_type < len(_ONNX_TYPES), f"Invalid onnx_type integer: {onnx_type}")
        name = _ONNX_TYPES[onnx_type]
    else:
        raise ValueError("'onnx_type' must be an ONNX type represented by either a string or integer")
    if name in ("undefined", "string"):
        return None if name == "undefined" else str
    import torch

    return getattr(torch, _TORCH_NAMES.get(name, name))


def dtype_torch_to_numpy(torch_dtype: Any) -> Any:
    """numpy's type for a torch one; for bfloat16, which numpy lacks, float16, as in the original."""
    name = str(torch_dtype).removeprefix("torch.")
    name = {"bfloat16": "float16", "complex32": "complex64", "bool": "bool_"}.get(name, name)
    found = getattr(np, name, None)
    if found is None:
        raise ValueError(f"torch_dtype ({torch_dtype}) type is not supported by Numpy")
    return found


def dtype_of_onnx(code: int) -> Any:
    """torch's type for an ONNX code, or numpy's where there is no torch."""
    if importlib.util.find_spec("torch"):
        return dtype_onnx_to_torch(code)
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(code)


def get_device_index(device: Any) -> int:
    """1 of "cuda:1"; 0 where none is said."""
    if isinstance(device, int):
        return device
    index = device.partition(":")[2] if isinstance(device, str) else device.index
    return int(index or 0)


def get_device_index_from_input(input: Any) -> int:
    """The index of the device a tensor, or the first of several, is on."""
    return get_device_index((input[0] if isinstance(input, (list, tuple)) else input).device)


def get_device_str(device: Any) -> str:
    """The device with its index: "cuda:0" for "cuda"."""
    if isinstance(device, int):
        return f"cuda:{device}"
    kind = device.partition(":")[0] if isinstance(device, str) else getattr(device, "type", None)
    if kind is None:
        raise RuntimeError("Unsupported device type")
    return f"{kind}:{get_device_index(device)}"


def static_vars(**kwargs: Any) -> Callable[[_Function], _Function]:
    """Gives a function attributes."""

    def decorate(function: _Function) -> _Function:
        for name, value in kwargs.items():
            setattr(function, name, value)
        return function

    return decorate


def import_module_from_file(file_path: str, module_name: str | None = None) -> ModuleType:
    """Imports a Python file, by default under its own name."""
    require(
        isinstance(file_path, str) and os.path.exists(file_path),
        f"'file_path' must be the path of a Python file that exists, not {file_path!r}",
    )
    require(
        module_name is None or (isinstance(module_name, str) and module_name != ""),
        f"'module_name' must be a string that is not empty, not {module_name!r}",
    )
    name = module_name or os.path.basename(file_path).split(".")[0]
    spec = importlib.util.spec_from_file_location(name, file_path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file_path} is no Python file", path=file_path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# Keys of the state of a trainer, by the functions that the original has for them.
_KEYS = {
    "state_dict_model_key": "model",
    "state_dict_optimizer_key": "optimizer",
    "state_dict_partition_info_key": "partition_info",
    "state_dict_trainer_options_key": "trainer_options",
    "state_dict_full_precision_key": "full_precision",
    "state_dict_original_dimension_key": "original_dim",
    "state_dict_user_dict_key": "user_dict",
    "state_dict_train_step_info_key": "train_step_info",
    "state_dict_trainer_options_mixed_precision_key": "mixed_precision",
    "state_dict_trainer_options_zero_stage_key": "zero_stage",
    "state_dict_trainer_options_world_rank_key": "world_rank",
    "state_dict_trainer_options_world_size_key": "world_size",
    "state_dict_trainer_options_data_parallel_size_key": "data_parallel_size",
    "state_dict_trainer_options_horizontal_parallel_size_key": "horizontal_parallel_size",
    "state_dict_trainer_options_optimizer_name_key": "optimizer_name",
    "state_dict_train_step_info_optimization_step_key": "optimization_step",
    "state_dict_train_step_info_step_key": "step",
}


def state_dict_sharded_optimizer_keys() -> set[str]:
    """What of an optimizer's state is cut into pieces by ZeRO."""
    return {"Moment_1", "Moment_2"}


def __getattr__(name: str) -> Callable[[], str]:
    if name not in _KEYS:
        raise AttributeError(f"module 'backpass.training._utils' has no attribute {name!r}")
    return lambda: _KEYS[name]
