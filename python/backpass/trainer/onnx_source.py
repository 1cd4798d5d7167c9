"""OnnxSource: an Engine's model that is an ONNX model already."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

import backpass._needs_onnx  # noqa: F401
from backpass import _core
from backpass._convert import to_input, to_numpy
from backpass._core import InvalidInput
from backpass.trainer.source import Capture, Fetches

if TYPE_CHECKING:
    from backpass.trainer.settings import Settings


class OnnxSource:
    """A model with the loss among its outputs, and copies of its weights."""

    def __init__(
        self, model: onnx.ModelProto, inputs: list[str], outputs: list[str], loss: str, settings: Settings
    ) -> None:
        self.inputs, self.outputs, self.loss, self.settings = inputs, outputs, loss, settings
        self._model = model
        if settings.postprocess is not None:
            self._model = onnx.ModelProto()
            self._model.CopyFrom(model)
            self._model = settings.postprocess(self._model) or self._model
        self._check_names()
        self._bytes = self._model.SerializeToString()
        self._run = _core.autocast_model(self._bytes) if settings.mixed_precision else self._bytes
        self._statistics = set(_core.running_statistics(self._bytes))

    def _check_names(self) -> None:
        graph = self._model.graph
        initializers = {t.name for t in graph.initializer}
        unknown = [name for name in self.settings.frozen if name not in initializers]
        if unknown:
            raise RuntimeError(f"{unknown} in frozen_weights not found in model weights.")
        for kind, wanted, known in (
            ("input", self.inputs, {v.name for v in graph.input}),
            ("output", [*self.outputs, self.loss], {v.name for v in graph.output}),
        ):
            missing = [name for name in wanted if name not in known]
            if missing:
                raise InvalidInput(f"described {kind}s: got {missing}, expected some of the model's: {sorted(known)}")

    # ---- state
    def make_state(self) -> Any:
        state = _core.Trainer.state_of(self._bytes, self.loss, list(self.settings.frozen))
        if self.settings.seed is not None:
            state.resume.seed, state.resume.random_counter = self.settings.seed, 0
        return state

    def refresh(self, state: Any) -> None:
        """Nobody else has these weights."""

    def weights(self, state: Any) -> dict[str, Any]:
        names = [name for name in state.parameter_names if name not in self._statistics]
        return {name: to_numpy(state.parameter(name)) for name in names}

    def buffers(self, state: Any) -> dict[str, Any]:
        names = [name for name in state.parameter_names if name in self._statistics]
        return {name: to_numpy(state.parameter(name)) for name in names}

    def copy_in(self, values: Mapping[str, Any], state: Any) -> None:
        arrays = {name: np.asarray(value) for name, value in values.items()}
        own = {name: to_numpy(state.parameter(name)) for name in arrays}
        for name, array in arrays.items():
            np.copyto(own[name], array, casting="same_kind")

    # ---- steps
    def key(self, values: Mapping[str, Any], training: bool, fetches: Fetches) -> tuple[Hashable, Mapping[str, Any]]:
        return (training, fetches), values

    def fits(self, capture: Capture, tensors: Mapping[str, Any], training: bool, fetches: Fetches) -> bool:
        return False  # there is one model, for all extents

    def capture(self, tensors: Mapping[str, Any], training: bool, fetches: Fetches, state: Any) -> Capture:
        wanted = self.outputs if fetches is None else list(fetches)
        for name in wanted:
            if name not in self.outputs:
                raise InvalidInput(f"fetches: got '{name}', expected some of {self.outputs}")
        types = {v.name: v.type.tensor_type.elem_type for v in self._model.graph.output}
        return Capture(
            model=self._run,
            loss=self.loss,
            outputs=wanted,
            training=training,
            to_inference=not training,
            types={name: types[name] for name in wanted},
            about=[f"{len(self._model.graph.node)} nodes"],
        )

    def feeds(self, names: Sequence[str], capture: Capture, tensors: Mapping[str, Any]) -> list[Any]:
        missing = [name for name in names if tensors.get(name) is None]
        if missing:
            raise InvalidInput(f"inputs: got no {missing}, expected values: {capture.outputs} need them")
        return [to_input(f"input '{name}'", tensors[name]) for name in names]

    def results(self, capture: Capture, results: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Any]:
        if any(type(value).__module__ == "torch" for value in values.values()):
            return dict(zip(capture.outputs, _core.tensors_to_torch(list(results)), strict=True))
        return dict(zip(capture.outputs, map(to_numpy, results), strict=True))

    def after_step(self, capture: Capture, updated: bool) -> None:
        """Nobody else has these weights."""

    def session_options(self, options: Any) -> Any:
        return options

    # ---- what there is
    def onnx_model(self, state: Any, training: bool) -> onnx.ModelProto:
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        for tensor in model.graph.initializer:
            if state.has_parameter(tensor.name):
                tensor.CopyFrom(numpy_helper.from_array(to_numpy(state.parameter(tensor.name)), tensor.name))
        return model if training else onnx.load_from_string(_core.inference_form(model.SerializeToString()))

    def described(self) -> str:
        graph = self._model.graph
        return f"ONNX model '{graph.name}': {len(graph.node)} nodes, {len(graph.initializer)} initializers"
