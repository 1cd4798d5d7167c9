"""SubscriberManager: registers what subscribers do as hooks of torch, and counts steps.

An ORTModule runs hooks when it is exported, and its graph holds what they computed. Two things make steps count there
as they do in PyTorch. The end of a step is a `torch.autograd.Function`, which the graph calls at every run, and which
does nothing while a module is captured. And hooks are registered anew at each step at which another set of subscribers
is active: ORTModule exports a module again when its hooks have changed, so a graph holds the hooks of its steps, and
none before the first and after the last of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from backpass.utils.hooks._subscriber_base import RuntimeStates, SubscriberBase
from backpass.utils.torch_io_helper import extract_tensors, map_tensors


class _Switch(threading.local):
    """True in a thread that captures a module; the first and only element of a list, as scripts know it."""

    is_on = False

    def __getitem__(self, index: int) -> bool:
        return self.is_on

    def __setitem__(self, index: int, value: bool) -> None:
        self.is_on = value


ORT_NO_INCREASE_GLOBAL_STEP = _Switch()


@contextlib.contextmanager
def no_increase_global_step() -> Iterator[None]:
    """Within, modules are run to see what they do: no step ends, and nothing is summarized."""
    before = ORT_NO_INCREASE_GLOBAL_STEP[0]
    ORT_NO_INCREASE_GLOBAL_STEP[0] = True
    try:
        yield
    finally:
        ORT_NO_INCREASE_GLOBAL_STEP[0] = before


def is_captured() -> bool:
    """Whether modules are run only to see what they do."""
    return ORT_NO_INCREASE_GLOBAL_STEP[0] or torch.compiler.is_compiling()


class _IncrementStep(torch.autograd.Function):
    """The end of a step: takes every tensor that the outermost module returns, so as to come after all of them; and, in
    a graph, something of each that was shown, so that it is computed although nothing else may depend on it."""

    @staticmethod
    def forward(ctx: Any, end_step: Callable[[], None], chosen: int, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.chosen, ctx.count = chosen, len(tensors)
        if not is_captured():
            end_step()
        return tensors[chosen].clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        gradients: list[torch.Tensor | None] = [None] * ctx.count
        gradients[ctx.chosen] = gradient
        return None, None, *gradients


_increment: Any = _IncrementStep.apply


class InGraphs:
    """A hook whose effects at every step are part of graphs, too: ORTModule has nothing to warn of."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> Any:
        return self._hook(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> InGraphs:
        return self  # a copied module has the same subscribers


class SubscriberManager:
    """Subscribers of one module and the steps it has run."""

    def __init__(self) -> None:
        self._run_ctx = RuntimeStates()
        self._subscribers: list[SubscriberBase] = []
        self._module: nn.Module | None = None
        self._handles: list[Any] = []
        self._active: list[SubscriberBase] = []

    def subscribe(self, module: nn.Module, subscribers: Sequence[SubscriberBase]) -> None:
        """These subscribers, and no others, from step 0 on. An ORTModule stands for the module in it."""
        if not isinstance(module, nn.Module):
            raise ValueError(f"module: got {type(module).__name__}, expected a torch.nn.Module instance")
        for subscriber in subscribers:
            if not isinstance(subscriber, SubscriberBase):
                raise ValueError(f"subscriber: got {type(subscriber).__name__}, expected a SubscriberBase instance")
        self.unsubscribe()
        if not subscribers:
            raise RuntimeError("No subscribers are registered: got an empty list, expected at least one")
        self._subscribers = list(subscribers)
        self._module = _unwrapped(module)
        self._number(self._module, 1)
        self._register()

    def unsubscribe(self) -> None:
        """The module is as it was before; steps count from 0 again."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._subscribers, self._active, self._module = [], [], [], None
        self._run_ctx = RuntimeStates()

    def get_subscriber(self, subscriber_type: type[Any]) -> Any:
        """The first subscriber of that type."""
        for subscriber in self._subscribers:
            if isinstance(subscriber, subscriber_type):
                return subscriber
        raise RuntimeError(f"Subscriber {subscriber_type} is not registered.")

    def get_run_context(self) -> RuntimeStates:
        return self._run_ctx

    def _number(self, module: nn.Module, depth: int) -> None:
        states = self._run_ctx.global_states
        index = states.module_to_module_index[module] = len(states.module_to_module_index)
        states.module_index_to_depth[index] = depth
        for child in map(_unwrapped, module.children()):
            if child not in states.module_to_module_index:
                self._number(child, depth + 1)

    def _end_step(self) -> None:
        self._run_ctx.global_states.execution_step += 1
        if self._active != self._active_now():
            self._register()

    def _active_now(self) -> list[SubscriberBase]:
        return [s for s in self._subscribers if s.is_active(self._run_ctx.global_states.execution_step)]

    def _register(self) -> None:
        """Hooks for the subscribers of this step; that of the step's end comes last."""
        for handle in self._handles:
            handle.remove()
        assert self._module is not None
        self._active = self._active_now()
        modules = self._run_ctx.global_states.module_to_module_index if self._active else {}
        self._handles = [self._module.register_forward_pre_hook(InGraphs(self._begin_step))]
        self._handles += [handle for module, index in modules.items() for handle in self._hooks_of(module, index)]
        self._handles.append(self._module.register_forward_hook(InGraphs(self._outermost_hook)))

    def _begin_step(self, module: nn.Module, args: Any) -> None:
        self._run_ctx.shown.clear()  # a capture that failed may have left some

    def _hooks_of(self, module: nn.Module, index: int) -> list[Any]:
        def pre(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
            self._run_ctx.global_states.module_to_module_index.setdefault(module, index)  # of a copy
            return self._before(module, args, kwargs)

        return [
            module.register_forward_pre_hook(InGraphs(pre), with_kwargs=True),
            module.register_forward_hook(InGraphs(self._after)),
        ]

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        context = self._run_ctx
        for sub in self._active:
            args, kwargs = sub.pre_forward_module_apply(context, module, args, kwargs)
        for sub in self._active:

            def apply(index: int, tensor: torch.Tensor, sub: SubscriberBase = sub) -> torch.Tensor:
                return sub.pre_forward_tensor_apply(context, module, index, tensor)

            args, kwargs = map_tensors(apply, args), map_tensors(apply, kwargs)
        return args, kwargs

    def _after(self, module: nn.Module, args: Any, outputs: Any) -> Any:
        context = self._run_ctx
        for sub in self._active:
            _, outputs = sub.post_forward_module_apply(context, module, args, outputs)
        for sub in self._active:

            def apply(index: int, tensor: torch.Tensor, sub: SubscriberBase = sub) -> torch.Tensor:
                return sub.post_forward_tensor_apply(context, module, index, tensor)

            outputs = map_tensors(apply, outputs)
        return outputs

    def _outermost_hook(self, module: nn.Module, args: Any, outputs: Any) -> Any:
        for sub in self._active:
            args, outputs = sub.post_forward_outmost_module_apply(self._run_ctx, module, args, outputs)
        tensors = extract_tensors(outputs)
        if not tensors:
            self._end_step()
            return outputs
        chosen = min(range(len(tensors)), key=lambda i: tensors[i].numel())  # the one that is copied
        passed = _increment(self._end_step, chosen, *tensors, *self._run_ctx.shown)
        self._run_ctx.shown.clear()
        return map_tensors(lambda i, tensor: passed if i == chosen else tensor, outputs)


def _unwrapped(module: nn.Module) -> nn.Module:
    from backpass.ortmodule import ORTModule

    return module.module if isinstance(module, ORTModule) else module
