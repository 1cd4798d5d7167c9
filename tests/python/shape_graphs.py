"""Random ONNX graphs in which extents are computed: what shape_fuzz.py runs.

Tensors are float32 of a known rank. Most steps are valid for any extents; some are not, and then everyone has to
refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from shape_graph import FAR, FARTHEST, Tensor, WholeNumbers


def random_inputs(rng: np.random.Generator) -> dict[str, list[str | int]]:
    def extent() -> str | int:
        names: list[str | int] = ["b", "n", "m", "b", "n", "m", int(rng.integers(1, 5))]
        return names[int(rng.integers(len(names)))]

    inputs: dict[str, list[str | int]] = {}
    for name in ("x", "y")[: 1 + int(rng.random() < 0.4)]:
        inputs[name] = [extent() for _ in range([1, 2, 2, 3, 3][int(rng.integers(5))])]
    if not any(isinstance(d, str) for d in inputs["x"]):
        inputs["x"][0] = "n"
    return inputs


class GraphMaker(WholeNumbers):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, random_inputs(np.random.default_rng(seed)))
        self.seldom = np.random.default_rng(seed + 3_000_000)  # beside rng: graphs it does not touch stay as they were
        for _ in range(self.number(1, 5)):
            self.grow()
        self._finish()

    def _finish(self) -> None:
        for t in self.tensors[-self.number(1, 3) :]:
            if self.chance(0.7):
                self.losses.append(self.pick([self.mean, self.mean, self.total])(t.name))
            if self.chance(0.6):
                self.outputs.append(self.op("Shape", t.name))
            if self.chance(0.3) and t.name not in self.inputs:
                self.losses.append(self.op("Identity", t.name))
            if self.chance(0.2):
                self.outputs.append(self.op("Shape", self.op("ConstantOfShape", self.op("Shape", t.name))))
        if self.known and self.chance(0.6):
            self.outputs.append(self.op("Concat", *self.known[-6:], axis=0))
        if not self.losses:
            self.losses.append(self.mean(self.tensors[-1].name))
        self.outputs += self.losses

    def grow(self) -> None:
        steps: list[Callable[[Tensor], Tensor | None]] = [
            *[self._slice] * 12, *[self._reshape] * 5, *[self._broadcast] * 3, *[self._concat] * 2, *[self._split] * 2,
            *[self._reduce] * 2, self._pad, self._pool, self._resize, self._expand, self._tile, self._axes, self._range,
            self._filled, self._scaled, self._gather, self._top_k, self._conv, self._one_hot, self._product,
            self._selected, self._blocks, self._crop,
        ]  # fmt: skip
        t = self.pick(self.tensors[-3:])
        made = self.pick(steps)(t)
        if made is not None:
            self.tensors.append(made)

    def bound(self, far: Sequence[int] = (FAR, FARTHEST, -FAR, -FARTHEST - 1)) -> str:
        if self.chance(0.5):
            return self.ints(self.pick([-7, -5, -3, -2, -1, 0, 0, 1, 2, 3, 5, *far]))
        return self.whole(1)

    def _slice(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        axis = self.number(0, t.rank - 1)
        step = self.pick([1, 1, 1, 1, 2, 3, -1, -1, -2])
        end = self.bound() if step > 0 else self.bound((-FAR, -FARTHEST - 1))  # onnxruntime takes FAR for the front
        inputs = [self.bound(), end, self.ints(self.pick([axis, axis - t.rank]))]
        if step != 1 or self.chance(0.2):
            inputs.append(self.ints(step))
        return Tensor(self.op("Slice", t.name, *inputs), t.rank)

    def _pad(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        axis = self.number(0, t.rank - 1)
        ends = [self.ints(self.number(-2, 3)) if self.chance(0.6) else self.size(-1, 3) for _ in range(2)]
        mode = self.pick(["constant", "constant", "constant", "edge", "wrap"])
        pads = self.op("Concat", *ends, axis=0)
        return Tensor(self.op("Pad", t.name, pads, "", self.ints(axis), mode=mode), t.rank)

    def _image(self, t: Tensor) -> str:
        """t with three axes, of which the last has an element more: windows over nothing differ from runtime to
        runtime."""
        image = t.name
        if t.rank > 3:
            image = self.op("Reshape", t.name, self.ints(1, 1, -1))
        elif t.rank < 3:
            image = self.op("Unsqueeze", t.name, self.ints(*range(3 - t.rank)))
        return str(self.op("Pad", image, self.ints(0, 1), "", self.ints(2)))

    def _window(self, kernel: int) -> dict[str, Any]:
        attributes: dict[str, Any] = {"strides": [self.number(1, 3)]}
        if self.chance(0.3) and attributes["strides"][0] <= kernel:  # else onnxruntime's padding is negative
            attributes["auto_pad"] = self.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
        elif self.chance(0.6):
            attributes["pads"] = [self.number(0, kernel - 1), self.number(0, kernel - 1)]
        return attributes

    def _pool(self, t: Tensor) -> Tensor | None:
        image = self._image(t)
        kernel = self.number(1, 4)
        attributes = self._window(kernel)
        if self.chance(0.6):
            attributes["ceil_mode"] = 1
        kind = self.pick(["MaxPool", "AveragePool"])
        if kind == "AveragePool":
            attributes["count_include_pad"] = self.pick([0, 1])
        return Tensor(self.op(kind, image, kernel_shape=[kernel], **attributes), 3)

    def _conv(self, t: Tensor) -> Tensor | None:
        image = self._image(t)
        one_channel = self.op("ReduceSum", image, self.ints(1), keepdims=1)
        kernel = self.number(1, 3)
        weights = self.const(self.rng.integers(-2, 3, (1, 1, kernel)), np.float32)
        kind = self.pick(["Conv", "ConvTranspose"])
        attributes = self._window(kernel)
        if kind == "ConvTranspose":
            attributes.pop("auto_pad", None)  # onnxruntime's extents are not the standard's where strides are large
        return Tensor(self.op(kind, one_channel, weights, **attributes), 3)

    def _resize(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        mode: dict[str, Any] = {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        if self.chance(0.5):
            # Two elements more, so that something is left: products over nothing are undefined in onnxruntime.
            padded = self.op("Pad", t.name, self.ints(*[1] * (2 * t.rank)))
            scales = self.const([self.pick([0.5, 2, 1, 1.5, 3]) for _ in range(t.rank)], np.float32)
            return Tensor(self.op("Resize", padded, "", scales, **mode), t.rank)
        sizes = self.op("Concat", *[self.size(1, 5) for _ in range(t.rank)], axis=0)
        resized = self.op("Resize", t.name, "", "", sizes, **mode)
        # Which element is the nearest is a matter of rounding; how many there are is not.
        return Tensor(self.op("Mul", resized, self.const(0, np.float32)), t.rank)

    def _expand(self, t: Tensor) -> Tensor | None:
        if t.rank > 3:
            return None
        if self.chance(0.5):
            target = self.op("Concat", self.size(), self.op("Shape", t.name), axis=0)
            return Tensor(self.op("Expand", t.name, target), t.rank + 1)
        return Tensor(self.op("Expand", t.name, self.pick([self.size, self.extent])()), max(t.rank, 1))

    def _tile(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        repeats = [self.size(0, 2) if self.chance(0.5) else self.ints(self.number(1, 2)) for _ in range(t.rank)]
        return Tensor(self.op("Tile", t.name, self.op("Concat", *repeats, axis=0)), t.rank)

    def _reshape(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return Tensor(self.op("Reshape", t.name, self.ints(-1)), 1)
        extents = [self.extent(t) if self.chance(0.1) else self.op("Shape", t.name, start=i, end=i + 1)
                   for i in range(t.rank)]  # fmt: skip
        if self.seldom.random() < 0.15:
            extents[int(self.seldom.integers(t.rank))] = self.extent()  # of any tensor: 0 there is not 0 here
        how = self.number(0, 6)
        if how == 0:
            target = [self.ints(-1)]
        elif how == 1:
            target = [self.pick(extents), self.ints(-1)]
        elif how == 2:
            target = [self.ints(-1), self.pick(extents)]
        elif how == 3:
            target = [self.ints(0), self.ints(-1)]
        elif how == 4:
            target = [extents[i] for i in self.rng.permutation(t.rank)]
        elif how == 5:
            target = (
                [self.op("Mul", extents[0], extents[-1])] if t.rank == 2 else [*extents[:-1], self.ints(1), extents[-1]]
            )
        else:
            target = [self.size(1, 3), self.ints(-1)]
        allowzero = self.pick([0, 0, 1]) if how in (4, 5) else 0  # with -1, 1 is not allowed
        name = self.op("Reshape", t.name, self.op("Concat", *target, axis=0), allowzero=allowzero)
        return Tensor(name, len(target))

    def _split(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        axis = self.number(0, t.rank - 1)
        pieces = self.number(2, 3)
        if self.chance(0.5):
            parts = self.op("Split", t.name, outputs=pieces, axis=axis, num_outputs=pieces)
        else:
            extent = self.op("Shape", t.name, start=axis, end=axis + 1)
            first = self.op("Min", self.size(0, 4), extent)
            sizes = self.op("Concat", first, self.op("Sub", extent, first), axis=0)
            parts = self.op("Split", t.name, sizes, outputs=2, axis=axis)
        self.tensors.extend(Tensor(p, t.rank) for p in parts[:-1])
        return Tensor(parts[-1], t.rank)

    def _concat(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        others = [o for o in self.tensors if o.rank == t.rank]
        other = t if self.chance(0.6) else self.pick(others)
        return Tensor(self.op("Concat", t.name, other.name, axis=self.number(0, t.rank - 1)), t.rank)

    def _reduce(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        keep = self.number(0, 1)
        axis = self.ints(self.number(0, t.rank - 1))
        kind = self.pick(["ReduceMean", "ReduceSum", "ReduceMax"])
        data = t.name if kind == "ReduceSum" else self.op("Pad", t.name, self.ints(0, 1), "", axis)
        return Tensor(self.op(kind, data, axis, keepdims=keep), t.rank if keep else t.rank - 1)

    def _axes(self, t: Tensor) -> Tensor | None:
        how = self.number(0, 3)
        if how == 0 and t.rank < 4:
            return Tensor(self.op("Unsqueeze", t.name, self.ints(self.number(0, t.rank))), t.rank + 1)
        if how == 1 and t.rank:
            return Tensor(self.op("Squeeze", t.name, self.ints(self.number(0, t.rank - 1))), t.rank - 1)
        if how == 2:
            return Tensor(self.op("Flatten", t.name, axis=self.number(0, t.rank)), 2)
        if t.rank == 0:
            return None
        return Tensor(self.op("Transpose", t.name, perm=[int(i) for i in self.rng.permutation(t.rank)]), t.rank)

    def _range(self, t: Tensor) -> Tensor | None:
        del t
        step = self.pick([1, 1, 2, 3, -1, -2])
        ends = [self.scalar(self.whole(1)) if self.chance(0.7) else self.const(self.number(-3, 5)) for _ in range(2)]
        # No longer than a few elements: whole numbers can be products.
        low = self.op("Clip", ends[0], self.const(-9), self.const(9))
        high = self.op("Clip", ends[1], self.const(-9), self.const(9))
        if self.chance(0.5):
            low, high = ends if self.chance(0.3) else (self.const(0), self.scalar(self.extent()))
        return Tensor(self.op("Cast", self.op("Range", low, high, self.const(step)), to=TensorProto.FLOAT), 1)

    def _filled(self, t: Tensor) -> Tensor | None:
        if self.chance(0.5):
            ones = self.op("ConstantOfShape", self.op("Shape", t.name), value=helper.make_tensor("v", 1, [1], [1.0]))
            return Tensor(self.op("Add", ones, t.name), t.rank)
        target = self.op("Concat", self.size(), self.size(), axis=0)
        return Tensor(self.op("ConstantOfShape", target, value=helper.make_tensor("v", 1, [1], [2.0])), 2)

    def _scaled(self, t: Tensor) -> Tensor | None:
        factor = self.op("Cast", self.whole(1), to=TensorProto.FLOAT)
        factor = self.op("Clip", factor, self.const(-20, np.float32), self.const(20, np.float32))
        return Tensor(self.op("Mul", t.name, factor), max(t.rank, 1))

    def _broadcast(self, t: Tensor) -> Tensor | None:
        other = self.pick(self.tensors)
        if t.rank and self.chance(0.4):
            other = self._slice(t) or t
        return Tensor(self.op(self.pick(["Add", "Sub"]), t.name, other.name), max(t.rank, other.rank))

    def _gather(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        axis = self.number(0, t.rank - 1)
        extent = self.op("Shape", t.name, start=axis, end=axis + 1)
        count = self.scalar(self.op("Min", self.size(), extent))
        indices = self.op("Range", self.const(0), count, self.const(self.number(1, 2)))
        if self.chance(0.4):
            indices = self.op("Sub", indices, extent)
        return Tensor(self.op("Gather", t.name, indices, axis=axis), t.rank)

    def _top_k(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        axis = self.number(0, t.rank - 1)
        k = self.op("Min", self.size(), self.op("Shape", t.name, start=axis, end=axis + 1))
        ordered = self.op("TopK", t.name, k, outputs=2, axis=axis)
        return Tensor(self.op("Cast", ordered[1], to=TensorProto.FLOAT), t.rank)

    def _one_hot(self, t: Tensor) -> Tensor | None:
        del t
        indices = self.op("Range", self.const(0), self.scalar(self.size()), self.const(1))
        return Tensor(self.op("OneHot", indices, self.size(1, 5), self.const([0, 1], np.float32), axis=-1), 2)

    def _product(self, t: Tensor) -> Tensor | None:
        if t.rank != 2:
            return None
        if self.chance(0.5):
            ones = self.op("ConstantOfShape", self.op("Shape", self.op("Transpose", t.name, perm=[1, 0])))
            return Tensor(self.op("MatMul", t.name, ones), 2)
        equation, rank = self.pick([("ij->ji", 2), ("ij->i", 1), ("ij->j", 1)])
        return Tensor(self.op("Einsum", t.name, equation=equation), rank)

    def _selected(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        axis = self.number(0, t.rank - 1)
        extent = self.scalar(self.op("Shape", t.name, start=axis, end=axis + 1))
        numbers = self.op("Range", self.const(0), extent, self.const(1))
        chosen = self.op("Less", numbers, self.whole(1))
        if self.chance(0.5):
            return Tensor(self.op("Compress", t.name, chosen, axis=axis), t.rank)
        rows = self.op("Squeeze", self.op("NonZero", chosen), self.ints(0))
        return Tensor(self.op("Gather", t.name, rows, axis=axis), t.rank)

    def _blocks(self, t: Tensor) -> Tensor | None:
        if t.rank > 3:
            return None
        image = t.name if t.rank == 3 else self._image(t)
        image = self.op("Unsqueeze", image, self.ints(0))
        doubled = self.op("Tile", image, self.ints(1, 1, 2, 2))
        return Tensor(self.op("SpaceToDepth", doubled, blocksize=2), 4)

    def _crop(self, t: Tensor) -> Tensor | None:
        if t.rank == 0:
            return None
        axis = self.number(0, t.rank - 1)
        return Tensor(self.op("CenterCropPad", t.name, self.size(0, 5), axes=[axis]), t.rank)
