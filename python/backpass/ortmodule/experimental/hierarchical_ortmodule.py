"""HierarchicalORTModule: of a module that cannot be run as a whole, the parts that can."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from backpass.ortmodule.debug import DebugOptions, LogLevel
from backpass.ortmodule.fallback import ORTModuleFallbackException
from backpass.ortmodule.wrapper import ORTModule

Calls = dict[nn.Module, list[tuple[Any, Any]]]


class HierarchicalORTModule(nn.Module):
    """Wraps the largest parts of `module` that can be exported, each in an ORTModule; PyTorch runs the rest.

    It finds them at its first call, by what each part is called with. Parts that cannot be exported are named in
    warnings when the log level of `debug_options` is WARNING or lower; without options it is ERROR.
    """

    def __init__(self, module: nn.Module, debug_options: DebugOptions | None = None) -> None:
        super().__init__()
        self._original_module = module
        self._debug_options = debug_options
        self._initialized = False

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if not self._initialized:
            self._initialize(inputs, kwargs)
        return self._original_module(*inputs, **kwargs)

    @property
    def _log_level(self) -> LogLevel:
        return self._debug_options.logging.log_level if self._debug_options else LogLevel.ERROR

    def _initialize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls = _recorded_calls(self._original_module, args, kwargs)
        saved = self._debug_options.save_onnx_models.name_prefix if self._debug_options else ""
        self._original_module = self._wrapped(self._original_module, calls, saved, {})
        self._initialized = True
        self._tell(f"Wrapped module: {self._original_module}")

    def _wrapped(self, module: nn.Module, calls: Calls, prefix: str, done: dict[nn.Module, nn.Module]) -> nn.Module:
        """An ORTModule, or the module with parts of it replaced."""
        if module not in done:
            done[module] = self._exported(module, calls.get(module, []), prefix) or module
            if done[module] is module:
                for name, child in list(module.named_children()):
                    module._modules[name] = self._wrapped(child, calls, f"{prefix}_{name}", done)
        return done[module]

    def _exported(self, module: nn.Module, calls: list[tuple[Any, Any]], prefix: str) -> ORTModule | None:
        """The module in an ORTModule, if all that it was called with can be exported."""
        if not calls:
            self._tell(f"{type(module).__name__} is not wrapped: forward was not called")
            return None
        try:
            wrapped = ORTModule(module, self._options(prefix))
            for args, kwargs in calls:
                wrapped._manager.export(args, kwargs)
        except ORTModuleFallbackException as error:
            self._tell(f"{type(module).__name__} is not wrapped: {error}")
            return None
        return wrapped

    def _options(self, prefix: str) -> DebugOptions:
        given = self._debug_options
        if given is None:
            return DebugOptions(LogLevel.ERROR)
        saved = given.save_onnx_models
        return DebugOptions(given.logging.log_level, saved.save, prefix, saved.path)

    def _tell(self, text: str) -> None:
        if self._log_level <= LogLevel.WARNING:
            warnings.warn(text, stacklevel=2)


def _recorded_calls(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Calls:
    """What each part is called with by one forward pass."""
    calls: Calls = {}

    def record(part: nn.Module, args: Any, kwargs: Any) -> None:
        calls.setdefault(part, []).append((args, kwargs))

    handles = [part.register_forward_pre_hook(record, with_kwargs=True) for part in module.modules()]
    try:
        with torch.no_grad(), _untouched(module):
            module(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


@contextlib.contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Buffers and random numbers are as before: this pass is not one of the user's."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[]):
        yield
    for buffer, before in buffers:
        buffer.copy_(before)
