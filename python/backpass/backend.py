"""The interface of `onnx.backend.base` on top of `backpass.InferenceSession`.

import backpass.backend as backend
outputs = backend.run_model(model, [x, y])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backpass import _needs_onnx  # noqa: F401

# isort: split

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

import backpass


class PreparedModel(BackendRep):
    """A loaded model that can be run many times."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self._names = [i.name for i in session.get_inputs()]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Runs on inputs given by position (or by name, as a mapping); returns all outputs in order."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(values) > len(self._names):
                raise ValueError(f"got {len(values)} inputs, expected at most {len(self._names)}: {self._names}")
            feeds = dict(zip(self._names, values, strict=False))
        return tuple(self.session.run(None, {name: _as_value(v) for name, v in feeds.items()}))


class Backend(OnnxBackend):
    """What `onnx.backend.test.runner.Runner` and other users of the ONNX backend interface ask for."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model loads here."""
        if not cls.supports_device(device):
            return False
        try:
            backpass.InferenceSession(model.SerializeToString())
        except backpass.Unsupported:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Loads the model. Raises `backpass.Unsupported` naming what it asks for and Backpass lacks."""
        if not cls.supports_device(device):
            raise ValueError(f"device {device!r}: expected 'CPU'")
        return PreparedModel(backpass.InferenceSession(model.SerializeToString()))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one node of the newest opset (or of `opset_version`) on inputs given by position."""
        names = [name for name in node.input if name]
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        feeds = {name: _as_value(v) for name, v in zip(names, values, strict=True)}
        graph = helper.make_graph(
            [node],
            node.name or node.op_type,
            [helper.make_value_info(name, _type_of(value)) for name, value in feeds.items()],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        version = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        opsets = [helper.make_opsetid("", version)]
        if node.domain:
            opsets.append(helper.make_opsetid(node.domain, 1))
        return cls.run_model(helper.make_model(graph, opset_imports=opsets), feeds, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.upper() == "CPU"


def _as_value(value: Any) -> Any:
    if value is None or isinstance(value, (list, tuple)):
        return value if value is None else [_as_value(v) for v in value]
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _type_of(value: Any) -> onnx.TypeProto:
    if value is None:
        raise ValueError("the type of an empty optional cannot be told from its value: use run_model")
    if isinstance(value, list):
        if not value:
            raise ValueError("the element type of an empty sequence cannot be told from its value: use run_model")
        return helper.make_sequence_type_proto(_type_of(value[0]))
    if value.dtype == object:
        return helper.make_tensor_type_proto(onnx.TensorProto.STRING, value.shape)
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
