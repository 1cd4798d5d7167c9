"""Dispatcher: which function lowers which operator. Users add and replace entries."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)
Target = str | torch._ops.OpOverload | torch._ops.OpOverloadPacket

_BUILT_IN: dict[str, Lowering] = {}


def names_of(target: Target) -> Iterator[str]:
    """Qualified names of the overloads: ``aten::add.Tensor``; a packet stands for all its overloads but ``out``."""
    if isinstance(target, str):
        yield target if "." in target.partition("::")[2] else f"{target}.default"
    elif isinstance(target, torch._ops.OpOverload):
        yield f"{target.namespace}::{target._schema.name.partition('::')[2]}.{target._overloadname}"
    else:
        for overload in target.overloads():  # type: ignore[no-untyped-call]
            if not overload.endswith("out"):
                yield from names_of(getattr(target, overload))


def _registering(table: dict[str, Lowering], targets: Sequence[Target]) -> Callable[[F], F]:
    def register(function: F) -> F:
        for target in targets:
            table.update(dict.fromkeys(names_of(target), function))
        return function

    return register


def lowers(*targets: Target) -> Callable[[F], F]:
    """Makes a function the built-in lowering of operators: ``@lowers(aten.relu)``."""
    return _registering(_BUILT_IN, targets)


def load_built_in() -> dict[str, Lowering]:
    """The table of all lowerings of Backpass; imports them on first use."""
    from backpass.torch import lowerings

    for module in pkgutil.walk_packages(lowerings.__path__, f"{lowerings.__name__}."):
        importlib.import_module(module.name)
    return _BUILT_IN


class Dispatcher:
    """Operator to lowering. A fresh one holds all lowerings of Backpass; ``register`` adds or replaces.

    A lowering is ``f(b, node, *args, **kwargs)``: the :class:`~backpass.torch.builder.GraphBuilder`, the fx node
    (``node.meta["val"]`` is what torch knows of the result), then the operator's arguments with tensors replaced by
    :class:`~backpass.torch.builder.Value`. It returns the name of the result, or a tuple of names.
    """

    def __init__(self, lowerings: dict[Target, Lowering] | None = None) -> None:
        self._table = dict(load_built_in())
        for target, function in (lowerings or {}).items():
            self.register(target)(function)

    def register(self, *targets: Target) -> Callable[[F], F]:
        """Decorator: this function lowers these operators (overloads, packets, or names such as ``mylib::op``)."""
        return _registering(self._table, targets)

    def remove(self, *targets: Target) -> None:
        """These operators are decomposed or handed to torch from now on."""
        for target in targets:
            for name in names_of(target):
                self._table.pop(name, None)

    def find(self, target: Any) -> Lowering | None:
        """The lowering of an operator that occurs in a graph, if there is one."""
        if not isinstance(target, torch._ops.OpOverload):
            return None
        return self._table.get(next(names_of(target)))

    def names(self) -> frozenset[str]:
        """Qualified names of all operators with a lowering."""
        return frozenset(self._table)

    def __contains__(self, target: Any) -> bool:
        return self.find(target) is not None

    def __len__(self) -> int:
        return len(self._table)
