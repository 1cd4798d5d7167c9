"""Pooling over windows of one extent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import gradient_of, meta
from backpass.torch.lowerings.convolution import Numbers, each
from backpass.torch.lowerings.reductions import reduced
from backpass.torch.symbols import is_one

aten = torch.ops.aten


def batched(b: GraphBuilder, x: Value, axes: int) -> tuple[Value, bool]:
    """With a batch axis, which some calls leave out."""
    return (common.unsqueeze(b, x, 0), True) if x.rank == axes + 1 else (x, False)


def window(kernel: Numbers, stride: Any, padding: Numbers, dilation: Numbers | None, axes: int) -> dict[str, Any]:
    sizes, pads = each(kernel, axes), each(padding, axes)
    steps = sizes if stride is None or (not isinstance(stride, int) and len(stride) == 0) else each(stride, axes)
    apart = None if dilation is None else each(dilation, axes)
    return {"kernel_shape": sizes, "strides": steps, "pads": [*pads, *pads], "dilations": apart}


def _max_pool(axes: int, with_places: bool = False) -> Any:
    def lower(
        b: GraphBuilder,
        node: fx.Node,
        x: Value,
        kernel: Numbers,
        stride: Any = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
    ) -> Any:
        images, single = batched(b, x, axes)
        settings = window(kernel, stride, padding, dilation, axes)
        found = b.op("MaxPool", images, ceil_mode=int(ceil_mode), outputs=2 if with_places else 1, **settings)
        if with_places:  # torch counts places within one channel, ONNX within the whole tensor
            found = found[0], b.op("Mod", found[1], b.size(math.prod(b.shape_of(x)[-axes:])))
        found = tuple(common.squeeze(b, v, 0) for v in found) if single else found
        return found if with_places else found[0]

    return lower


lowers(aten.max_pool1d.default)(_max_pool(1))
lowers(aten.max_pool2d.default)(_max_pool(2))
lowers(aten.max_pool3d.default)(_max_pool(3))
lowers(aten.max_pool2d_with_indices.default)(_max_pool(2, with_places=True))
lowers(aten.max_pool3d_with_indices.default)(_max_pool(3, with_places=True))


def _to_places(axes: int) -> Any:
    def lower(b: GraphBuilder, node: fx.Node, dy: Value, x: Value, *settings: Any) -> Value:
        """The last argument counts within a plane; planes are rows here."""
        planes = math.prod(b.shape_of(x)[:-axes])
        rows, pooled = ((planes, math.prod(b.shape_of(v)[-axes:])) for v in (x, dy))
        flat, places = common.reshape(b, dy, pooled), common.reshape(b, settings[-1], pooled)
        dx = b.op("GatherElementsGrad", flat, b.sizes(rows), places, axis=1, domain="com.microsoft", shape=rows)
        return common.reshape(b, dx, meta(node).shape)

    return lower


lowers(aten.max_pool2d_with_indices_backward.default, aten.adaptive_max_pool2d_backward.default)(_to_places(2))
lowers(aten.max_pool3d_with_indices_backward.default, aten.adaptive_max_pool3d_backward.default)(_to_places(3))


def _avg_pool(axes: int) -> Any:
    def lower(
        b: GraphBuilder,
        node: fx.Node,
        x: Value,
        kernel: Numbers,
        stride: Any = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        images, single = batched(b, x, axes)
        settings = window(kernel, stride, padding, None, axes)
        if divisor_override is not None and ceil_mode:
            raise NoLoweringError("another divisor with windows that reach beyond the edge")
        settings["ceil_mode"] = int(ceil_mode)
        settings["count_include_pad"] = int(count_include_pad or divisor_override is not None)
        y = b.op("AveragePool", images, outputs=None, **settings)
        if divisor_override is not None:
            y = b.op("Mul", y, math.prod(settings["kernel_shape"]) / divisor_override)
        return common.squeeze(b, y, 0) if single else y

    return lower


lowers(aten.avg_pool1d.default)(_avg_pool(1))
lowers(aten.avg_pool2d.default)(_avg_pool(2))
lowers(aten.avg_pool3d.default)(_avg_pool(3))
lowers(aten.avg_pool2d_backward.default)(gradient_of(_avg_pool(2)))
lowers(aten.avg_pool3d_backward.default)(gradient_of(_avg_pool(3)))


@lowers(aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default)
def adaptive_avg_pool(b: GraphBuilder, node: fx.Node, x: Value, output: Sequence[Dim]) -> Value:
    """Means over windows of equal extents; others are left to the decomposition."""
    axes = len(output)
    inside, outside = b.shape_of(x)[-axes:], list(meta(node).shape[-axes:])
    if all(is_one(d) for d in outside):
        return reduced(b, "ReduceMean", x, list(range(x.rank - axes, x.rank)), True)
    if common.same_shape(inside, outside):
        return x
    if not all(isinstance(d, int) and isinstance(o, int) and d % o == 0 for d, o in zip(inside, outside, strict=True)):
        raise NoLoweringError("windows of different extents")
    images, single = batched(b, x, axes)
    kernel = [int(d) // int(o) for d, o in zip(inside, outside, strict=True)]
    y = b.op("AveragePool", images, kernel_shape=kernel, strides=kernel)
    return common.squeeze(b, y, 0) if single else y
