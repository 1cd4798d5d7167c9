"""What scripts look up in ``onnxruntime.capi._pybind_state``: all that ``onnxruntime`` itself holds, and switches of
GPUs and of the original's inside, which are accepted without effect."""

from __future__ import annotations

import enum
from typing import Any

from backpass._ort import *  # noqa: F403
from backpass._ort.gradient_builder import GradientGraphBuilder as GradientGraphBuilder
from backpass._ort.training_parameters import TrainingParameters as TrainingParameters
from backpass.training.cast_strategy import PropagateCastOpsStrategy as PropagateCastOpsStrategy


class ArenaExtendStrategy(enum.IntEnum):
    """How the original's memory for GPUs grows."""

    kNextPowerOfTwo = 0  # noqa: N815  # the name scripts know
    kSameAsRequested = 1  # noqa: N815


class Severity(enum.IntEnum):
    """How much the original logs."""

    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    FATAL = 4


kNextPowerOfTwo, kSameAsRequested = ArenaExtendStrategy  # noqa: N816


def _without_effect(name: str) -> Any:
    def accept(*args: Any, **kwargs: Any) -> None:
        """Accepted, without effect: Backpass runs on CPUs and needs no such thing."""

    accept.__name__ = accept.__qualname__ = name
    return accept


set_cuda_device_id = _without_effect("set_cuda_device_id")
set_cuda_mem_limit = _without_effect("set_cuda_mem_limit")
set_arena_extend_strategy = _without_effect("set_arena_extend_strategy")
set_do_copy_in_default_stream = _without_effect("set_do_copy_in_default_stream")
set_gpu_external_allocator = _without_effect("set_gpu_external_allocator")
clear_training_ep_instances = _without_effect("clear_training_ep_instances")
unregister_python_functions = _without_effect("unregister_python_functions")
register_aten_op_executor = _without_effect("register_aten_op_executor")
register_forward_runner = _without_effect("register_forward_runner")
register_backward_runner = _without_effect("register_backward_runner")
register_torch_autograd_function = _without_effect("register_torch_autograd_function")
register_miscellaneous_const_input = _without_effect("register_miscellaneous_const_input")
register_shape_inference_function = _without_effect("register_shape_inference_function")
register_input_alias_function = _without_effect("register_input_alias_function")


def is_ortmodule_available() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def is_torch_interop_default_on() -> bool:
    """torch.autograd.Function is called back."""
    return True


def is_triton_enabled() -> bool:
    return False


def get_default_session_options() -> Any:
    return SessionOptions()  # noqa: F405
