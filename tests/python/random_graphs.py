"""Random graphs that can be differentiated: nodes of many families over a few inputs, all in float64.

A `Sketch` grows node by node. Every node is run as it is added, so that the next one can choose by the shapes there are
and values stay of moderate size (by factors in between). random_nodes.py holds the families.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import backpass
import numpy as np
import onnx
from choices import Choices
from onnx import TensorProto, helper, numpy_helper

Rng = np.random.Generator
OPSETS = (18, 20, 22, 24)
LARGEST = 5.0  # of values between nodes
MOST_ELEMENTS = 400


@dataclasses.dataclass
class Sketch(Choices):
    """A graph under construction, with the value that everything has for the inputs drawn so far."""

    opset: int
    values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # floats, in the order they came
    inputs: list[str] = dataclasses.field(default_factory=list)  # those of `values` that are fed
    constants: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    kinds: set[str] = dataclasses.field(default_factory=set)

    # ---- Choosing.
    def pick(self, least: int = 0, most: int = 5, empty: bool = True) -> str | None:
        """Some value of a rank in these bounds, later ones more likely; None when there is none."""
        fit = [n for n, v in self.values.items() if least <= v.ndim <= most and (empty or v.size)]
        return fit[-1 - min(int(self.rng.exponential(1.5)), len(fit) - 1)] if fit else None

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    # ---- Adding.
    def normal(self, *shape: int) -> np.ndarray:
        return np.asarray(self.rng.standard_normal(shape))

    def input(self, *shape: int) -> str:
        """A new input of the graph, which takes part in the differentiation."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.values[name] = self.normal(*shape)
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weight(self, *shape: int) -> str:
        """Numbers to compute with: mostly a new input, now and then stored in the model."""
        if self.coin(0.75) and len(self.inputs) < 6:
            return self.input(*shape)
        return self.constant(self.normal(*shape), np.float64)

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, reads: Sequence[str] = (), **attrs: Any) -> Any:
        """Adds a node; `reads`: what its subgraphs capture. Its first output (all when there are several)."""
        names = [f"{op}_{len(self.nodes)}_{k}" for k in range(outputs)]
        node = helper.make_node(op, list(inputs), names, name=f"node{len(self.nodes)}", **attrs)
        every = {**self.values, **self.constants}
        fed = {n: every[n] for n in dict.fromkeys([*inputs, *reads]) if n}
        results = backpass.InferenceSession(build([node], fed, {}, names, self.opset), reference=True).run(None, fed)
        self.nodes.append(node)
        self.kinds.add(op)
        for name, result in zip(names, results, strict=True):
            if result.dtype == np.float64:
                self.values[name] = result
        kept = [self._moderate(name) for name in names if name in self.values]
        return kept[0] if outputs == 1 else kept

    def _moderate(self, name: str) -> str:
        """The value, or a multiple of it that is not too steep for differences behind it."""
        value = self.values[name]
        largest = float(np.abs(value).max(initial=0.0))
        if largest <= LARGEST:
            return name
        del self.values[name]
        factor = self.constant(LARGEST / largest, np.float64)
        smaller = f"{name}_scaled"
        self.nodes.append(helper.make_node("Mul", [name, factor], [smaller], name=f"node{len(self.nodes)}"))
        self.values[smaller] = value * self.constants[factor]
        return smaller


def build(
    nodes: Sequence[onnx.NodeProto],
    fed: dict[str, np.ndarray],
    constants: dict[str, np.ndarray],
    outputs: Sequence[str],
    opset: int,
    symbolic: bool = False,
) -> bytes:
    def info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
        shape = [f"{name}_{i}" for i in range(value.ndim)] if symbolic else value.shape
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape)

    graph = helper.make_graph(
        list(nodes),
        "random",
        [info(n, v) for n, v in fed.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10 if opset < 24 else 12)
    return bytes(model.SerializeToString())


@dataclasses.dataclass
class Drawn:
    """A finished graph: a model, what it is fed, and which values are its outputs."""

    sketch: Sketch
    outputs: list[str]

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        return {n: self.sketch.values[n] for n in self.sketch.inputs}

    def model(self, symbolic: bool = False) -> onnx.ModelProto:
        s = self.sketch
        model = onnx.ModelProto.FromString(build(s.nodes, self.feeds, s.constants, self.outputs, s.opset, symbolic))
        for output in model.graph.output:
            shape = [f"{output.name}_{i}" for i in range(s.values[output.name].ndim)]
            output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.DOUBLE, shape))
        return model

    def __str__(self) -> str:
        return onnx.printer.to_text(self.model())


def draw(seed: int, families: Sequence[Any], most_nodes: int = 10) -> Drawn:
    """The graph of a seed."""
    rng = np.random.default_rng(seed)
    s = Sketch(rng, int(rng.choice(OPSETS)))
    has_empty = s.coin(0.06)
    for _ in range(s.number(1, 2)):
        extents = [s.choice([0, 1, 2] if has_empty else [1, 2, 3, 3, 4, 5]) for _ in range(s.number(0, 4))]
        s.input(*extents)
    for _ in range(s.number(2, most_nodes)):
        family = s.choice(families)
        before = dict(s.values)
        family(s)
        for name, value in list(s.values.items()):
            if name not in before and name not in s.inputs and value.size > MOST_ELEMENTS:
                del s.values[name]
    reads = {i for n in s.nodes for i in n.input}
    results = [n for n in s.values if n not in s.inputs] or [s.node("Tanh", [s.inputs[0]])]
    ends = [n for n in results if n not in reads] or results
    outputs = list(dict.fromkeys([s.choice(ends), *(s.choice(results) for _ in range(s.number(0, 2)))]))
    return Drawn(s, outputs)
