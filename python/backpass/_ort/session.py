"""InferenceSession with onnxruntime's arguments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backpass._convert import to_feeds, to_numpy
from backpass._core import InvalidInput
from backpass._ort.binding import IOBinding
from backpass._ort.errors import loading, running
from backpass._ort.options import ModelMetadata, RunOptions, SessionOptions
from backpass._ort.prepare import prepare
from backpass._values import OrtValue
from backpass.profile import Profile
from backpass.session import Model, NodeArg, listed, note_providers, open_session

PROVIDER = "CPUExecutionProvider"


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
        note_providers(providers)
        self._options = sess_options or SessionOptions()
        self._opened = path_or_bytes, time.time_ns()
        with loading(path_or_bytes):
            self._model_meta, model, self._updates, shown = prepare(path_or_bytes, self._options)
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

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {}}

    def enable_fallback(self) -> None:
        """Nothing to choose: there is one provider."""

    def disable_fallback(self) -> None:
        """Nothing to choose: there is one provider."""

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
        with running():
            values = self._session.run(names, to_feeds(feeds))
        results = {name: to_numpy(value) for name, value in zip(names, values, strict=True)}
        for name in updated:
            _overwrite(feeds[name], results[self._updates[name]], name)
        return [results[name] for name in wanted]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs in a thread of its own, then calls ``callback(results, user_data, error)``; no error is ``""``."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as problem:
                results, error = [], str(problem)
            callback(results, user_data, error)

        threading.Thread(target=work, name="backpass run_async").start()

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: list[OrtValue],
        fetch_devices: Any,
    ) -> None:
        """Appends the results to ``fetches``."""
        given = dict(zip(feed_names, feeds, strict=True))
        fetches.extend(self.run_with_ort_values(fetch_names, given, run_options))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def get_profiling_start_time_ns(self) -> int:
        return self._opened[1]

    def end_profiling(self) -> str:
        """Writes what ran since the last call as a Chrome trace; the name of the file."""
        path = f"{self._options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        Profile(self._session.take_profile()).save(path)
        return path

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        iobinding.run()

    def __repr__(self) -> str:
        inputs, outputs = listed(self._session.inputs()), listed(self._session.outputs()[: len(self._outputs)])
        return f"InferenceSession(inputs=[{inputs}], outputs=[{outputs}])"

    def __reduce__(self) -> tuple[Any, ...]:
        model, _ = self._opened
        return InferenceSession, (model, self._options)


def _overwrite(fed: Any, new: Any, name: str) -> None:
    pairs = zip(fed, new, strict=True) if isinstance(fed, list) else [(fed, new)]
    for old, value in pairs:
        if not isinstance(old, np.ndarray) or not old.flags.writeable:
            raise InvalidInput(
                f"input {name!r} is updated in place: got {type(old).__name__}, expected a writable array"
            )
        np.copyto(old, value, casting="no")
