"""Tables of decompositions for torch: which operators it breaks up, and which stay whole because they are lowered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

from backpass.torch.decompose import NEVER_DECOMPOSED
from backpass.torch.dispatch import Dispatcher, names_of

Table = dict[torch._ops.OperatorBase, Callable[..., Any]]

# Kept whole in graphs that torch has differentiated, with their gradients: one kernel each instead of a dozen pointwise
# nodes.
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

# Their parts look for errors in an order that a graph has no words for; torch runs the whole.
RUN_BY_TORCH = frozenset(
    f"aten::linalg_{name}" for name in ("cholesky", "inv", "ldl_factor", "lu_factor", "solve", "tensorinv")
)


def training_table(dispatcher: Dispatcher) -> dict[Any, Any]:
    """For graphs that the engine differentiates: torch's default table without the operators that are lowered."""
    return dict(_without_lowered(dispatcher.names()))


@functools.lru_cache(maxsize=8)
def _without_lowered(lowered: frozenset[str]) -> dict[Any, Any]:
    table: Any = torch.export.default_decompositions()
    whole = NEVER_DECOMPOSED | RUN_BY_TORCH
    kept = {op for op in table if next(names_of(op)) in lowered or op._schema.name in whole}
    return {op: rule for op, rule in table.items() if op not in kept}


@functools.cache
def core_decompositions() -> Table:
    """torch's core table without `BROKEN`."""
    return _without(core_aten_decompositions(), BROKEN)


@functools.cache
def aot_decompositions() -> Table:
    """torch's core table without `KEPT` and `BROKEN`."""
    return _without(core_decompositions(), KEPT)


def _without(table: Any, names: Sequence[str]) -> Table:
    gone = {f"aten::{name}" for name in names}
    return {
        op: rule for op, rule in table.items() if getattr(op, "_schema", None) is None or op._schema.name not in gone
    }
