"""Reading by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import INDICES_FROM_FRONT, Dim, GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.common import axis_of, gradients, meta
from backpass.torch.symbols import broadcast

aten = torch.ops.aten


@lowers(aten.embedding.default)
def embedding(
    b: GraphBuilder,
    node: fx.Node,
    weight: Value,
    index: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """Rows read at padding_idx send no gradient back."""
    if scale_grad_by_freq:
        raise NoLoweringError("gradients scaled by frequency")
    return rows_of(b, weight, index, padding_idx)


def from_front(b: GraphBuilder) -> dict[str, int]:
    """Marks a node: a negative index is an error, as torch has it. To ONNX, which others may run, it counts from the
    end."""
    return {INDICES_FROM_FRONT: 1} if b.stop_gradient_kept else {}


def slices_at(b: GraphBuilder, x: Value, index: Value, axis: int) -> Value:
    return b.op("Gather", x, index, outputs=None, axis=axis, **from_front(b))


def rows_of(b: GraphBuilder, weight: Value, index: Value, padding_idx: Dim) -> Value:
    rows = slices_at(b, weight, index, 0)
    if isinstance(padding_idx, int) and padding_idx < 0:
        return rows
    padded = common.unsqueeze(b, b.op("Equal", index, padding_idx), index.rank)
    return b.op("Where", padded, b.stop_gradient(rows), rows)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: GraphBuilder, node: fx.Node, dy: Value, index: Value, count: Dim, padding_idx: Dim, scale_grad_by_freq: bool
) -> Value | None:
    if scale_grad_by_freq:
        raise NoLoweringError("gradients scaled by frequency")
    weight = common.filled(b, meta(node).shape, 0, b.dtype_of(dy))
    return gradients(b, dy, [weight], lambda w: rows_of(b, w, index, padding_idx))[0]


@lowers(aten.gather.default)
def gather(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if x.rank == 0 or index.rank == 0:
        row, places = x if x.rank else common.reshape(b, x, [1]), common.reshape(b, index, [1])
        picked = b.op("GatherElements", row, places, axis=0, shape=(1,), outputs=None, **from_front(b))
        return common.reshape(b, picked, meta(node).shape)
    return b.op("GatherElements", x, index, axis=axis_of(dim, x.rank), outputs=None, **from_front(b))


@lowers(aten.index_select.default)
def index_select(b: GraphBuilder, node: fx.Node, x: Value, dim: int, index: Value) -> Value:
    if index.rank == 0:
        index = common.reshape(b, index, [1])
    if x.rank == 0:
        return x
    return slices_at(b, x, index, axis_of(dim, x.rank))


@lowers(aten.take.default)
def take(b: GraphBuilder, node: fx.Node, x: Value, index: Value) -> Value:
    return b.op("Gather", common.flat(b, x), index, axis=0)


@lowers(aten.nonzero.default)
def nonzero(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    if x.rank == 0:
        raise NoLoweringError("a number")
    return b.op("Transpose", b.op("NonZero", x), perm=[1, 0])


@lowers(aten.masked_select.default)
def masked_select(b: GraphBuilder, node: fx.Node, x: Value, mask: Value) -> Value:
    shape = broadcast(b.shape_of(x), b.shape_of(mask))
    return b.op("Compress", *(common.flat(b, common.expand(b, v, shape)) for v in (x, mask)), axis=0)


class Places:
    """Indices of x[i, :, j, ...] as integers: which axes they stand on, their common shape, where its axes go."""

    def __init__(self, b: GraphBuilder, x: Value, indices: Sequence[Value | None], count: Any = None) -> None:
        self.axes: list[int] = []
        self.indices: list[Value] = []
        axis = 0
        for index in indices:
            if index is None:
                axis += 1
                continue
            is_mask = index.dtype in (torch.bool, torch.uint8)
            found = _columns(b, index) if is_mask else [b.cast(index, torch.int64)]
            self.indices += found
            self.axes += range(axis, axis + len(found))
            axis += len(found)
        consecutive = self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))
        self.first = self.axes[0] if consecutive else 0
        self.rest = [a for a in range(x.rank) if a not in self.axes]
        self.rank = max((i.rank for i in self.indices), default=0)

    def order(self) -> list[int]:
        """Axes of x with the indexed ones in front."""
        return [*self.axes, *self.rest]

    def result_order(self) -> list[int]:
        """From [indices..., rest...] to torch's order: the indices' axes stand where the first indexed one was."""
        front, rest = list(range(self.rank)), list(range(self.rank, self.rank + len(self.rest)))
        return [*rest[: self.first], *front, *rest[self.first :]]

    def tuples(self, b: GraphBuilder) -> Value:
        """[indices..., number of indexed axes]: what GatherND and ScatterND read."""
        if len(self.indices) == 1:
            return common.unsqueeze(b, self.indices[0], self.rank)
        shape = common_shape(b, self.indices)
        wide = self.indices if shape is None else [b.op("Expand", index, shape) for index in self.indices]
        last = b.constant([self.rank])
        return b.op("Concat", *(b.op("Unsqueeze", index, last) for index in wide), axis=self.rank)


def common_shape(b: GraphBuilder, indices: Sequence[Value]) -> Value | None:
    """The extents all indices broadcast to; None when they have the same already."""
    shapes = [i.shape for i in indices if i.shape is not None]
    if len(shapes) < len(indices) or all(common.same_shape(s, shapes[0]) for s in shapes):
        return None  # those without a shape are columns of one mask
    return b.sizes(broadcast(*shapes))


def _columns(b: GraphBuilder, mask: Value) -> list[Value]:
    if mask.rank == 0:
        raise NoLoweringError("a mask without axes")
    found = b.op("NonZero", b.cast(mask, torch.bool))  # [rank, count]
    rows = b.op("Split", found, b.constant([1] * mask.rank), axis=0, outputs=mask.rank) if mask.rank > 1 else [found]
    return [Column(b.op("Squeeze", row, b.constant([0])), torch.int64) for row in rows]


class Column(Value):
    """One axis, of an extent only the data know."""

    @property
    def rank(self) -> int:
        return 1


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensor(b: GraphBuilder, node: fx.Node, x: Value, indices: Sequence[Value | None]) -> Value:
    common.refuse_complex(x)
    places = Places(b, x, indices)
    if len(places.axes) == 1:
        return b.op("Gather", x, places.indices[0], axis=places.axes[0])
    refuse_mixed(places)
    picked = b.op("GatherND", common.transpose(b, x, places.order()), places.tuples(b))
    return common.transpose(b, picked, places.result_order())


def refuse_mixed(places: Places) -> None:
    masked = [isinstance(i, Column) for i in places.indices]
    if any(masked) and not all(masked):
        raise NoLoweringError("a mask beside indices")


@lowers(aten.item.default, aten._local_scalar_dense.default)
def item(b: GraphBuilder, node: fx.Node, x: Value) -> Value:
    """A number read from a tensor, which gradients do not know of."""
    if b.dtype_of(x).is_floating_point:
        x = b.stop_gradient(x)
    wide = torch.float64 if b.dtype_of(x).is_floating_point else torch.bool if x.dtype == torch.bool else torch.int64
    return common.reshape(b, b.cast(x, wide), [])
