"""Variant: one exported graph of a module, for arguments of one structure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from backpass.ortmodule import io
from backpass.ortmodule.fallback import ORTModuleIOError, refusal
from backpass.ortmodule.guards import Guards
from backpass.ortmodule.tree import ModuleTree
from backpass.torch.compiled import CompiledModule
from backpass.torch.model import ExportedModel
from backpass.torch.runtime import EngineGraph

Shapes = tuple[tuple[int, ...], ...]


TypesInForce = tuple[Any, torch.dtype]


def types_in_force() -> TypesInForce:
    """What autocast computes in, or False, and what new tensors hold: graphs depend on them."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"), torch.get_default_dtype()


class Call:
    """One call of a module: what it is like, the structure of the arguments, and the tensors in it."""

    def __init__(
        self, tree: ModuleTree, arguments: io.Structure, tensors: list[torch.Tensor], in_force: TypesInForce
    ) -> None:
        self.tree, self.arguments, self.tensors = tree, arguments, tensors
        self.autocast, self.default_dtype = in_force

    @functools.cached_property
    def shapes(self) -> Shapes:
        return tuple([t.shape for t in self.tensors])

    @property
    def kinds(self) -> tuple[Any, ...]:
        """What a graph depends on besides structure and shapes."""
        return tuple([(t.dtype, t.device) for t in self.tensors]), self.autocast, self.default_dtype


@dataclass
class FlatCall:
    """A module as a function of the tensors of one structure of arguments; `result` is the structure of what it
    returned."""

    module: nn.Module
    arguments: io.Structure
    result: io.Structure = ()

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = io.rebuild(self.arguments, iter(tensors))
        results: list[torch.Tensor] = []
        self.result = io.flatten(self.module(*args, **kwargs), results, objects=True)
        if not results:
            raise refusal(ORTModuleIOError, "results of the module: got none, expected a tensor", TypeError)
        return tuple(results)


class Variant(CompiledModule):
    """An export, when it fits, and how it came to be."""

    export_seconds = 0.0
    build_seconds = 0.0
    from_cache = False
    alternatives: Any = None  # where it decides: backpass.ortmodule.alternatives
    _tree: ModuleTree | None = None

    def __init__(
        self,
        exported: ExportedModel,
        build: Callable[[Variant, list[str]], EngineGraph],
        *,
        result: io.Structure,
        training: bool,
        dynamic: bool,
        names: list[str],
    ) -> None:
        """`names`: of the tensors among the arguments."""
        super().__init__(exported, lambda wanted: build(self, wanted))
        self.exported = exported
        self.result, self.training, self.dynamic, self.names = result, training, dynamic, names
        self._guards = Guards(exported.guards)

    def fits(self, shapes: Shapes) -> bool:
        """Whether the graph computes what the module does for tensors of these shapes."""
        symbols: dict[str, int] = {}
        for spec in self.inputs:
            if spec.kind != "user":
                continue
            assert isinstance(spec.target, int)
            for known, given in zip(spec.shape, shapes[spec.target], strict=True):
                if (symbols.setdefault(known, given) if isinstance(known, str) else known) != given:
                    return False
        return self._guards.hold(dict(zip(self.names, shapes, strict=True)))

    def feeds_for(self, call: Call) -> list[torch.Tensor]:
        """What the graph is called with: the module's present tensors, and the call's."""
        if call.tree is not self._tree:
            self.connect(call.tree.slots)
            self._tree = call.tree
        return self.feeds(call.tensors)

    def answer(self, feeds: list[torch.Tensor], call: Call) -> Any:
        """What the module would return. OtherDecisionError, and nothing done, if that is not known."""
        leaves = self.run(self.graph(feeds), feeds, call.tensors)
        return leaves[0] if self.result == io.TENSOR else io.rebuild(self.result, iter(leaves))
