"""Which aten operators AOT graphs are broken into, and which stay whole because the engine has a kernel for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

# Kept whole, with their gradients: one kernel each instead of a dozen pointwise nodes.
KEPT = (
    "_log_softmax_backward_data",
    "_safe_softmax",
    "_softmax_backward_data",
    "embedding_dense_backward",
    "gelu_backward",
    "native_batch_norm_backward",
    "native_dropout_backward",
    "native_group_norm_backward",
    "native_layer_norm_backward",
    "nll_loss2d_backward",
    "nll_loss2d_forward",
    "nll_loss_backward",
    "nll_loss_forward",
    "select_backward",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "slice_backward",
    "tanh_backward",
    "threshold_backward",
)

# Its entry returns the attention weights where the backward operator wants the log-sum-exp: gradients would be wrong.
BROKEN = ("_scaled_dot_product_flash_attention_for_cpu",)


@functools.cache
def core_decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """torch's core table without `BROKEN`."""
    return _without(dict(core_aten_decompositions()), BROKEN)


@functools.cache
def decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """torch's core table without `KEPT` and `BROKEN`."""
    return _without(dict(core_decompositions()), KEPT)


def _without(table: dict[Any, Callable[..., Any]], names: Sequence[str]) -> dict[Any, Callable[..., Any]]:
    for name in names:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table
