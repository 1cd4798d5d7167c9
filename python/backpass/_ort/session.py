"""InferenceSession and IOBinding with onnxruntime's arguments."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass._convert import to_engine, to_numpy
from backpass._core import InvalidInput
from backpass._ort.options import ModelMetadata, RunOptions, SessionOptions
from backpass._ort.value import OrtValue
from backpass.profile import Profile
from backpass.session import Model, NodeArg, open_session

if TYPE_CHECKING:
    import onnx

PROVIDER = "CPUExecutionProvider"
# Operators that update inputs in place: input -> the output in which the engine returns the new value.
_IN_PLACE = {
    "AdamWOptimizer": {2: 1, 4: 2, 5: 3},
    "InPlaceAccumulatorV2": {0: 1},
    "InplaceClipGradNorm": {0: 0},
    "SGDOptimizerV2": {1: 1},
}


class InferenceSession:
    """A loaded model.

    Where operators of training graphs update inputs of the graph (sums of gradients, sequences of parameters), the
    arrays that were fed hold the new values afterwards.
    """

    def __init__(
        self,
        path_or_bytes: Model,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        _warn_about(providers)
        self._options = sess_options or SessionOptions()
        self._model_meta, model, self._updates, shown = _prepare(path_or_bytes)
        self._session = open_session(model, self._options.to_engine())
        self._inputs = [NodeArg(info) for info in self._session.inputs()]
        self._outputs = [NodeArg(info) for info in self._session.outputs()[:shown]]

    def get_inputs(self) -> list[NodeArg]:
        return self._inputs

    def get_outputs(self) -> list[NodeArg]:
        return self._outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

    def get_modelmeta(self) -> ModelMetadata:
        if self._model_meta is None:
            from backpass import _needs_onnx  # noqa: F401
        return self._model_meta or ModelMetadata()

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Nothing to choose: there is one."""

    def get_session_options(self) -> SessionOptions:
        return self._options

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """Outputs (all for None) as numpy arrays; feeds are arrays, lists of arrays for sequences, or OrtValues."""
        feeds = {name: v.numpy() if isinstance(v, OrtValue) else v for name, v in input_feed.items()}
        wanted = list(output_names or [output.name for output in self._outputs])
        updated = [name for name in self._updates if name in feeds]
        names = list(dict.fromkeys([*wanted, *(self._updates[name] for name in updated)]))
        values = self._session.run(names, {name: to_engine(value) for name, value in feeds.items()})
        results = {name: to_numpy(value) for name, value in zip(names, values, strict=True)}
        for name in updated:
            _overwrite(feeds[name], results[self._updates[name]], name)
        return [results[name] for name in wanted]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def end_profiling(self) -> str:
        """Writes what ran since the last call as a Chrome trace; the name of the file."""
        path = f"{self._options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        Profile(self._session.take_profile()).save(path)
        return path

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        iobinding.run()


class IOBinding:
    """Inputs and outputs of a session, bound before it runs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray[Any, Any]) -> None:
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._inputs[name] = ortvalue

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0) -> None:
        self._outputs[name] = None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._outputs[name] = ortvalue

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def run(self) -> None:
        if not self._outputs:
            raise InvalidInput("IOBinding: got no outputs, expected at least one; bind it with bind_output(name)")
        results = self._session.run(list(self._outputs), self._inputs)
        self._results = []
        for result, place in zip(results, self._outputs.values(), strict=True):
            if place is not None:
                place.update_inplace(result)
            self._results.append(place or OrtValue(result))

    def get_outputs(self) -> list[OrtValue]:
        return self._results

    def copy_outputs_to_cpu(self) -> list[Any]:
        return [value.numpy() for value in self._results]


def _warn_about(providers: Sequence[Any] | None) -> None:
    names = [p if isinstance(p, str) else p[0] for p in providers or [PROVIDER]]
    if PROVIDER not in names:
        warnings.warn(f"providers: got {names}; Backpass runs on the CPU", stacklevel=3)


def _prepare(source: Model) -> tuple[ModelMetadata | None, Model, dict[str, str], int | None]:
    """Facts about the model, the model to load, which of its outputs holds which updated input, and how many outputs
    it had before those were added. Without the package onnx the facts are not known.
    """
    if not _updates_inputs(source) and importlib.util.find_spec("onnx") is None:
        return None, source, {}, None
    from backpass import _needs_onnx  # noqa: F401, I001
    import onnx

    if isinstance(source, bytes):
        proto = onnx.load_model_from_string(source)
    else:
        proto = onnx.load(source, load_external_data=False)
    shown = len(proto.graph.output)
    updates = _expose_updates(proto.graph)
    if not updates:
        return _meta(proto), source, {}, shown
    if not isinstance(source, bytes):
        onnx.load_external_data_for_model(proto, str(Path(source).resolve().parent))
    return _meta(proto), proto.SerializeToString(), updates, shown


def _updates_inputs(source: Model) -> bool:
    """Whether there may be operators that update inputs: their names stand in a model as they are."""
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    return any(operator.encode() in content for operator in _IN_PLACE)


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


def _overwrite(fed: Any, new: Any, name: str) -> None:
    pairs = zip(fed, new, strict=True) if isinstance(fed, list) else [(fed, new)]
    for old, value in pairs:
        if not isinstance(old, np.ndarray) or not old.flags.writeable:
            raise InvalidInput(
                f"input {name!r} is updated in place: got {type(old).__name__}, expected a writable array"
            )
        np.copyto(old, value, casting="no")


def _meta(model: onnx.ModelProto) -> ModelMetadata:
    meta = ModelMetadata()
    meta.custom_metadata_map = {entry.key: entry.value for entry in model.metadata_props}
    meta.description, meta.domain, meta.version = model.doc_string, model.domain, model.model_version
    meta.producer_name, meta.graph_name = model.producer_name, model.graph.name
    meta.graph_description = model.graph.doc_string
    return meta
