"""What the engine calls for nodes that torch runs: PythonOp (a user's ``torch.autograd.Function``) and ATen (an aten
operator that has no lowering), forward and backward.

Exporters emit such nodes by :func:`emit_aten` and :func:`emit_python_op`; :func:`opaque_autograd_functions` keeps user
functions whole while a module is captured. :func:`usage` tells what was called, how often and how long it took.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from backpass import InvalidInput, Profile
from backpass.torch import autocast
from backpass.torch.arguments import decode, is_portable
from backpass.torch.emit import emit_aten, emit_python_op
from backpass.torch.functions import class_of, name_of, unresolved
from backpass.torch.opaque import opaque_autograd_functions, original_apply, transparent_autograd_functions
from backpass.torch.trial import casting

Tensors = list[torch.Tensor | None]


# ---- what was called
@dataclass
class Usage:
    """The calls of one node."""

    op: str  #: PythonOp, PythonOpGrad, ATen or ATenGrad
    node: str  #: name of the node
    target: str  #: the function or the operator: ``my.module.Swish``, ``_fft_c2c``
    calls: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.op} {self.target} '{self.node}': {self.calls} calls, {self.seconds * 1e3:.3f} ms"


_usage: dict[tuple[str, str, str], Usage] = {}
_usage_lock = threading.Lock()


def usage() -> list[Usage]:
    """What was called since the last :func:`reset_usage`, the most expensive first."""
    with _usage_lock:
        return sorted(_usage.values(), key=lambda u: -u.seconds)


def reset_usage() -> None:
    with _usage_lock:
        _usage.clear()


def shares(profile: Profile) -> dict[str, float]:
    """The nodes of a profile that torch ran, and the part of the profile's time that each took, the largest first."""
    with _usage_lock:
        targets = {(u.op, u.node): u.target for u in _usage.values()}
    spent: dict[str, float] = defaultdict(float)
    for step in profile.steps:
        if step.op in ("PythonOp", "PythonOpGrad", "ATen", "ATenGrad"):
            spent[f"{step.op} {targets.get((step.op, step.name), '')} '{step.name}'"] += step.duration_us
    total = max(profile.total_us, 1e-9)
    return {label: time / total for label, time in sorted(spent.items(), key=lambda item: -item[1])}


def _record(op: str, node: str, target: str, start: float) -> None:
    passed = time.perf_counter() - start
    with _usage_lock:
        record = _usage.get((op, node, target))
        if record is None:
            record = _usage[op, node, target] = Usage(op, node, target)
        record.calls += 1
        record.seconds += passed


def _blame(error: Exception, op: str, node: str, target: str) -> None:
    what = "torch.autograd.Function" if op.startswith("PythonOp") else "aten operator"
    when = "backward" if op.endswith("Grad") else "forward"
    error.add_note(f"raised in the {when} of {what} {target}, called by [{op} '{node}']")


# ---- running
@dataclass(slots=True)
class Context:
    """What a forward call leaves behind for its backward call: where torch's graph ends and begins."""

    outputs: list[GradientEdge | None]
    inputs: Tensors  #: those that want a gradient


def forward(
    op: str,
    node: str,
    target: str,
    arguments: str,
    tensors: Tensors,
    borrowed: list[bool],
    requires_grad: list[bool] | None,
) -> tuple[Tensors, Context | None]:
    """Runs a node; a context only when ``requires_grad`` says which tensors want gradients.

    Memory of ``borrowed`` tensors belongs to the engine again when the call is over. Only aten operators are lent any:
    torch tells what these keep, nobody tells what other code does.
    """
    start = time.perf_counter()
    try:
        return _forward(op == "PythonOp", target, arguments, tensors, borrowed, requires_grad)
    except Exception as error:
        _blame(error, op, node, target)
        raise
    finally:
        _record(op, node, target, start)


def backward(op: str, node: str, target: str, context: Context, gradients: Tensors, wanted: list[bool]) -> Tensors:
    """Gradients of the wanted inputs; None where torch says there is none.

    The graph is kept until the engine lets go of the context: a model may read it more than once.
    """
    start = time.perf_counter()
    try:
        return _backward(context, gradients, wanted)
    except Exception as error:
        _blame(error, op, node, target)
        raise
    finally:
        _record(op, node, target, start)


def _forward(
    is_function: bool,
    target: str,
    arguments: str,
    tensors: Tensors,
    borrowed: list[bool],
    requires_grad: list[bool] | None,
) -> tuple[Tensors, Context | None]:
    run = _run_function if is_function else _run_operator
    if requires_grad is None:
        with torch.no_grad():
            return _results(run(target, arguments, tensors, borrowed), tensors), None
    with torch.enable_grad():
        leaves = [
            t.requires_grad_() if r and t is not None else None for t, r in zip(tensors, requires_grad, strict=True)
        ]
        outputs = run(target, arguments, tensors, borrowed)
        edges = [get_gradient_edge(o) if o.requires_grad else None for o in outputs]
    return _results(outputs, tensors), Context(edges, leaves)


def _backward(context: Context, gradients: Tensors, wanted: list[bool]) -> Tensors:
    starts = [(o, g) for o, g in zip(context.outputs, gradients, strict=True) if o is not None and g is not None]
    ends = [(i, leaf) for i, leaf in enumerate(context.inputs) if leaf is not None and wanted[i]]
    results: Tensors = [None] * len(wanted)
    if not starts or not ends:
        return results
    # What torch.autograd.grad comes down to; it checks shapes, too.
    found = torch.autograd.Variable._execution_engine.run_backward(
        tuple(o for o, _ in starts),
        tuple(g for _, g in starts),
        True,  # keep_graph
        False,  # create_graph
        tuple(leaf for _, leaf in ends),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    for (i, _), gradient in zip(ends, _results(found, gradients), strict=True):
        results[i] = gradient
    return results


def _run_function(target: str, arguments: str, tensors: Tensors, _: list[bool]) -> list[torch.Tensor]:
    call = decode(arguments)
    given = [t.clone() if t is not None and i in call.dirty else t for i, t in enumerate(tensors)]
    args, kwargs = call.fill(given)
    with casting(call.autocast):
        return _tensors_in(original_apply(class_of(target), *args, **kwargs))


def _run_operator(target: str, arguments: str, tensors: Tensors, borrowed: list[bool]) -> list[torch.Tensor]:
    args, kwargs = decode(arguments).fill(tensors)
    operator = operator_of(target)
    lent = {_address(t) for t, b in zip(tensors, borrowed, strict=True) if t is not None and b}
    if not lent or not torch.is_grad_enabled():
        with autocast.switched_off():  # the graph has its casts
            return _tensors_in(operator(*args, **kwargs))

    def pack(saved: torch.Tensor) -> torch.Tensor:
        kept = saved.detach()
        return kept.clone() if kept.layout is torch.strided and _address(kept) in lent else kept

    with autocast.switched_off(), saved_tensors_hooks(pack, lambda saved: saved):
        return _tensors_in(operator(*args, **kwargs))


@functools.lru_cache(maxsize=1024)
def operator_of(target: str) -> Callable[..., Any]:
    """``gelu``, ``add.Tensor``, ``torchvision::nms``: the overload of that name."""
    namespace, _, name = target.rpartition("::")
    name, _, overload = name.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace or "aten"), name)
        found: Callable[..., Any] = getattr(packet, overload or "default")
    except AttributeError:
        raise InvalidInput(f"operator {target!r}: torch {torch.__version__} has none of that name") from None
    return found


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors_in(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    return [o for o in output if isinstance(o, torch.Tensor)] if isinstance(output, tuple | list) else []


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def _results(outputs: Sequence[torch.Tensor | None], tensors: Tensors) -> Tensors:
    """Outputs as the engine wants them: dense, without a graph, and in memory of their own."""
    taken = {_address(t) for t in tensors if t is not None}
    results: Tensors = []
    for output in outputs:
        if output is None:
            results.append(None)
            continue
        result = _plain(output)
        if _address(result) in taken:
            result = result.clone()
        taken.add(_address(result))
        results.append(result)
    return results


__all__ = [
    "Context",
    "Usage",
    "backward",
    "emit_aten",
    "emit_python_op",
    "forward",
    "is_portable",
    "name_of",
    "opaque_autograd_functions",
    "reset_usage",
    "shares",
    "transparent_autograd_functions",
    "unresolved",
    "usage",
]
