"""What several families need: element types of results, operands, axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import DOMAIN, Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.symbols import dims

Operand = Value | Scalar
Gradients = tuple[Value | None, ...]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def meta(node: fx.Node, index: int | None = None) -> torch.Tensor:
    """What torch knows of the result."""
    value = node.meta["val"]
    found: torch.Tensor = value if index is None else value[index]
    return found


def result_type(node: fx.Node, index: int | None = None) -> torch.dtype:
    return meta(node, index).dtype


def promoted(*operands: Operand) -> torch.dtype:
    """torch.result_type: tensors with axes count more than 0-D ones, and those more than numbers."""
    groups: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Value):
            place, dtype = (0 if operand.rank else 1), GraphBuilder.dtype_of(operand)
        else:
            place, dtype = 2, number_type(operand)
        old = groups[place]
        groups[place] = dtype if old is None else torch.promote_types(old, dtype)
    result = groups[2]
    for higher in (groups[1], groups[0]):
        result = _combined(higher, result)
    if result is None:
        raise NoLoweringError("no operands")
    return result


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def number_type(value: Any) -> torch.dtype:
    """The element type torch gives a Python number."""
    if isinstance(value, bool | torch.SymBool):
        return torch.bool
    if isinstance(value, int | torch.SymInt):
        return torch.int64
    return torch.complex64 if isinstance(value, complex) else torch.get_default_dtype()


def operand(b: GraphBuilder, value: Operand, dtype: torch.dtype) -> Value:
    """A tensor or number as a value of this element type."""
    if isinstance(value, Value):
        return b.cast(value, dtype)
    return b.scalar(value, dtype)


def refuse_complex(*values: Any) -> None:
    for value in values:
        dtype = value.dtype if isinstance(value, Value | torch.Tensor) else None
        if isinstance(value, complex) or (dtype is not None and dtype.is_complex):
            raise NoLoweringError("complex numbers")


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis; a 0-D tensor counts as having one."""
    return axis + max(rank, 1) if axis < 0 else axis


def axes_of(axes: int | Sequence[int] | None, rank: int) -> list[int]:
    """Sorted non-negative axes; None and an empty list mean all."""
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return list(range(rank))
    listed = [axes] if isinstance(axes, int) else list(axes)
    return sorted({axis_of(a, rank) for a in listed}) if rank else []


def same_extent(x: Dim, y: Dim) -> bool:
    """Whether two extents are certainly equal."""
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    left = x if isinstance(x, int) else x.node.expr
    right = y if isinstance(y, int) else y.node.expr
    return bool(left == right)


def same_shape(x: Sequence[Dim], y: Sequence[Dim]) -> bool:
    return len(x) == len(y) and all(same_extent(i, j) for i, j in zip(x, y, strict=True))


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape these broadcast to: of extents that may be 1 or not, those that are not known to be 1 count."""
    rank = max(len(s) for s in shapes)
    padded = [(*[1] * (rank - len(s)), *s) for s in shapes]
    return tuple(next((d for d in extents if not is_one(d)), 1) for extents in zip(*padded, strict=True))


def is_one(extent: Dim) -> bool:
    return isinstance(extent, int) and extent == 1


def reshape(b: GraphBuilder, x: Value, shape: Sequence[Dim]) -> Value:
    """x with these extents; extents that stay where they are need not be computed."""
    shape = dims(shape)
    if x.shape is not None and same_shape(x.shape, shape):
        return x
    known = x.shape or ()
    wanted: list[Dim] = list(shape)
    empty = any(isinstance(d, int) and d == 0 for d in shape)
    if not empty:
        for i, extent in enumerate(shape):
            if not isinstance(extent, int) and i < len(known) and same_extent(known[i], extent):
                wanted[i] = 0
    return b.op("Reshape", x, b.sizes(wanted), allowzero=1 if empty else None, dtype=x.dtype, shape=shape)


def expand(b: GraphBuilder, x: Value, shape: Sequence[Dim]) -> Value:
    shape = dims(shape)
    if x.shape is not None and same_shape(x.shape, shape):
        return x
    return b.op("Expand", x, b.sizes(list(shape)), dtype=x.dtype, shape=tuple(shape))


def unsqueeze(b: GraphBuilder, x: Value, *axes: int) -> Value:
    """New axes at these (non-negative) positions of the result."""
    shape: list[Dim] | None = None
    if x.shape is not None:
        rest = iter(x.shape)
        shape = [1 if i in axes else next(rest) for i in range(len(x.shape) + len(axes))]
    return b.op("Unsqueeze", x, b.constant(list(axes), torch.int64), dtype=x.dtype, shape=shape)


def squeeze(b: GraphBuilder, x: Value, *axes: int) -> Value:
    shape = None if x.shape is None else [d for i, d in enumerate(x.shape) if i not in axes]
    return b.op("Squeeze", x, b.constant(list(axes), torch.int64), dtype=x.dtype, shape=shape)


def transpose(b: GraphBuilder, x: Value, perm: Sequence[int]) -> Value:
    if list(perm) == list(range(len(perm))):
        return x
    shape = None if x.shape is None else [x.shape[p] for p in perm]
    return b.op("Transpose", x, perm=list(perm), dtype=x.dtype, shape=shape)


def filled(b: GraphBuilder, shape: Sequence[Dim], value: Scalar, dtype: torch.dtype) -> Value:
    """A tensor of one number."""
    if len(shape) == 0:
        return b.scalar(value, dtype)
    if isinstance(value, SYMBOLIC):
        return expand(b, b.scalar(value, dtype), shape)
    if dtype is torch.bool or dtype.is_complex:
        return expand(b, b.constant(value, dtype), shape)
    from onnx import helper

    from backpass.torch.builder import ONNX_TYPES

    number = float(value) if dtype.is_floating_point else int(value)  # type: ignore[arg-type]
    one = helper.make_tensor("value", ONNX_TYPES[dtype], [1], [number])
    return b.op("ConstantOfShape", b.sizes(shape), value=one, dtype=dtype, shape=tuple(shape))


def fits_attribute(b: GraphBuilder, x: Value, number: Any) -> bool:
    """Whether a factor of these tensors can be an attribute, which is a float32."""
    if not isinstance(number, int | float):
        return False
    return b.dtype_of(x) != torch.float64 or float(np.float32(number)) == number


def gradients(
    b: GraphBuilder, dy: Value, xs: Sequence[Value], forward: Callable[..., Value], wanted: Sequence[bool] | None = None
) -> Gradients:
    """What flows back from dY to each x (None where it is not wanted), `forward` being what makes Y of them.

    The engine differentiates, and computes of Y what its rules read. To it the x are values of their own: derivatives
    are partial ones, whichever of them depend on others.
    """
    values = [b.identity(x) for x in xs]
    asked = [v for v, want in zip(values, wanted or [True] * len(xs), strict=True) if want]
    if not asked:
        return (None,) * len(xs)
    made = b.op("VectorJacobianProduct", *asked, forward(*values), dy, outputs=len(asked), domain=DOMAIN)
    found = dict(zip(asked, made, strict=True))
    return tuple(b.like(found[v], v) if v in found else None for v in values)


def gradient_of(forward: Callable[..., Value]) -> Callable[..., Value | None]:
    """The lowering of (dY, X, settings ...) -> dX, by that of (X, settings ...) -> Y."""

    def lower(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, *settings: Any) -> Value | None:
        return gradients(b, dy, [x], lambda v: forward(b, node, v, *settings))[0]

    return lower


def named_gradient(b: GraphBuilder, op: str, dy: Value, other: Value, **attributes: Any) -> Value:
    """dX by ONNX Runtime's operator for it, which reads dY and either X or Y."""
    refuse_complex(dy, other)
    dtype = b.dtype_of(dy)
    return b.op(op, dy, b.cast(other, dtype), domain="com.microsoft", dtype=dtype, outputs=None, **attributes)
