"""Graphs in which extents are computed, as shape_fuzz.py judges them: a builder of ONNX models, and random whole
numbers computed from the extents of their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FAR = 2**31 - 1
FARTHEST = 2**63 - 1
OPSET = 21


class Tensor(NamedTuple):
    name: str
    rank: int


class GraphBuilder:
    """Nodes and constants with names made up."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{kind.lower()}_{len(self.nodes)}" + ("" if outputs == 1 else f"_{i}") for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def const(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(list(values))

    def scalar(self, value: str) -> str:
        return str(self.op("Squeeze", value, self.ints(0)))

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))


class ShapeGraph(GraphBuilder):
    """Float inputs with symbols among their extents; outputs that are floats (`losses`) or whole numbers."""

    def __init__(self, seed: int, inputs: Mapping[str, Sequence[str | int]]) -> None:
        super().__init__(seed)
        self.inputs = {name: list(shape) for name, shape in inputs.items()}
        self.outputs: list[str] = []
        self.losses: list[str] = []

    @property
    def symbols(self) -> list[str]:
        return sorted({d for shape in self.inputs.values() for d in shape if isinstance(d, str)})

    def model(self) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in self.inputs.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        for value in outputs:
            value.type.tensor_type.elem_type = TensorProto.FLOAT if value.name in self.losses else TensorProto.INT64
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def mean(self, x: str) -> str:
        """Of the elements and a 1: of nothing, some say NaN and some 0."""
        line = self.op("Reshape", x, self.ints(-1))
        return str(self.op("ReduceMean", self.op("Concat", line, self.const([1], np.float32), axis=0), keepdims=0))

    def total(self, x: str) -> str:
        return str(self.op("ReduceSum", x, keepdims=0))


class WholeNumbers(ShapeGraph):
    """Whole numbers are int64 vectors of one element."""

    def __init__(self, seed: int, inputs: Mapping[str, Sequence[str | int]]) -> None:
        super().__init__(seed, inputs)
        self.tensors = [Tensor(name, len(shape)) for name, shape in self.inputs.items()]
        self.known: list[str] = []  # made so far

    def extent(self, t: Tensor | None = None) -> str:
        t = t or self.pick(self.tensors)
        axis = self.number(0, t.rank - 1) if t.rank else 0
        if t.rank == 0:
            return self.ints(1)
        how = self.number(0, 3)
        if how == 0:
            return str(self.op("Gather", self.op("Shape", t.name), self.ints(self.pick([axis, axis - t.rank]))))
        if how == 1:
            return str(self.op("Slice", self.op("Shape", t.name), self.ints(axis), self.ints(axis + 1), self.ints(0)))
        if how == 2:
            return str(self.op("Shape", t.name, start=axis, end=axis + 1))
        return str(self.op("Unsqueeze", self.op("Gather", self.op("Shape", t.name), self.const(axis)), self.ints(0)))

    def whole(self, depth: int = 0) -> str:
        """A whole number, of any sign."""
        kinds: list[Callable[[int], str]] = [
            lambda d: self.extent(),
            lambda d: self.ints(self.number(-6, 7)),
            self._binary,
            self._binary,
            self._quotient,
            self._one_operand,
            self._chosen,
            self._joined,
            lambda d: self.op("Reshape", self.op("Size", self.pick(self.tensors).name), self.ints(1)),
        ]
        if self.known and self.chance(0.2):
            return str(self.pick(self.known))
        made = self.pick(kinds if depth < 3 else kinds[:2])(depth + 1)
        self.known.append(made)
        return str(made)

    def _binary(self, depth: int) -> str:
        return str(self.op(self.pick(["Add", "Sub", "Sub", "Mul", "Min", "Max"]), self.whole(depth), self.whole(depth)))

    def _quotient(self, depth: int) -> str:
        a = self.whole(depth)
        by = self.ints(self.pick([1, 2, 2, 3, 4, -2, -3]))
        if self.chance(0.3):
            by = self.op("Max", self.whole(depth), self.ints(1))
        if self.chance(0.6):
            return str(self.op("Div", a, by))
        return str(self.op("Mod", a, by, fmod=self.pick([0, 0, 1])))

    def _one_operand(self, depth: int) -> str:
        a = self.whole(depth)
        kind = self.pick(["Neg", "Abs", "Sign", "Identity", "int32", "float", "Clip"])
        if kind in ("int32", "float"):
            to = TensorProto.INT32 if kind == "int32" else TensorProto.FLOAT
            narrow = self.op("Cast", a, to=to)
            if self.chance(0.5):
                narrow = self.op("Mul", narrow, self.const([2], np.int32 if kind == "int32" else np.float32))
            return str(self.op("Cast", narrow, to=TensorProto.INT64))
        if kind == "Clip":
            return str(self.op("Clip", a, self.const(self.number(-3, 1)), self.const(self.number(1, 6))))
        return str(self.op(kind, a))

    def _chosen(self, depth: int) -> str:
        a, b = self.whole(depth), self.whole(depth)
        if self.chance(0.6):
            condition = self.op(self.pick(["Less", "Greater", "Equal", "LessOrEqual"]), a, b)
        else:
            condition = self.op("Equal", a, self.ints(self.number(-1, 4)))
        return str(self.op("Where", condition, self.pick([a, self.whole(depth)]), b))

    def _joined(self, depth: int) -> str:
        parts = [self.whole(depth) for _ in range(2)]
        several = self.op("Concat", *parts, axis=0)
        if self.chance(0.5):
            kind = self.pick(["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"])
            return str(self.op(kind, several, self.ints(0), keepdims=1))
        start, end = self.pick([(0, 1), (1, 2), (1, FAR), (-1, FARTHEST), (-2, -1)])
        return str(self.op("Slice", several, self.ints(start), self.ints(end), self.ints(0)))

    def size(self, low: int = 0, high: int = 6) -> str:
        """A whole number that can be an extent; few are left to chance."""
        a = self.pick([self.extent, self.whole, self.whole])()
        if self.chance(0.06):
            return str(a)
        bounded = self.op("Min", self.op("Max", a, self.ints(low)), self.ints(high))
        self.known.append(bounded)
        return str(bounded)
