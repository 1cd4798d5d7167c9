"""FlatModule: a module seen as a function from tensors to tensors, which is what gets captured."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from backpass.ortmodule import io
from backpass.ortmodule.fallback import ORTModuleIOError, wrap_exception


class FlatModule(nn.Module):
    """Takes the tensors of one structure of arguments, returns the tensors of what the module returns.

    It has the parts of the original under the original's names. Which structure the results have is in `result` after
    the first call.
    """

    _call: _Call

    def __init__(self, module: nn.Module, arguments: io.Structure, names: Sequence[str]) -> None:
        super().__init__()
        share_members(self, module)
        attributes = vars(self)
        attributes["training"] = module.training
        attributes["_call"] = _Call(module, arguments)
        attributes["forward"] = _named(self._forward, names)

    def _forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call = self._call
        args, kwargs = io.rebuild(call.arguments, iter(tensors))
        results: list[torch.Tensor] = []
        call.result = io.flatten(call.module(*args, **kwargs), results, objects=True)
        if not results:
            raise wrap_exception(ORTModuleIOError, TypeError("results of the module: got none, expected a tensor"))
        return tuple(results)

    @property
    def result(self) -> io.Structure:
        return self._call.result


@dataclasses.dataclass
class _Call:
    """An object of its own, since a capture puts the attributes of modules back as they were."""

    module: nn.Module
    arguments: io.Structure
    result: io.Structure = ()


def share_members(wrapper: nn.Module, module: nn.Module) -> None:
    """Gives `wrapper` the very tables in which `module` keeps parameters, buffers and submodules."""
    for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        vars(wrapper)[table] = getattr(module, table)


def _named(function: Any, names: Sequence[str]) -> Any:
    """A function of any number of arguments that shows names for them."""

    def forward(*args: Any) -> Any:
        return function(*args)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return forward
