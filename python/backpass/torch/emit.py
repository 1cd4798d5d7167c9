"""Nodes that torch will run, written by an exporter. For their layout see src/ops/custom/pytorch_ops.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.arguments import encode, with_marks
from backpass.torch.builder import ONNX_TYPES, GraphBuilder, Value
from backpass.torch.trial import signature_of


class _Inputs:
    """Collects the tensors of a call in the order of their positions in its arguments."""

    def __init__(self, b: GraphBuilder) -> None:
        self.b = b
        self.names: list[str] = []

    def add(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def slot(self, value: Any) -> dict[str, int] | None:
        if isinstance(value, Value):
            return {"tensor": self.add(value)}
        if isinstance(value, torch.SymInt):
            return {"int": self.add(self.b.size(value))}
        if isinstance(value, torch.SymFloat):
            return {"float": self.add(self.b.scalar(value, torch.float64))}
        if isinstance(value, torch.SymBool):
            return {"bool": self.add(self.b.scalar(value, torch.bool))}
        return None


def emit_aten(b: GraphBuilder, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An ATen node for an aten operator; Values for its results as the operator arranges them."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise TypeError(f"node {node.name}: got {target}, expected an operator of torch.ops")
    namespace, name = target._schema.name.split("::")
    operator = name if namespace == "aten" else f"{namespace}::{name}"
    overload = target._overloadname.removeprefix("default")
    results = _emit_operator(b, f"ATen_{name}", operator, overload, args, kwargs, _metas(node))
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return results[0]
    left = iter(results)
    return tuple(next(left) if isinstance(v, torch.Tensor) else None for v in value)


NOT_TRUE = "Expected Tensor with single nonzero value, but got zero"


def emit_assertion(b: GraphBuilder, condition: Value, message: str = NOT_TRUE) -> Value:
    """A node that raises in torch, else gives the number 1 to whatever is to depend on it."""
    args, made = (condition, message, b.constant(1)), [torch.ones((), dtype=torch.int64)]
    return _emit_operator(b, "ATen__assert_async", "_functional_assert_async", "msg", args, {}, made)[0]


def _emit_operator(
    b: GraphBuilder, name: str, operator: str, overload: str, args: Sequence[Any], kwargs: Any, metas: Any
) -> list[Value]:
    inputs = _Inputs(b)
    call = {"operator": operator, "overload_name": overload, "arguments": encode(args, kwargs, inputs.slot)}
    return _emit(b, "ATen", "org.pytorch.aten", inputs.names, metas, name=name, **call)


def emit_python_op(
    b: GraphBuilder, node: fx.Node, tensors: Sequence[Any], sizes: Sequence[Any], func: str, arguments: str
) -> tuple[Any, ...]:
    """A PythonOp node for a node ``backpass::python_op``; Values for its results."""
    signature = signature_of(func, arguments)
    results = _emit(
        b,
        "PythonOp",
        "com.microsoft",
        [*tensors, *(b.size(s) for s in sizes)],
        _metas(node),
        name=func.rpartition(".")[2],
        func_name=func,
        arguments=with_marks(arguments, dirty=signature.dirty),
    )
    return tuple(b.stop_gradient(r) if i in signature.not_differentiable else r for i, r in enumerate(results))


def _metas(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta["val"]
    values = [value] if isinstance(value, torch.Tensor) else list(value) if isinstance(value, tuple | list) else []
    found = [v for v in values if isinstance(v, torch.Tensor)]
    if not found:
        raise TypeError(
            f"node {node.name}: got {type(value).__name__} as the result of {node.target}, expected tensors"
        )
    return found


def _emit(
    b: GraphBuilder,
    op: str,
    domain: str,
    inputs: Sequence[str],
    metas: Sequence[torch.Tensor],
    **attributes: Any,
) -> list[Value]:
    extents = [None if _unknown(m) else b.sizes(list(m.shape)) for m in metas]
    made = b.op(
        op,
        *inputs,
        *extents,
        outputs=len(metas),
        domain=domain,
        tensor_inputs=len(inputs),
        output_types=[ONNX_TYPES[m.dtype] for m in metas],
        **attributes,
    )
    return [Value(_with_rank(b, n, m), m.dtype, tuple(m.shape)) for n, m in zip(made, metas, strict=True)]


def _unknown(meta: torch.Tensor) -> list[int]:
    """Axes whose extents depend on data."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return [i for i, extent in enumerate(meta.shape) if free_unbacked_symbols(extent)]


def _with_rank(b: GraphBuilder, name: str, meta: torch.Tensor) -> str:
    """The same tensor with a rank that the engine knows, which gradients need, and all extents but one."""
    unknown = _unknown(meta)
    if len(unknown) != 1:
        return name
    extents = [-1 if i in unknown else extent for i, extent in enumerate(meta.shape)]
    return b.op("Reshape", name, b.sizes(extents))
