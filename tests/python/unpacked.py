"""Instances that deal in sequences, taken apart so that judges of tensors can judge them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import backpass
import numpy as np
import onnx
import op_case
from op_case import Instance


@dataclasses.dataclass
class Unpacked(Instance):
    """Elements of sequences are inputs x0_0, x0_1, ... and outputs y0_0, ... of their own: further nodes make sequences
    of them and read them."""

    forward: list[Any] = dataclasses.field(default_factory=list)  # its outputs, sequences among them

    @functools.cached_property
    def feeds(self) -> dict[str, np.ndarray]:
        parts = ((f"x{i}", v) for i, v in self._fed())
        return {n: v for name, value in parts for n, v in zip(names_of(name, value), parts_of(value), strict=True)}

    def model(self, dynamic: bool = False, as_float32: bool = False) -> onnx.ModelProto:
        model = super().model(dynamic, as_float32)
        graph, helper = model.graph, onnx.helper
        for i, value in self._fed():
            if not isinstance(value, list):
                continue
            names = names_of(f"x{i}", value)
            kept = [v for v in graph.input if v.name != f"x{i}"]
            del graph.input[:]
            graph.input.extend(kept)
            for name, part in zip(names, value, strict=True):
                graph.input.append(helper.make_value_info(name, op_case.type_of(part, name if dynamic else "")))
            graph.node.insert(0, helper.make_node("SequenceConstruct", names, [f"x{i}"]))
        outputs = [v.name for v in graph.output]
        del graph.output[:]
        for output, value in zip(outputs, self.forward, strict=True):
            for j, (name, part) in enumerate(zip(names_of(output, value), parts_of(value), strict=True)):
                graph.output.append(helper.make_value_info(name, op_case.type_of(part, name if dynamic else "")))
                if isinstance(value, list):
                    graph.initializer.append(onnx.numpy_helper.from_array(np.array(j), f"{name}_at"))
                    graph.node.append(helper.make_node("SequenceAt", [output, f"{name}_at"], [name]))
        return model


def parts_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def names_of(name: str, value: Any) -> list[str]:
    return [f"{name}_{j}" for j in range(len(value))] if isinstance(value, list) else [name]


def unpacked(item: Instance) -> Instance:
    """The instance itself when it has to do with tensors only."""
    forward = backpass.InferenceSession(item.model().SerializeToString()).run(None, item.feeds)
    if not any(isinstance(v, list) for v in (*item.values, *forward)):
        return item
    return Unpacked(item.row, item.dtype, item.case, item.opset, item.values, forward)
