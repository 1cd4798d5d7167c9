"""What scripts take from ``onnxruntime.training.ortmodule._utils``."""

from __future__ import annotations

import inspect
import os
import random
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed

from backpass.ortmodule.debug import rank as get_rank

__all__ = [
    "check_function_has_param",
    "get_device_from_module_and_inputs",
    "get_device_index",
    "get_device_str",
    "get_exception_as_string",
    "get_fully_qualified_class_name",
    "get_random_states",
    "get_rank",
    "get_runtime_pytorch_version",
    "get_world_size",
    "parse_os_env_skip_check_flags",
    "set_random_states",
]


def get_random_states() -> tuple[Any, ...]:
    """Of Python, numpy, torch, and torch's GPUs."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def set_random_states(states: tuple[Any, ...]) -> None:
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


def get_device_index(device: str | int | torch.device) -> int:
    """The number of a device; of one without a number, 0."""
    return device if isinstance(device, int) else torch.device(device).index or 0


def get_device_str(device: str | int | torch.device) -> str:
    """``cuda:1``: kind and number, of a CPU the kind alone."""
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return found.type if found.type == "cpu" else f"{found.type}:{found.index or 0}"


def get_device_from_module_and_inputs(module: torch.nn.Module, inputs: Any, kwargs: Any) -> torch.device:
    """Where the module is, or what it is given; where neither tells, the CPU."""
    tensors: Iterable[Any] = (*module.parameters(), *module.buffers(), *inputs, *kwargs.values())
    return next((t.device for t in tensors if isinstance(t, torch.Tensor)), torch.device("cpu"))


def parse_os_env_skip_check_flags(env_name: str) -> list[str]:
    """Names joined by ``|`` in an environment variable."""
    return os.environ[env_name].split("|")


def get_exception_as_string(exception: BaseException) -> str:
    """The text and the traceback."""
    return "".join(traceback.format_exception(exception))


def get_runtime_pytorch_version() -> Any:
    """That of torch, without what follows a plus sign."""
    return torch.torch_version.TorchVersion(torch.__version__.partition("+")[0])


def check_function_has_param(function: Callable[..., Any], param_name: str) -> bool:
    return param_name in inspect.signature(function).parameters


def get_fully_qualified_class_name(cls: type) -> str:
    """Module and qualified name; those of built-in classes have no module."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def get_world_size() -> int:
    """How many processes train together."""
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    return 1 if alone else torch.distributed.get_world_size()
