"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import DOMAIN, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import refuse_complex

aten = torch.ops.aten

_PRODUCTS = (*common.FLOATS, torch.int32, torch.int64)


def product(b: GraphBuilder, x: Value, y: Value) -> Value:
    refuse_complex(x, y)
    if x.dtype in _PRODUCTS:
        return b.op("MatMul", x, y)
    # small integers wrap around like wide ones cut off
    return b.cast(b.op("MatMul", b.cast(x, torch.int64), b.cast(y, torch.int64)), b.dtype_of(x))


@lowers(aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default)
def matmul(b: GraphBuilder, node: fx.Node, x: Value, y: Value) -> Value:
    return product(b, x, y)


@lowers(aten.linear.default)
def linear(b: GraphBuilder, node: fx.Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """Gemm for matrices, MatMul with the transposed weight otherwise."""
    refuse_complex(x, weight)
    if x.rank == 2 and weight.rank == 2:
        return b.op("Gemm", x, weight, bias, transB=1)
    result = product(b, x, common.transpose(b, weight, [1, 0]) if weight.rank == 2 else weight)
    return result if bias is None else b.op("Add", result, bias)


@lowers(aten.addmm.default, aten.addmv.default)
def addmm(b: GraphBuilder, node: fx.Node, c: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    refuse_complex(c, x, y)
    whole = all(common.fits_attribute(b, x, v) for v in (alpha, beta)) and beta != 0
    if x.rank == 2 and y.rank == 2 and whole:
        if not b.dtype_of(x).is_floating_point:
            raise NoLoweringError("integers")
        return b.op("Gemm", x, y, c, alpha=float(alpha), beta=float(beta))  # type: ignore[arg-type]
    return _scaled_sum(b, node, c, x, y, beta, alpha)


@lowers(aten.baddbmm.default)
def baddbmm(b: GraphBuilder, node: fx.Node, c: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return _scaled_sum(b, node, c, x, y, beta, alpha)


@lowers(aten.addbmm.default)
def addbmm(b: GraphBuilder, node: fx.Node, c: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    """A sum of products is one product of matrices laid side by side."""
    refuse_complex(c, x, y)
    count, rows, inner = b.shape_of(x)
    wide = common.reshape(b, common.transpose(b, x, [1, 0, 2]), (rows, count * inner))
    return _scaled_sum(b, node, c, wide, common.reshape(b, y, (count * inner, b.shape_of(y)[2])), beta, alpha)


def _scaled_sum(b: GraphBuilder, node: fx.Node, c: Value, x: Value, y: Value, beta: Any, alpha: Any) -> Value:
    result = product(b, x, y)
    if alpha != 1:
        result = b.op("Mul", result, alpha)
    if beta == 0:
        return result
    return b.op("Add", result, c if beta == 1 else b.op("Mul", c, beta))


@lowers(aten.einsum.default)
def einsum(b: GraphBuilder, node: fx.Node, equation: str, tensors: Sequence[Value], path: Any = None) -> Value:
    refuse_complex(*tensors)
    return b.op("Einsum", *tensors, equation=equation.replace(" ", ""))


@common.pointwise(aten.outer.default, aten.ger.default)
def outer(b: GraphBuilder, x: Value, y: Value) -> Value:
    return b.op("Mul", common.unsqueeze(b, x, 1), y)


@lowers(aten.linalg_solve_triangular.default)
def solve_triangular(
    b: GraphBuilder, node: fx.Node, a: Value, y: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    """X A = Y is A' X' = Y'."""
    refuse_complex(a, y)
    if not left:
        y = _turned(b, y)
    solved = b.op(
        "SolveTriangular",
        a,
        y,
        upper=int(upper),
        transpose=int(not left),
        unit=int(unitriangular),
        domain=DOMAIN,
        dtype=a.dtype,
        shape=(common.meta(node) if left else common.meta(node).mT).shape,
    )
    return solved if left else _turned(b, solved)


def _turned(b: GraphBuilder, x: Value) -> Value:
    """With the last two axes exchanged."""
    return common.transpose(b, x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


@lowers(aten._trilinear.default)
def trilinear(
    b: GraphBuilder,
    node: fx.Node,
    x: Value,
    y: Value,
    z: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """The sum of a product of three, each with axes of extent 1 put in."""
    given = ((x, expand1), (y, expand2), (z, expand3))
    first, second, third = (common.unsqueeze(b, v, *sorted(axes)) if axes else v for v, axes in given)
    product = b.op("Mul", b.op("Mul", first, second), third)
    return b.op("ReduceSum", product, b.constant(list(sumdim)), keepdims=0) if sumdim else product
