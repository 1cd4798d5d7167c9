"""Pooling, resizing and padding of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Scalar, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import meta
from backpass.torch.lowerings.convolution import Numbers, each
from backpass.torch.lowerings.reductions import reduced
from backpass.torch.symbols import dims

aten = torch.ops.aten


def batched(b: GraphBuilder, x: Value, axes: int) -> tuple[Value, bool]:
    """With a batch axis, which some calls leave out."""
    return (common.unsqueeze(b, x, 0), True) if x.rank == axes + 1 else (x, False)


def window(kernel: Numbers, stride: Any, padding: Numbers, dilation: Numbers, axes: int) -> dict[str, Any]:
    sizes, pads = each(kernel, axes), each(padding, axes)
    steps = sizes if stride is None or (not isinstance(stride, int) and len(stride) == 0) else each(stride, axes)
    return {"kernel_shape": sizes, "strides": steps, "pads": [*pads, *pads], "dilations": each(dilation, axes)}


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
        if not with_places:
            y = b.op("MaxPool", images, ceil_mode=int(ceil_mode), dtype=x.dtype, outputs=None, **settings)
            return common.squeeze(b, y, 0) if single else y
        y, places = b.op("MaxPool", images, ceil_mode=int(ceil_mode), outputs=2, **settings)
        # torch counts places within one channel, ONNX within the whole tensor
        places = b.op("Mod", places, b.size(math.prod(b.shape_of(x)[-axes:])))
        return (common.squeeze(b, y, 0), common.squeeze(b, places, 0)) if single else (y, places)

    return lower


lowers(aten.max_pool1d.default)(_max_pool(1))
lowers(aten.max_pool2d.default)(_max_pool(2))
lowers(aten.max_pool3d.default)(_max_pool(3))
lowers(aten.max_pool2d_with_indices.default)(_max_pool(2, with_places=True))
lowers(aten.max_pool3d_with_indices.default)(_max_pool(3, with_places=True))


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
        settings = window(kernel, stride, padding, 1, axes)
        if divisor_override is not None:
            if ceil_mode:
                raise NoLoweringError("another divisor with windows that reach beyond the edge")
            count_include_pad = True
        del settings["dilations"]
        ceil: dict[str, Any] = {"ceil_mode": int(ceil_mode), "count_include_pad": int(count_include_pad)}
        y = b.op("AveragePool", images, dtype=x.dtype, **settings, **ceil)
        if divisor_override is not None:
            factor = math.prod(settings["kernel_shape"]) / divisor_override
            y = b.op("Mul", y, b.constant(factor, x.dtype), dtype=x.dtype)
        return common.squeeze(b, y, 0) if single else y

    return lower


lowers(aten.avg_pool1d.default)(_avg_pool(1))
lowers(aten.avg_pool2d.default)(_avg_pool(2))
lowers(aten.avg_pool3d.default)(_avg_pool(3))


@lowers(aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default)
def adaptive_avg_pool(b: GraphBuilder, node: fx.Node, x: Value, output: Sequence[Dim]) -> Value:
    """Means over windows of equal extents; others are left to the decomposition."""
    axes = len(output)
    inside, outside = b.shape_of(x)[-axes:], list(meta(node).shape[-axes:])
    if all(common.is_one(d) for d in outside):
        return reduced(b, "ReduceMean", x, list(range(x.rank - axes, x.rank)), True)
    if common.same_shape(inside, outside):
        return x
    if not all(isinstance(d, int) and isinstance(o, int) and d % o == 0 for d, o in zip(inside, outside, strict=True)):
        raise NoLoweringError("windows of different extents")
    images, single = batched(b, x, axes)
    kernel = [int(d) // int(o) for d, o in zip(inside, outside, strict=True)]
    y = b.op("AveragePool", images, kernel_shape=kernel, strides=kernel, dtype=x.dtype)
    return common.squeeze(b, y, 0) if single else y


@lowers(aten.pad.default)
def pad(
    b: GraphBuilder, node: fx.Node, x: Value, pads: Sequence[Dim], mode: str = "constant", value: Scalar | None = None
) -> Value:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode == "circular" and b.opset < 19:
        raise NoLoweringError("Pad wraps since opset 19")
    if all(isinstance(p, int) and p == 0 for p in pads):
        return x
    before, after = list(pads[0::2])[::-1], list(pads[1::2])[::-1]
    axes = b.constant(list(range(x.rank - len(before), x.rank)), torch.int64)
    number = None if value is None or mode != "constant" else b.scalar(value, b.dtype_of(x))
    return b.op("Pad", x, b.sizes([*before, *after]), number, axes, mode=modes[mode], dtype=x.dtype)


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(b: GraphBuilder, node: fx.Node, x: Value, pads: Sequence[Dim], value: Scalar = 0) -> Value:
    return pad(b, node, x, pads, "constant", value)


def resized(b: GraphBuilder, node: fx.Node, x: Value, factors: Sequence[float | None] | None, **how: Any) -> Value:
    """By the factors the user gave, which need not be the ratio of the extents, else to the extents.

    Where corners stay corners, torch does without the factors.
    """
    axes = x.rank - 2
    by_extents = how["coordinate_transformation_mode"] == "align_corners"
    if factors and not by_extents and all(f is not None for f in factors):
        scales = b.constant([1.0, 1.0, *map(float, factors)], torch.float32)  # type: ignore[arg-type]
        return b.op("Resize", x, None, scales, dtype=x.dtype, outputs=None, **how)
    extents = b.sizes([*b.shape_of(x)[:2], *meta(node).shape[-axes:]])
    return b.op("Resize", x, None, None, extents, dtype=x.dtype, outputs=None, **how)


NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


@lowers(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
def nearest_vec(b: GraphBuilder, node: fx.Node, x: Value, size: Any, factors: Any = None) -> Value:
    return nearest(b, node, x, size, *(factors or ()))


@lowers(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default)
def nearest(b: GraphBuilder, node: fx.Node, x: Value, size: Any, *factors: float | None) -> Value:
    """Resize where extents are multiples; else torch's positions, which Resize rounds down to others now and then."""
    inside, outside = b.shape_of(x)[2:], dims(meta(node).shape)[2:]
    given = list(factors) or [None] * len(inside)
    if all(_is_multiple(*each) for each in zip(inside, outside, given, strict=True)):
        return resized(b, node, x, factors, **NEAREST)
    for axis, (old, new, factor) in enumerate(zip(inside, outside, given, strict=True), 2):
        if not common.same_extent(old, new) or factor is not None:
            x = Value(b.op("Gather", x, _nearest_places(b, old, new, factor), axis=axis), x.dtype)
    return x


def _is_multiple(old: Dim, new: Dim, factor: float | None) -> bool:
    """Whether every element is repeated as often, or every so many-th is taken, and torch's rounding agrees."""
    if factor is not None and (factor < 1 or not float(factor).is_integer()):
        return False
    if not isinstance(old, int) or not isinstance(new, int):
        return factor is not None and float(np.float32(1 / factor)) * factor >= 1
    places = np.arange(new)
    torchs = np.floor(places.astype(np.float32) * np.float32(1 / factor if factor else old / new))
    return 0 in (new % old, old % new) and bool((torchs == places * old // new).all())


def _nearest_places(b: GraphBuilder, old: Dim, new: Dim, factor: float | None) -> Value:
    """min(floor(place * scale), old - 1), in float32 as torch computes it."""
    single = torch.float32
    if factor is not None:
        scale = b.constant(1 / factor, single)
    else:
        scale = b.op("Div", b.scalar(old, single), b.scalar(new, single))
    places = b.op("Range", b.size(0), b.size(new), b.size(1), dtype=torch.int64, shape=(new,))
    moved = b.op("Floor", b.op("Mul", b.cast(places, single), scale), dtype=single)
    return b.op("Min", b.cast(moved, torch.int64), b.op("Sub", b.size(old), b.size(1)), dtype=torch.int64)


def linear_mode(align_corners: bool, cubic: bool = False) -> dict[str, Any]:
    how = "align_corners" if align_corners else "half_pixel" if cubic else "pytorch_half_pixel"
    cubic_settings = {"mode": "cubic", "cubic_coeff_a": -0.75} if cubic else {"mode": "linear"}
    return {**cubic_settings, "coordinate_transformation_mode": how}


@lowers(aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec)
def linear_vec(b: GraphBuilder, node: fx.Node, x: Value, size: Any, align_corners: bool, factors: Any = None) -> Value:
    return resized(b, node, x, factors, **linear_mode(align_corners))


@lowers(aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default)
def linear(b: GraphBuilder, node: fx.Node, x: Value, size: Any, align_corners: bool, *factors: float | None) -> Value:
    return resized(b, node, x, factors, **linear_mode(align_corners))


@lowers(aten.upsample_bicubic2d.vec)
def cubic_vec(b: GraphBuilder, node: fx.Node, x: Value, size: Any, align_corners: bool, factors: Any = None) -> Value:
    return resized(b, node, x, factors, **linear_mode(align_corners, cubic=True))


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(b: GraphBuilder, node: fx.Node, x: Value, factor: int) -> Value:
    if x.rank != 4:
        raise NoLoweringError("not a batch of images")
    return b.op("DepthToSpace", x, blocksize=factor, mode="CRD", dtype=x.dtype)


def refuse_padded_cubic(mode: int, padding: int) -> None:
    if mode == 2 and padding != 0:
        raise NoLoweringError("cubic with padding: torch pads each of the 16 pixels, ONNX moves the point inside first")


@lowers(aten.grid_sampler.default, aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(b: GraphBuilder, node: fx.Node, x: Value, grid: Value, mode: int, padding: int, align: bool) -> Value:
    if b.opset < 20 or (mode == 2 and x.rank != 4):
        raise NoLoweringError("GridSample of this rank and opset")
    refuse_padded_cubic(mode, padding)
    settings: dict[str, Any] = {
        "mode": ("linear", "nearest", "cubic")[mode],
        "padding_mode": ("zeros", "border", "reflection")[padding],
        "align_corners": int(align),
    }
    return b.op("GridSample", x, grid, dtype=x.dtype, outputs=None, **settings)
