"""FlatModule: a module seen as a function from tensors to tensors, which is what gets captured."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.export import Dim


class FlatModule(nn.Module):
    """Calls `function` with tensors under these names. It has the parts of `module` under that one's names."""

    def __init__(self, module: nn.Module, function: Callable[..., Any], names: Sequence[str]) -> None:
        super().__init__()
        share_members(self, module)
        vars(self).update(training=module.training, forward=_named(function, names))


def share_members(wrapper: nn.Module, module: nn.Module) -> None:
    """Gives `wrapper` the very tables in which `module` keeps parameters, buffers and submodules."""
    for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        vars(wrapper)[table] = getattr(module, table)


def _named(function: Callable[..., Any], names: Sequence[str]) -> Any:
    """A function of any number of arguments that shows names for them."""

    def forward(*args: Any) -> Any:
        return function(*args)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return forward


def varying_axes(names: Sequence[str], axes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """For each tensor the axes that may vary, in torch.export's form, which finds out whether they can."""
    return {name: dict.fromkeys(chosen, Dim.AUTO) or None for name, chosen in zip(names, axes, strict=True)}
