"""What a session of onnxruntime does with a model before it is loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backpass._core import InvalidInput
from backpass._ort.options import ModelMetadata, SessionOptions
from backpass.session import Model, serialized

if TYPE_CHECKING:
    import onnx

# Operators that update inputs in place: input -> the output in which the engine returns the new value.
_IN_PLACE = {
    "AdamWOptimizer": {2: 1, 4: 2, 5: 3},
    "InPlaceAccumulatorV2": {0: 1},
    "InplaceClipGradNorm": {0: 0},
    "SGDOptimizerV2": {1: 1},
}


def prepare(source: Model, options: SessionOptions) -> tuple[ModelMetadata | None, Model, dict[str, str], int | None]:
    """Facts about the model, the model to load, which of its outputs holds which updated input, and how many outputs
    it had before those were added. Without the package onnx the facts are not known.
    """
    content = serialized(source)
    if not options.changes_model and importlib.util.find_spec("onnx") is None and not _updates_inputs(source, content):
        return None, source, {}, None
    proto = _read(source if content is None else content)
    if proto is None:
        return ModelMetadata(), source, {}, 0
    shown = len(proto.graph.output)
    updates = _expose_updates(proto.graph)
    if not updates and not options.changes_model:
        return _meta(proto), source, {}, shown
    _apply(options, proto.graph)
    if content is None:
        import onnx

        onnx.load_external_data_for_model(proto, str(Path(str(source)).resolve().parent))
    return _meta(proto), proto.SerializeToString(), updates, shown


def _updates_inputs(source: Model, content: bytes | None) -> bool:
    """Whether there may be operators that update inputs: their names stand in a model as they are."""
    found = Path(str(source)).read_bytes() if content is None else content
    return any(operator.encode() in found for operator in _IN_PLACE)


def _read(source: Any) -> onnx.ModelProto | None:
    """None for what is no model: the engine says what is wrong with it."""
    from backpass import _needs_onnx  # noqa: F401, I001
    import onnx

    try:
        if isinstance(source, bytes):
            return onnx.load_model_from_string(source)
        return onnx.load(source, load_external_data=False)
    except Exception:
        return None


def _apply(options: SessionOptions, graph: onnx.GraphProto) -> None:
    """Fixes dimensions and replaces initializers as the options say."""
    from onnx import numpy_helper

    for info in (*graph.input, *graph.output, *graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in options.dimensions:
                dim.dim_value = options.dimensions[dim.dim_param]
            elif dim.denotation in options.denotations:
                dim.dim_value = options.denotations[dim.denotation]
    known = {tensor.name: tensor for tensor in graph.initializer}
    for name, value in options.initializers.items():
        if name not in known:
            raise InvalidInput(f"add_initializer: got {name!r}, expected an initializer of the model")
        known[name].CopyFrom(numpy_helper.from_array(value.numpy(), name))


def _expose_updates(graph: onnx.GraphProto) -> dict[str, str]:
    """Makes what in-place operators return outputs of the graph."""
    inputs = {info.name for info in graph.input}
    outputs = {info.name for info in graph.output}
    updates: dict[str, str] = {}
    for node in graph.node:
        for source, result in _IN_PLACE.get(node.op_type, {}).items():
            if source >= len(node.input) or node.input[source] not in inputs:
                continue
            while len(node.output) <= result:
                node.output.append("")
            node.output[result] = node.output[result] or f"{node.input[source]}::updated"
            updates[node.input[source]] = node.output[result]
            if node.output[result] not in outputs:
                graph.output.add(name=node.output[result])
    return updates


def _meta(model: onnx.ModelProto) -> ModelMetadata:
    return ModelMetadata(
        custom_metadata_map={entry.key: entry.value for entry in model.metadata_props},
        description=model.doc_string,
        domain=model.domain,
        graph_description=model.graph.doc_string,
        graph_name=model.graph.name,
        producer_name=model.producer_name,
        version=model.model_version,
    )
