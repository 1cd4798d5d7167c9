"""What a module must be like to be exported, and the surroundings in which it is captured."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from backpass.ortmodule.fallback import (
    ORTModuleDeviceException,
    ORTModuleIOError,
    ORTModuleTorchModelException,
    wrap_exception,
)
from backpass.ortmodule.tree import ModuleTree


class Checks:
    """Refuses modules and tensors that a graph would get wrong; tells once what is done differently."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told: set[str] = set()

    def __call__(self, tree: ModuleTree, tensors: list[torch.Tensor]) -> None:
        for tensor in [*tensors, *(tree.tensor(name) for name in tree.slots)]:
            if tensor.device.type != "cpu":
                text = f"device of a tensor: got {tensor.device}, expected cpu"
                raise wrap_exception(ORTModuleDeviceException, RuntimeError(text))
            if tensor.layout != torch.strided:
                text = f"layout of a tensor: got {tensor.layout}, expected torch.strided; make it dense"
                raise wrap_exception(ORTModuleIOError, RuntimeError(text))
        for module in tree.modules:
            self._check_module(module)

    def _check_module(self, module: nn.Module) -> None:
        name = type(module).__name__
        if module._backward_hooks or module._backward_pre_hooks:
            text = (
                f"backward hooks of {name}: the backward pass of inner modules is not run by torch, so they would not "
                "be called; put hooks on the ORTModule or on tensors"
            )
            raise wrap_exception(ORTModuleTorchModelException, NotImplementedError(text))
        if module.training and isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None:
            text = f"{name}(momentum=None): the weights of a cumulative average change at every step, a graph's do not"
            raise wrap_exception(ORTModuleTorchModelException, NotImplementedError(text))
        if module._forward_hooks or module._forward_pre_hooks:
            self.tell(
                f"forward hooks of {name} are captured: what they compute is in the graph, what else they do happens "
                "at export only"
            )

    def tell(self, text: str) -> None:
        """A warning, once."""
        if text not in self._told:
            self._told.add(text)
            self._logger.warning("%s", text)


@contextlib.contextmanager
def proper_parameters(tree: ModuleTree) -> Iterator[None]:
    """A capture insists on nn.Parameter; torch.func.functional_call and others put plain tensors in their places."""
    changed = []
    for name in tree.parameters:
        members, key = tree.slots[name]
        if not isinstance(members[key], nn.Parameter):
            changed.append((members, key, members[key]))
    try:
        for members, key, tensor in changed:
            members[key] = nn.Parameter(tensor.detach(), tensor.requires_grad)
        yield
    finally:
        for members, key, tensor in changed:
            members[key] = tensor


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A capture sees no ambient no_grad, leaves no casts behind, and draws no random numbers that others would miss."""
    python, numpy, caching = random.getstate(), np.random.get_state(), torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_autocast_cache_enabled(caching)
        torch.clear_autocast_cache()
        random.setstate(python)
        np.random.set_state(numpy)
