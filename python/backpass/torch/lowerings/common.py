"""What several families need: element types of results, operands, axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from onnx import helper
from torch import fx

from backpass.torch.builder import DOMAIN, ONNX_TYPES, Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import Lowering, Target, lowers
from backpass.torch.symbols import Symbolic, dims

Operand = Value | Scalar
Gradients = tuple[Value | None, ...]
Formula = TypeVar("Formula", bound=Callable[..., Value])

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def meta(node: fx.Node, index: int | None = None) -> torch.Tensor:
    """What torch knows of the result."""
    value = node.meta["val"]
    found: torch.Tensor = value if index is None else value[index]
    return found


def result_type(node: fx.Node, index: int | None = None) -> torch.dtype:
    return meta(node, index).dtype


def promoted(x: Operand, y: Operand) -> torch.dtype:
    """The element type in which torch compares the two."""
    return torch.result_type(_example(x), _example(y))


def _example(value: Operand) -> torch.Tensor | bool | int | float | complex:
    """Something of the same kind: to torch, tensors with axes count more than 0-D ones, and those more than numbers."""
    if isinstance(value, Value):
        return torch.empty([1] if value.rank else [], dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymBool):
        return True
    return 1 if isinstance(value, torch.SymInt) else 1.0 if isinstance(value, torch.SymFloat) else value


def operand(b: GraphBuilder, value: Operand, dtype: torch.dtype) -> Value:
    """A tensor or number as a value of this element type."""
    if isinstance(value, Value):
        return b.cast(value, dtype)
    return b.scalar(value, dtype)


def in_result_type(formula: Callable[..., Value]) -> Lowering:
    """The lowering f(b, node, operands ...) by f(b, operands ...), which gets tensors and numbers as values of the
    element type of the result."""

    def lower(b: GraphBuilder, node: fx.Node, *operands: Operand, **settings: Any) -> Value:
        refuse_complex(*operands)
        return formula(b, *[operand(b, v, result_type(node)) for v in operands], **settings)

    return lower


def pointwise(*targets: Target) -> Callable[[Formula], Formula]:
    """Makes f(b, operands ...) the lowering of operators that compute in the element type of their result."""

    def register(formula: Formula) -> Formula:
        lowers(*targets)(in_result_type(formula))
        return formula

    return register


def named(op: str, **attributes: Any) -> Callable[..., Value]:
    """ONNX's operator as a function for :func:`pointwise`."""
    return lambda b, *operands: b.op(op, *operands, outputs=None, **attributes)


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
    return b.op("Reshape", x, b.sizes(wanted), allowzero=1 if empty else None, shape=shape)


def expand(b: GraphBuilder, x: Value, shape: Sequence[Dim]) -> Value:
    shape = dims(shape)
    if x.shape is not None and same_shape(x.shape, shape):
        return x
    return b.op("Expand", x, b.sizes(shape), shape=shape)


def unsqueeze(b: GraphBuilder, x: Value, *axes: int) -> Value:
    """New axes at these (non-negative) positions of the result."""
    shape: list[Dim] | None = None
    if x.shape is not None:
        rest = iter(x.shape)
        shape = [1 if i in axes else next(rest) for i in range(len(x.shape) + len(axes))]
    return b.op("Unsqueeze", x, b.constant(axes), shape=shape)


def squeeze(b: GraphBuilder, x: Value, *axes: int) -> Value:
    shape = None if x.shape is None else [d for i, d in enumerate(x.shape) if i not in axes]
    return b.op("Squeeze", x, b.constant(axes), shape=shape)


def transpose(b: GraphBuilder, x: Value, perm: Sequence[int]) -> Value:
    if list(perm) == list(range(len(perm))):
        return x
    shape = None if x.shape is None else [x.shape[p] for p in perm]
    return b.op("Transpose", x, perm=list(perm), shape=shape)


def filled(b: GraphBuilder, shape: Sequence[Dim], value: Scalar, dtype: torch.dtype) -> Value:
    """A tensor of one number."""
    if len(shape) == 0:
        return b.scalar(value, dtype)
    if isinstance(value, Symbolic):
        return expand(b, b.scalar(value, dtype), shape)
    if dtype is torch.bool or dtype.is_complex:
        return expand(b, b.constant(value, dtype), shape)
    number = float(value) if dtype.is_floating_point else int(value)  # type: ignore[arg-type]
    one = helper.make_tensor("value", ONNX_TYPES[dtype], [1], [number])
    return b.op("ConstantOfShape", b.sizes(shape), value=one, dtype=dtype, shape=shape)


def counted(b: GraphBuilder, count: Dim, start: Dim = 0, step: Dim = 1) -> Value:
    """So many numbers: start, start + step, ..."""
    return b.op("Range", b.size(start), b.size(start + count * step), b.size(step), shape=(count,))


def flat(b: GraphBuilder, x: Value) -> Value:
    """All elements in one row."""
    return b.op("Reshape", x, b.constant([-1]))


def fits_attribute(b: GraphBuilder, x: Value, number: Any) -> bool:
    """Whether a factor of these tensors can be an attribute, which is a float32."""
    if not isinstance(number, int | float):
        return False
    return b.dtype_of(x) != torch.float64 or float(np.float32(number)) == number


def inverse(order: Sequence[int]) -> list[int]:
    """The permutation that takes axes back from this order."""
    return [order.index(axis) for axis in range(len(order))]


def axis_last(axis: int, rank: int) -> list[int]:
    """The order of axes with this one behind the others."""
    return [*(a for a in range(rank) if a != axis), axis]


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
    return b.op(op, dy, b.cast(other, b.dtype_of(dy)), domain="com.microsoft", outputs=None, **attributes)
