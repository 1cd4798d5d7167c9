"""Gradients of sampling by a grid."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.image import refuse_padded_cubic

aten = torch.ops.aten

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, x: Value, grid: Value, mode: int, padding: int, align: bool,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    refuse_padded_cubic(mode, padding)
    wanted = [b.fresh() if m else None for m in output_mask]
    results = b.op(
        "GridSampleGrad", dy, x, grid, outputs=wanted, domain="backpass", mode=MODES[mode],
        padding_mode=PADDINGS[padding], align_corners=int(align),
    )  # fmt: skip
    return tuple(r if m else None for r, m in zip(results, output_mask, strict=True))
