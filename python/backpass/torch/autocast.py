"""What torch.autocast makes of operators that a capture keeps whole.

Autocast has a list of operators whose arguments it casts. Of others that are made of those (einsum, LSTM), it casts
what they are made of, while they run: a capture keeps such an operator whole, and would see none of it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx
from torch.fx.experimental import proxy_tensor

from backpass.torch.surroundings import replaced

aten = torch.ops.aten
Types = tuple[torch.dtype, ...]

# Of operators on autocast's list, though not on it. Those that are not named here give the same with casts and without.
_BY_PARTS = (
    aten._pad_enum.default,
    aten.chain_matmul.default,
    aten.einsum.default,
    aten.gru_cell.default,
    aten.inner.default,
    aten.linalg_matmul.default,
    aten.linalg_matrix_power.default,
    aten.linalg_multi_dot.default,
    aten.linalg_pinv.atol_rtol_float,
    aten.linalg_pinv.default,
    aten.linalg_pinv.rcond_tensor,
    aten.lstm_cell.default,
    aten.matrix_power.default,
    aten.nll_loss_nd.default,
    aten.pad.default,
    aten.rnn_relu_cell.default,
    aten.rnn_tanh_cell.default,
    aten.tensordot.default,
)

_PRODUCTS = (aten.affine_grid_generator.default, aten.linalg_pinv.atol_rtol_tensor)  # have no parts that can be traced

_LOSSES = (aten.nll_loss.default, aten.nll_loss2d.default)

_RECURRENT = {
    aten.lstm.input: "lstm",
    aten.gru.input: "gru",
    aten.rnn_tanh.input: "rnn_tanh",
    aten.rnn_relu.input: "rnn_relu",
}

_onednn: contextvars.ContextVar[bool] = contextvars.ContextVar("_onednn")
"""Whether torch uses oneDNN where nothing is captured: torch.export switches it off meanwhile."""

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def switched_off() -> contextlib.AbstractContextManager[Any]:
    """As if autocast were off; unlike ``torch.autocast(enabled=False)``, it leaves nothing in a capture."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


@contextlib.contextmanager
def seen_within() -> Iterator[None]:
    """Under autocast, torch.export's first trace by this thread gets such operators by their parts, or with casts
    around them. The second trace finds nothing left to do."""
    decompose = proxy_tensor.maybe_handle_decomp

    def called(mode: Any, op: Any, args: Any, kwargs: Any) -> Any:
        kernel = _kernels().get(op) if mode.pre_dispatch and torch.is_autocast_enabled("cpu") else None
        if kernel is None:
            return decompose(mode, op, args, kwargs)
        with mode:
            return kernel(*args, **kwargs)

    before = _onednn.set(torch._C._get_mkldnn_enabled())
    try:
        with replaced(proxy_tensor, "maybe_handle_decomp", called):
            yield
    finally:
        _onednn.reset(before)


@functools.cache
def _kernels() -> dict[Any, Callable[..., Any]]:
    parts = torch._C.DispatchKey.CompositeImplicitAutograd
    return {
        **{op: functools.partial(op._op_dk, parts) for op in _BY_PARTS},
        **{op: functools.partial(_recurrent, op, kind) for op, kind in _RECURRENT.items()},
        **{op: functools.partial(_ending_in_a_product, op) for op in _PRODUCTS},
    }


def _ending_in_a_product(op: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The operator whole, its result rounded."""
    with switched_off():
        return _rounded(op(*args, **kwargs))


def widen_losses(graph: fx.Graph) -> None:
    """The logarithms of a softmax that only losses read need not be rounded before they are float32: the engine can
    then join the loss with the product that gives the scores."""
    softmax = aten.log_softmax.int
    for node in list(graph.nodes):
        source: Any = node.args[0] if node.target is aten._to_copy.default else None
        if not isinstance(source, fx.Node) or source.target is not softmax or len(source.args) > 2 or source.kwargs:
            continue
        if node.kwargs == {"dtype": torch.float32} and all(user.target in _LOSSES for user in node.users):
            node.target, node.args, node.kwargs = softmax, (*source.args, torch.float32), {}
            if not source.users:
                graph.erase_node(source)


def _rounded(value: torch.Tensor) -> torch.Tensor:
    """As autocast casts arguments of products; it leaves 64 bits."""
    return value if value.dtype == torch.float64 else value.to(torch.get_autocast_dtype("cpu"))


# ---- recurrent layers
def _recurrent(
    op: Any, kind: str, x: torch.Tensor, states: Any, weights: Sequence[torch.Tensor], *settings: Any
) -> Any:
    """The layer whole, its input and weights rounded. It computes in the widest type that it gives."""
    given = [states] if isinstance(states, torch.Tensor) else list(states)
    types = result_types(kind, x, given, weights, settings, packed=False)
    wide = functools.reduce(torch.promote_types, types)
    with switched_off():
        first = [s.to(wide) for s in given]
        rounded = [_rounded(w).to(wide) for w in weights]
        results = op(_rounded(x).to(wide), first[0] if isinstance(states, torch.Tensor) else first, rounded, *settings)
        return tuple(r.to(t) for r, t in zip(results, types, strict=True))


def result_types(
    kind: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    settings: Sequence[Any],
    *,
    packed: bool,
) -> Types:
    """Element types of what a recurrent layer gives under the autocast that is on. `settings` are what follows weights.

    Those of packed sequences are for lengths that differ: with equal ones, torch may give others.
    """
    biases, layers, _, _, bidirectional = settings[:5]
    projected = len(weights) != layers * (2 if bidirectional else 1) * (4 if biases else 2)
    given = (x.dtype, *(s.dtype for s in states), weights[0].dtype)
    narrow, onednn = torch.get_autocast_dtype("cpu"), _onednn.get(torch._C._get_mkldnn_enabled())
    return _asked(onednn, kind, narrow, given, biases, layers, bidirectional, projected, packed)


@functools.cache
def _asked(onednn: bool, *form: Any) -> Types:
    """It depends on the processor, and on how torch was built: torch is asked, by the smallest layer of that form. In a
    thread of its own, where nothing is captured."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(onednn)
    try:
        with ThreadPoolExecutor(1) as other:
            return other.submit(_tried, *form).result()
    finally:
        torch._C._set_mkldnn_enabled(before)


def _tried(
    kind: str,
    narrow: torch.dtype,
    given: Types,
    biases: bool,
    layers: int,
    bidirectional: bool,
    projected: bool,
    packed: bool,
) -> Types:
    (of_x, *of_states, of_weights), directions = given, 2 if bidirectional else 1
    hidden = 2 if projected else 1
    rows = _GATES[kind] * hidden
    shapes: list[tuple[int, ...]] = []
    for layer in range(layers):
        each = [(rows, directions if layer else 1), (rows, 1), *([(rows,), (rows,)] if biases else [])]
        shapes += [*each, *([(1, hidden)] if projected else [])] * directions
    weights = [torch.zeros(shape, dtype=of_weights) for shape in shapes]
    extents = zip((1, hidden), of_states, strict=False)
    states = [torch.zeros((layers * directions, 2, n), dtype=dtype) for n, dtype in extents]
    x = torch.zeros((3, 1) if packed else (1, 2, 1), dtype=of_x)
    batch_sizes = [torch.tensor([2, 1])] if packed else []
    settings = (biases, layers, 0.0, False, bidirectional, *([] if packed else [False]))
    network = getattr(torch._VF, kind)
    with torch.autocast("cpu", narrow):
        results = network(x, *batch_sizes, states if kind == "lstm" else states[0], weights, *settings)
    return tuple(r.dtype for r in results)
