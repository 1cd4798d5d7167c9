"""The original's table of functions that say how TorchScript's exporter writes operators of torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["CustomOpSymbolicRegistry", "register_symbolic", "wrap_custom_export_function"]

F = TypeVar("F", bound=Callable[..., Any])
_INSTEAD = (
    "is kept for torch.onnx alone: Backpass does not export by TorchScript, and lets torch run operators that it does "
    "not know; backpass.torch.lowers says how one is written"
)


class CustomOpSymbolicRegistry:
    """What was registered, by ``domain::name``."""

    _SYMBOLICS: dict[str, Callable[..., Any]] = {}  # noqa: RUF012  # scripts look into it

    @classmethod
    def register(cls, name: str, domain: str, fn: Callable[..., Any]) -> None:
        cls._SYMBOLICS[f"{domain}::{name}"] = fn

    @classmethod
    def register_all(cls, onnx_opset_version: int) -> None:
        """Hands them to torch.onnx."""
        from torch import onnx

        register: Any = vars(onnx)["register_custom_op_symbolic"]  # it has no types
        for name, function in cls._SYMBOLICS.items():
            register(name, function, onnx_opset_version)


def register_symbolic(
    name: str,
    domain: str = "",
    torch_version_start: str | None = None,
    torch_version_end: str | None = None,
    need_node: bool = False,
) -> Callable[[F], F]:
    """Decorator: the function is kept for ``torch.onnx``, from one version of torch on and before another."""

    def register(function: F) -> F:
        if _is_between(torch_version_start, torch_version_end):
            kept = wrap_custom_export_function(function) if need_node else function
            CustomOpSymbolicRegistry.register(name, domain, kept)
            warnings.warn(f"register_symbolic: {domain}::{name} {_INSTEAD}", stacklevel=2)
        return function

    return register


def wrap_custom_export_function(original_func: Callable[..., Any]) -> Callable[..., Any]:
    """A function of TorchScript's graph that hands on the node, too."""

    def with_node(graph: Any, *args: Any, **kwargs: Any) -> Any:
        return original_func(graph, graph.original_node, *args, **kwargs)

    return with_node


def _is_between(start: str | None, end: str | None) -> bool:
    import torch

    version = torch.torch_version.TorchVersion(torch.__version__)
    return not (start is not None and version < start) and not (end is not None and version >= end)
