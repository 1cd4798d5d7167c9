"""StatisticsSubscriber: files that tell what activations and their gradients were like, step by step."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backpass.utils.hooks._subscriber_base import RuntimeStates, SubscriberBase
from backpass.utils.hooks._subscriber_manager import is_captured

Summarize = Callable[[torch.Tensor, int, str, int], None]
_SAMPLES = 128


class _InspectActivation(torch.autograd.Function):
    """Shows a tensor on its way forward, and its gradient on its way back, under the step of the forward pass.

    To whom, if not to the StatisticsSubscriber that is subscribed to, its last two arguments say.
    """

    @staticmethod
    def forward(
        ctx: Any,
        activation_name: str,
        module_idx: int | None,
        run_ctx: RuntimeStates,
        input_tensor: torch.Tensor,
        module_post_forward: Summarize | None = None,
        module_pre_backward: Summarize | None = None,
    ) -> torch.Tensor:
        if module_post_forward is None or module_pre_backward is None:
            from backpass.utils.hooks import GlobalSubscriberManager

            subscriber = GlobalSubscriberManager.get_subscriber(StatisticsSubscriber)
            module_post_forward, module_pre_backward = _shown_to(subscriber)
        states = run_ctx.global_states
        depth = -1 if module_idx is None else states.module_index_to_depth[module_idx]
        ctx.shown = depth, activation_name, states.execution_step
        ctx.module_pre_backward = module_pre_backward
        if not is_captured():
            module_post_forward(input_tensor.detach(), *ctx.shown)
        return input_tensor.clone()  # not a view: what comes next may change it in place

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        ctx.module_pre_backward(grad_output.detach(), *ctx.shown)
        return None, None, None, grad_output, None, None


_apply: Any = _InspectActivation.apply


def inspect(
    subscriber: StatisticsSubscriber, run_ctx: RuntimeStates, name: str, module_idx: int | None, tensor: torch.Tensor
) -> torch.Tensor:
    """The tensor, which the subscriber sees at every step it is active at."""
    shown: torch.Tensor = _apply(name, module_idx, run_ctx, tensor, *_shown_to(subscriber))
    if is_captured():
        run_ctx.shown.append(_something_of(shown.clone().detach()))  # it may be changed in place
    return shown


def _something_of(tensor: torch.Tensor) -> torch.Tensor:
    """One element of it, where extents are known."""
    has_symbols = any(isinstance(extent, torch.SymInt) for extent in tensor.shape)
    return tensor if has_symbols else tensor.reshape(-1)[:1]


def _shown_to(subscriber: StatisticsSubscriber) -> tuple[Summarize, Summarize]:
    return subscriber.module_post_forward_impl, subscriber.module_pre_backward_impl


class StatisticsSubscriber(SubscriberBase):
    """Writes ``<output_dir>/step_<n>/<Class>_<module>_<k>th_output_forward`` for each tensor that a module returns, and
    ``..._backward`` for its gradient; ``order.txt`` beside them tells in which order.

    Modules are numbered depth first, from 0. `bucket_size` is how many elements are looked at together.
    """

    def __init__(
        self,
        output_dir: str,
        start_step: int | None = None,
        end_step: int | None = None,
        override_output_dir: bool = False,
        run_on_cpu: bool = False,
        bucket_size: int = 2**29,
    ) -> None:
        super().__init__(start_step, end_step)
        self._output_dir = output_dir
        self._bucket_size = bucket_size
        if not os.path.exists(output_dir):
            return
        if not override_output_dir:
            raise FileExistsError(
                f"output_dir: {output_dir} already exists; set override_output_dir=True to have it removed"
            )
        warnings.warn(f"output_dir: {output_dir} already exists and is removed", stacklevel=2)
        shutil.rmtree(output_dir)

    def post_forward_tensor_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        number = run_rtx.global_states.module_to_module_index[module]
        return inspect(self, run_rtx, f"{type(module).__name__}_{number}_{tensor_index}th_output", number, tensor)

    def module_post_forward_impl(self, activation: torch.Tensor, depth: int, name: str, step: int) -> None:
        self._write(activation, depth, name, step, "forward")

    def module_pre_backward_impl(self, activation: torch.Tensor, depth: int, name: str, step: int) -> None:
        self._write(activation, depth, name, step, "backward")

    def _write(self, tensor: torch.Tensor, depth: int, name: str, step: int, way: str) -> None:
        if is_captured() or not self.is_active(step):
            return
        folder = Path(self._output_dir) / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "order.txt").open("a", encoding="utf-8") as order:
            order.write(f"{name}_{way}\n")
        text = summary(f"{'>' * max(depth, 0)}{name} {way} run", tensor, self._bucket_size)
        (folder / f"{name}_{way}").write_text(text, encoding="utf-8")


def summary(title: str, tensor: torch.Tensor, bucket_size: int = 2**29) -> str:
    """What a tensor is like, as text."""
    elements = tensor.reshape(-1)
    found = _Found.of(torch.view_as_real(elements).reshape(-1) if tensor.is_complex() else elements, bucket_size)
    first = elements[:_SAMPLES]
    samples = first.float() if first.is_floating_point() else first
    shown = np.array2string(samples.numpy(), precision=6, max_line_width=128, separator=", ", threshold=_SAMPLES + 1)
    return (
        f"{title} shape: {tensor.shape} dtype: {tensor.dtype} size: {elements.shape} \n"
        f"min: {found.least:.8g} max: {found.most:.8g}, mean: {found.mean:.8g}, std: {found.deviation:.8g} \n"
        f"nan: {found.nan}, inf: {found.inf}\n"
        f"samples(top {_SAMPLES}): {shown}\n"
        f"neg: {found.negative}, pos: {found.positive}, zero: {found.zero},\n"
        f"{'=' * 16}\n"
    )


@dataclass
class _Found:
    """Counts and moments, in double precision; added up over pieces."""

    count: int = 0
    nan: int = 0
    inf: int = 0
    negative: int = 0
    positive: int = 0
    zero: int = 0
    least: float = float("nan")
    most: float = float("nan")
    mean: float = float("nan")
    deviation: float = float("nan")

    @staticmethod
    def of(elements: torch.Tensor, bucket_size: int) -> _Found:
        found = _Found(elements.numel())
        if not found.count:
            return found
        pieces = torch.split(elements, bucket_size)
        found.nan = sum(int(p.isnan().sum()) for p in pieces)
        found.inf = sum(int(p.isinf().sum()) for p in pieces)
        found.negative = sum(int((p < 0).sum()) for p in pieces)
        found.positive = sum(int((p > 0).sum()) for p in pieces)
        found.zero = sum(int((p == 0).sum()) for p in pieces)
        found.least = min(float(p.min()) for p in pieces) if not found.nan else float("nan")
        found.most = max(float(p.max()) for p in pieces) if not found.nan else float("nan")
        found.mean = sum(float(p.double().sum()) for p in pieces) / found.count
        if found.count > 1:
            squares = sum(float((p.double() - found.mean).square_().sum()) for p in pieces)
            found.deviation = (squares / (found.count - 1)) ** 0.5
        return found
