"""Resizing of images, and reading them at the points of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from backpass.torch.builder import Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import Lowering, lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import Gradients, gradients, meta
from backpass.torch.symbols import dims

aten = torch.ops.aten


def resized(b: GraphBuilder, node: fx.Node, x: Value, factors: Sequence[float | None] | None, **how: Any) -> Value:
    """By the factors the user gave, which need not be the ratio of the extents, else to the extents.

    Where corners stay corners, torch does without the factors.
    """
    axes = x.rank - 2
    by_extents = how["coordinate_transformation_mode"] == "align_corners"
    if factors and not by_extents and all(f is not None for f in factors):
        scales = b.constant([1.0, 1.0, *map(float, factors)], torch.float32)  # type: ignore[arg-type]
        return b.op("Resize", x, None, scales, outputs=None, **how)
    extents = b.sizes([*b.shape_of(x)[:2], *meta(node).shape[-axes:]])
    return b.op("Resize", x, None, None, extents, outputs=None, **how)


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
            x = b.op("Gather", x, _nearest_places(b, old, new, factor), axis=axis)
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
    scale: Value | float = 1 / factor if factor else b.op("Div", b.scalar(old, torch.float32), new)
    moved = b.op("Floor", b.op("Mul", b.cast(common.counted(b, new), torch.float32), scale))
    return b.op("Min", b.cast(moved, torch.int64), b.op("Sub", b.size(old), 1))


def linear_mode(align_corners: bool, cubic: bool = False) -> dict[str, Any]:
    how = "align_corners" if align_corners else "half_pixel" if cubic else "pytorch_half_pixel"
    cubic_settings = {"mode": "cubic", "cubic_coeff_a": -0.75} if cubic else {"mode": "linear"}
    return {**cubic_settings, "coordinate_transformation_mode": how}


def _linear(cubic: bool = False) -> Lowering:
    def lower(b: GraphBuilder, node: fx.Node, x: Value, size: Any, align_corners: bool, *factors: Any) -> Value:
        listed = factors[0] if factors and isinstance(factors[0], Sequence) else factors
        return resized(b, node, x, listed, **linear_mode(align_corners, cubic))

    return lower


for _target in (aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d):
    lowers(_target.vec, _target.default)(_linear())
lowers(aten.upsample_bicubic2d.vec)(_linear(cubic=True))


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
    return b.op("GridSample", x, grid, outputs=None, **settings)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, grid: Value, mode: int, padding: int, align: bool,
    output_mask: Sequence[bool],
) -> Gradients:  # fmt: skip
    how = (mode, padding, align)
    return gradients(b, dy, [x, grid], lambda image, at: grid_sampler(b, node, image, at, *how), output_mask)
