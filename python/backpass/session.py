"""InferenceSession and check: the engine's forward face, with onnxruntime's names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from backpass import _core
from backpass._convert import to_engine, to_numpy, to_stand_in
from backpass.profile import Profile

SessionOptions = _core.SessionOptions
Model = str | os.PathLike[str] | bytes


class NodeArg:
    """Name, type and shape of an input or output. Extents are ints, or strings for what may vary."""

    def __init__(self, info: _core.ValueInfo) -> None:
        self.name: str = info.name
        self.type: str = info.type
        extents = info.extents
        self.shape: list[int | str] | None = None if extents is None else [_extent(e) for e in extents]

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


def _extent(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


class InferenceSession:
    """A loaded model. Safe to run from several threads; the interpreter lock is released while it runs."""

    def __init__(self, model: Model, options: SessionOptions | None = None, **settings: Any) -> None:
        """Loads a path or serialized bytes. Settings are fields of SessionOptions: ``num_threads=2``."""
        self._session = open_session(model, _with_settings(options, settings))
        self._names = [info.name for info in self._session.outputs()]

    def get_inputs(self) -> list[NodeArg]:
        return [NodeArg(info) for info in self._session.inputs()]

    def get_outputs(self) -> list[NodeArg]:
        return [NodeArg(info) for info in self._session.outputs()]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Outputs (all of them for None) as numpy arrays; feeds are numpy arrays or anything with DLPack."""
        return [to_numpy(value) for value in self.run_tensors(output_names, feeds)]

    def run_tensors(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The same, giving ``backpass.Tensor`` objects, which torch and others take through DLPack without a copy."""
        engine_feeds = {name: to_engine(value) for name, value in feeds.items()}
        return self._session.run(list(output_names or []), engine_feeds)

    def plan(self, feeds: Mapping[str, Any]) -> _core.PlanReport:
        """What would run for these feeds: steps, fusions, exact peak bytes. Printable.

        A tuple is a shape, ``{"image": (4, 1, 28, 28)}``: enough for every input whose contents do not decide shapes.
        """
        codes = {info.name: info.dtype for info in self._session.inputs()}
        return self._session.plan({name: to_stand_in(value, codes.get(name, 1)) for name, value in feeds.items()})

    def rewrites(self) -> list[str]:
        """What the rewriting passes did to the model, one line each."""
        return self._session.rewrites()

    def graph_text(self) -> str:
        """The graph after rewriting, one node per line."""
        return self._session.graph_text()

    def take_profile(self) -> Profile:
        """Steps run since the last call, for a table or a Chrome trace; needs ``profile=True``."""
        return Profile(self._session.take_profile())


def _with_settings(options: SessionOptions | None, settings: Mapping[str, Any]) -> SessionOptions:
    """The options with these fields set; the caller's own object stays as it is."""
    chosen = SessionOptions()
    names = [name for name in dir(SessionOptions) if not name.startswith("_")]
    for name in names if options is not None else []:
        setattr(chosen, name, getattr(options, name))
    for name, value in settings.items():
        if name not in names:
            raise TypeError(f"unknown session option {name!r}")
        setattr(chosen, name, value)
    return chosen


def open_session(model: Model, options: SessionOptions) -> _core.Session:
    if isinstance(model, bytes):
        return _core.Session.from_bytes(model, options)
    if hasattr(model, "SerializeToString"):
        return _core.Session.from_bytes(model.SerializeToString(), options)
    return _core.Session.from_path(os.fspath(model), options)


class CheckReport:
    """Every problem found in a model. True when there is none; printing lists them."""

    def __init__(self, problems: list[_core.Problem]) -> None:
        self.problems = problems

    @property
    def ok(self) -> bool:
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __len__(self) -> int:
        return len(self.problems)

    def __str__(self) -> str:
        if self.ok:
            return "no problems"
        return "\n".join([f"{len(self.problems)} problem(s):", *(f"  {p.text}" for p in self.problems)])

    __repr__ = __str__


def check(model: Model, trainable: Sequence[str] | None = None) -> CheckReport:
    """Finds everything wrong with a model without running it.

    With ``trainable``, names of inputs or initializers, also everything that keeps the model's outputs from being
    differentiated with respect to them.
    """
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    problems = _core.check_bytes(model) if isinstance(model, bytes) else _core.check_path(os.fspath(model))
    if problems or trainable is None:
        return CheckReport(problems)
    request = _core.GradientRequest()
    request.wrt = list(trainable)
    request.standard_only = False
    if isinstance(model, bytes):
        return CheckReport(_core.check_gradients_bytes(model, request))
    return CheckReport(_core.check_gradients_path(os.fspath(model), request))
