"""Gradients of pooling, as AOT graphs hold them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import meta, reshape, transpose

aten = torch.ops.aten


def product(extents: Sequence[Dim]) -> Dim:
    result: Dim = 1
    for extent in extents:
        result = result * extent
    return result


def _by_indices(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, indices: Value, spatial: int) -> Value:
    """torch's indices count within a plane; planes are rows here."""
    shape, small = b.shape_of(x), b.shape_of(dy)
    planes = product(shape[:-spatial])
    rows, pooled = (planes, product(shape[-spatial:])), (planes, product(small[-spatial:]))
    dx = b.op(
        "GatherElementsGrad", reshape(b, dy, pooled), b.sizes(rows), reshape(b, indices, pooled), axis=1,
        domain="com.microsoft", dtype=dy.dtype, shape=rows,
    )  # fmt: skip
    return reshape(b, dx, meta(node).shape)


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, kernel: object, stride: object, padding: object,
    dilation: object, ceil_mode: bool, indices: Value,
) -> Value:  # fmt: skip
    return _by_indices(b, node, dy, x, indices, 2)


@lowers(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, kernel: object, stride: object, padding: object,
    dilation: object, ceil_mode: bool, indices: Value,
) -> Value:  # fmt: skip
    return _by_indices(b, node, dy, x, indices, 3)


@lowers(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, indices: Value) -> Value:
    return _by_indices(b, node, dy, x, indices, 2)


@lowers(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, indices: Value) -> Value:
    return _by_indices(b, node, dy, x, indices, 3)


def _average(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor: int | None, spatial: int,
) -> Value:  # fmt: skip
    if divisor is not None:
        raise NoLoweringError("divisor_override")
    shape, small = b.shape_of(x), b.shape_of(dy)
    kernel, stride, padding = (list(v) * spatial if len(v) == 1 else list(v) for v in (kernel, stride, padding))
    with_batch = len(shape) == spatial + 2
    x5, dy5 = (x, dy) if with_batch else (reshape(b, x, (1, *shape)), reshape(b, dy, (1, *small)))
    dx = b.op(
        "AveragePoolGrad", dy5, x5, kernel_shape=kernel, strides=stride or kernel, pads=padding * 2,
        ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad), dtype=dy.dtype, shape=x5.shape,
    )  # fmt: skip
    return reshape(b, dx, shape)


@lowers(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Value:  # fmt: skip
    return _average(b, node, dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override, 2)


@lowers(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Value:  # fmt: skip
    return _average(b, node, dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override, 3)


def shares(into: int, outof: int) -> torch.Tensor:
    """[out, in]: what each input is worth in each window of adaptive averaging."""
    matrix = torch.zeros(outof, into, dtype=torch.float64)
    for i in range(outof):
        begin, end = i * into // outof, -(-(i + 1) * into // outof)
        matrix[i, begin:end] = 1 / (end - begin)
    return matrix


def adaptive_average(b: GraphBuilder, x: Value, sizes: Sequence[tuple[Dim, Dim]], transposed: bool) -> Value:
    """Averaging is linear along each axis: a product with a matrix of shares, or its transpose for the gradient."""
    for place, (into, outof) in enumerate(reversed(sizes)):
        if not isinstance(into, int) or not isinstance(outof, int):
            raise NoLoweringError("extents that are not constants")
        if into == outof:
            continue
        axis = x.rank - 1 - place
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        with unset_fake_temporarily():
            matrix = shares(into, outof)
            matrix = matrix if transposed else matrix.T
        order = [i for i in range(x.rank) if i != axis] + [axis]
        back = [order.index(i) for i in range(x.rank)]
        made = b.op("MatMul", transpose(b, x, order), b.constant(matrix, x.dtype))
        shape = list(b.shape_of(x))
        shape[axis] = into if transposed else outof
        x = Value(transpose(b, made, back), x.dtype, shape)
    return x


def _adaptive_backward(b: GraphBuilder, dy: Value, x: Value, spatial: int) -> Value:
    shape, small = b.shape_of(x)[-spatial:], b.shape_of(dy)[-spatial:]
    if all(isinstance(d, int) and d == 1 for d in small):
        share = b.op("Div", dy, b.cast(b.size(product(shape)), b.dtype_of(dy)), dtype=dy.dtype)
        result: Value = b.op("Expand", share, b.sizes(b.shape_of(x)), dtype=dy.dtype, shape=x.shape)
        return result
    return adaptive_average(b, dy, list(zip(shape, small, strict=True)), transposed=True)


@lowers(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value) -> Value:
    return _adaptive_backward(b, dy, x, 2)


@lowers(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(b: GraphBuilder, node: fx.Node, dy: Value, x: Value) -> Value:
    return _adaptive_backward(b, dy, x, 3)
