"""SubscriberBase: what subscribers may do around each module's forward."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class _GlobalStates:
    execution_step: int = 0  #: forward passes of the outermost module that are over
    module_index_to_depth: dict[int, int] = field(default_factory=dict)  #: the outermost has depth 1
    module_to_module_index: dict[torch.nn.Module, int] = field(default_factory=dict)  #: depth first, from 0


class RuntimeStates:
    """Where a run is; subscribers get it with each call."""

    def __init__(self) -> None:
        self.global_states = _GlobalStates()
        self.shown: list[torch.Tensor] = []  #: in the capture that goes on, something of each tensor that is shown


class SubscriberBase:
    """Override the methods whose names end in ``_impl``: they are called from ``start_step`` on, before ``end_step``.

    What they return takes the place of what they were given. In an ORTModule they run when the module is exported, and
    what they compute with tensors is part of the graph; what is to happen at every step belongs into the ``forward`` of
    a `torch.autograd.Function` that the tensor goes through, as in `StatisticsSubscriber`.
    """

    def __init__(self, start_step: int | None, end_step: int | None) -> None:
        self._start_step = start_step if start_step is not None else 0
        self._end_step = end_step if end_step is not None else sys.maxsize

    def is_active(self, step: int) -> bool:
        return self._start_step <= step < self._end_step

    def pre_forward_module_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        if not self.is_active(run_rtx.global_states.execution_step):
            return args, kwargs
        return self.pre_forward_module_apply_impl(run_rtx, module, args, kwargs)

    def pre_forward_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Before a module: its arguments."""
        return args, kwargs

    def pre_forward_tensor_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        if not self.is_active(run_rtx.global_states.execution_step):
            return tensor
        return self.pre_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)

    def pre_forward_tensor_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        """Before a module: each tensor among its arguments."""
        return tensor

    def post_forward_module_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        if not self.is_active(run_rtx.global_states.execution_step):
            return args, outputs
        return self.post_forward_module_apply_impl(run_rtx, module, args, outputs)

    def post_forward_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        """After a module: its arguments and what it returned."""
        return args, outputs

    def post_forward_tensor_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        if not self.is_active(run_rtx.global_states.execution_step):
            return tensor
        return self.post_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)

    def post_forward_tensor_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        """After a module: each tensor that it returned."""
        return tensor

    def post_forward_outmost_module_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        if not self.is_active(run_rtx.global_states.execution_step):
            return args, outputs
        return self.post_forward_outmost_module_apply_impl(run_rtx, module, args, outputs)

    def post_forward_outmost_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        """After the outermost module, before the step is over."""
        return args, outputs
