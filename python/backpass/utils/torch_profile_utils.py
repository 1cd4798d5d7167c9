"""Ranges for NVIDIA's profiler, which take part in nothing on CPUs, and one line about memory."""

from __future__ import annotations

from backpass import _needs_torch  # noqa: F401

# isort: split

import functools
import logging
import resource
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from backpass.ortmodule.debug import rank as rank_of_process
from backpass.ortmodule.memory import resident_bytes

P = ParamSpec("P")
R = TypeVar("R")
_nvtx: Any = torch.cuda.nvtx


def torch_nvtx_range_push(msg: str) -> None:
    """Opens a range of that name, where there is a GPU that could show it."""
    if torch.cuda.is_available():
        _nvtx.range_push(msg)


def torch_nvtx_range_pop() -> None:
    """Closes the range that was opened last."""
    if torch.cuda.is_available():
        _nvtx.range_pop()


def nvtx_function_decorator(func: Callable[P, R]) -> Callable[P, R]:
    """Calls of the function are ranges, which end also where it raises."""

    @functools.wraps(func)
    def ranged(*args: P.args, **kwargs: P.kwargs) -> R:
        torch_nvtx_range_push(func.__qualname__)
        try:
            return func(*args, **kwargs)
        finally:
            torch_nvtx_range_pop()

    return ranged


def log_memory_usage(
    cur_phase: str,
    rank_0_only: bool = True,
    step_info: str = "",
    logger: logging.Logger | None = None,
    module: torch.nn.Module | None = None,
) -> None:
    """One line with the memory this process has now and had at most; with ``module``, also that of its tensors.

    It goes to ``logger``, or is printed. With ``rank_0_only``, other processes than the first are silent.
    """
    rank = rank_of_process()
    if rank_0_only and rank:
        return
    sizes = {"allocated": resident_bytes(), "max allocated": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}
    if module is not None:
        parameters = list(module.parameters())
        sizes["param"] = sum(p.nbytes for p in parameters)
        sizes["grad"] = sum(p.grad.nbytes for p in parameters if p.grad is not None)
        sizes["buffer"] = sum(b.nbytes for b in module.buffers())
    parts = [f"phase: {cur_phase}", *(f"{name}: {size / 2**20:.0f}" for name, size in sizes.items())]
    line = " | ".join([f"rank-{rank} {step_info} memory (MiB)", *parts])
    if logger is None:
        print(line)
    else:
        logger.info(line)
