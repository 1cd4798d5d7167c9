"""What a module must be like to be exported, and the surroundings in which it is captured."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from backpass.ortmodule.fallback import (
    ORTModuleDeviceException,
    ORTModuleIOError,
    ORTModuleTorchModelException,
    refusal,
)
from backpass.ortmodule.tree import ModuleTree
from backpass.ortmodule.variant import Call
from backpass.torch.model import ExportedModel
from backpass.torch.surroundings import saving_unseen
from backpass.utils.hooks._subscriber_manager import InGraphs, no_increase_global_step


class Checks:
    """Refuses modules and tensors that a graph would get wrong; tells once what is done differently."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told: set[str] = set()

    def __call__(self, call: Call) -> None:
        tree = call.tree
        for tensor in [*call.tensors, *(tree.tensor(name) for name in tree.slots)]:
            if tensor.device.type != "cpu":
                raise refusal(ORTModuleDeviceException, f"device of a tensor: got {tensor.device}, expected cpu")
            if tensor.layout != torch.strided:
                text = f"layout of a tensor: got {tensor.layout}, expected torch.strided; make it dense"
                raise refusal(ORTModuleIOError, text)
        known = {id(module) for module in tree.modules}
        for module in tree.modules:
            self._check_module(module)
            for name, value in vars(module).items():
                if any(id(m) not in known and m.state_dict() for m in _unregistered(name, value)):
                    raise _refused(
                        f"{type(module).__name__}.{name}: got modules that are not registered, whose weights would be "
                        "constants of the graph; use nn.ModuleList or nn.ModuleDict"
                    )

    def _check_module(self, module: nn.Module) -> None:
        from backpass.ortmodule.wrapper import ORTModule

        name = type(module).__name__
        if isinstance(module, ORTModule):
            raise _refused(
                f"parts of the module: got an ORTModule (of {type(module.module).__name__}), expected plain modules; "
                "wrap the whole only, and give it the part's .module"
            )
        if module._backward_hooks or module._backward_pre_hooks:
            raise _refused(
                f"backward hooks of {name}: the backward pass of inner modules is not run by torch, so they would not "
                "be called; put hooks on the ORTModule or on tensors",
                NotImplementedError,
            )
        if module.training and isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None:
            text = f"{name}(momentum=None): the weights of a cumulative average change at every step, a graph's do not"
            raise _refused(text, NotImplementedError)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            self.tell(f"{name}(sparse=True): its gradient is dense here, which torch.optim.SparseAdam does not take")
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if not all(isinstance(hook, InGraphs) for hook in hooks):
            self.tell(
                f"forward hooks of {name} are captured: what they compute is in the graph, what else they do happens "
                "at export only"
            )

    def check_export(self, module: nn.Module, exported: ExportedModel) -> None:
        """Refuses what only a capture shows."""
        name = type(module).__name__
        if exported.without_gradients:
            raise _refused(
                f"tensors that require gradients, but are no parameters of {name} where forward uses them: got "
                f"{len(exported.without_gradients)}, expected none; register them as nn.Parameter, their modules as "
                "attributes or in an nn.ModuleList, or set requires_grad to False"
            )
        if exported.unguarded:
            raise _refused(
                f"{name} decides by the contents of tensors what to compute, in a way that a graph cannot check: got "
                f"{exported.unguarded[0]}, expected comparisons of numbers; compute with tensors (torch.where), or "
                "round them there"
            )

    def tell(self, text: str) -> None:
        """A warning, once."""
        if text not in self._told:
            self._told.add(text)
            self._logger.warning("%s", text)


_refused = functools.partial(refusal, ORTModuleTorchModelException)


def _unregistered(name: str, value: object) -> list[nn.Module]:
    """Modules that an attribute holds by itself or in a container."""
    if name == "_modules":
        return []
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    return [v for v in values if isinstance(v, nn.Module)]


@contextlib.contextmanager
def proper_parameters(tree: ModuleTree) -> Iterator[None]:
    """A capture insists on nn.Parameter; torch.func.functional_call and others put plain tensors in their places."""
    slots = [tree.slots[name] for name in tree.parameters]
    changed = [(members, key, members[key]) for members, key in slots if not isinstance(members[key], nn.Parameter)]
    try:
        for members, key, tensor in changed:
            members[key] = nn.Parameter(tensor.detach(), tensor.requires_grad)
        yield
    finally:
        for members, key, tensor in changed:
            members[key] = tensor


@contextlib.contextmanager
def without_traces(tree: ModuleTree, tell: Callable[[str], None]) -> Iterator[None]:
    """A capture runs forward on tensors without contents: those that it left in attributes are taken out again."""
    before = [(module, {n: (v, _copied(v)) for n, v in vars(module).items()}) for module in tree.modules]
    try:
        yield
    finally:
        for module, attributes in before:
            for name in [n for n, v in vars(module).items() if n not in ("_parameters", "_buffers") and _is_trace(v)]:
                tell(
                    f"forward of {type(module).__name__} leaves tensors in its attribute {name}: a graph does not; the "
                    "attribute stays as it was. Return what you need"
                )
                if name not in attributes:
                    del vars(module)[name]
                    continue
                value, copied = attributes[name]
                vars(module)[name] = value
                if isinstance(value, list | dict):
                    value.clear()
                    value.extend(copied) if isinstance(value, list) else value.update(copied)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict) else None


def _is_trace(value: Any) -> bool:
    return any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(value))


@contextlib.contextmanager
def undisturbed() -> Iterator[Callable[[], bool]]:
    """A capture sees no ambient no_grad, leaves no casts behind, draws no random numbers that others would miss, and is
    no step of a subscriber's.

    Gives a function that tells whether it drew some from Python or numpy, which a graph does not do.
    """
    python, numpy, caching = random.getstate(), np.random.get_state(), torch.is_autocast_cache_enabled()

    def drawn() -> bool:
        pairs = zip(np.random.get_state(), numpy, strict=True)
        return random.getstate() != python or not all(np.array_equal(now, before) for now, before in pairs)

    try:
        torch.set_autocast_cache_enabled(False)
        with torch.inference_mode(False), torch.enable_grad(), saving_unseen(), no_increase_global_step():
            yield drawn
    finally:
        torch.set_autocast_cache_enabled(caching)
        torch.clear_autocast_cache()
        random.setstate(python)
        np.random.set_state(numpy)
