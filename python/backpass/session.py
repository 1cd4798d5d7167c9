"""InferenceSession and check: the engine's forward face, with onnxruntime's names."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backpass import _core, _html
from backpass._convert import to_feeds, to_numpy
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
    """A loaded model. Safe to run from several threads; the interpreter lock is released while it runs.

    Can be pickled: the model goes along, with its weights.
    """

    def __init__(
        self,
        model: Model,
        options: SessionOptions | None = None,
        *,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **settings: Any,
    ) -> None:
        """Loads a path or serialized bytes. Settings are fields of SessionOptions: ``num_threads=2``.

        ``providers`` and ``provider_options`` are accepted for scripts that have them; the CPU runs everything.
        """
        note_providers(providers)
        self._source = ModelSource(model)
        self._options = _with_settings(options, settings)
        self._session = self._source.open(self._options)

    def get_inputs(self) -> list[NodeArg]:
        return [NodeArg(info) for info in self._session.inputs()]

    def get_outputs(self) -> list[NodeArg]:
        return [NodeArg(info) for info in self._session.outputs()]

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Outputs (all of them for None) as numpy arrays; feeds are numpy arrays or anything with DLPack."""
        return [to_numpy(value) for value in self.run_tensors(output_names, feeds)]

    def run_tensors(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The same, giving ``backpass.Tensor`` objects, which torch and others take through DLPack without a copy."""
        return self._session.run(name_list("output_names", output_names), to_feeds(feeds))

    def plan(self, feeds: Mapping[str, Any]) -> _core.PlanReport:
        """What would run for these feeds: steps, fusions, exact peak bytes. Printable.

        A tuple is a shape, ``{"image": (4, 1, 28, 28)}``: enough for every input whose contents do not decide shapes.
        """
        codes = {info.name: info.dtype for info in self._session.inputs()}
        return self._session.plan(to_feeds(feeds, codes))

    def arena_need(self, sizes: Mapping[str, int] | None = None) -> _core.ArenaNeed:
        """Peak bytes as an expression of the model's symbols; with ``sizes``, ``{"batch": 32}``, also as a number."""
        return self._session.arena_need(dict(sizes or {}))

    def rewrites(self) -> list[str]:
        """What the rewriting passes did to the model, one line each."""
        return self._session.rewrites()

    def pass_reports(self) -> list[_core.Report]:
        """The same as objects: pass, node, what, why, and what it saves where that is known."""
        return self._session.pass_reports()

    def pass_times(self) -> dict[str, float]:
        """Seconds that each rewriting pass took."""
        return {time.pass_name: time.seconds for time in self._session.pass_times()}

    def graph_text(self) -> str:
        """The graph after rewriting, one node per line."""
        return self._session.graph_text()

    def execution_model(self) -> bytes:
        """The model after rewriting, before it is laid out for running. A session loads it and gives the same results.

        Operators of domain ``backpass`` in it are known to Backpass alone; ``disabled_passes`` keeps them out.
        """
        return self._session.execution_model()

    def take_profile(self) -> Profile:
        """Steps run since the last call, for a table or a Chrome trace; needs ``profile=True``."""
        return Profile(self._session.take_profile())

    def to_bytes(self) -> bytes:
        """The model, with its weights: what InferenceSession takes."""
        return self._source.to_bytes()

    def __repr__(self) -> str:
        inputs, outputs = (listed(infos) for infos in (self._session.inputs(), self._session.outputs()))
        return f"InferenceSession({self._source}, inputs=[{inputs}], outputs=[{outputs}])"

    def __reduce__(self) -> tuple[Any, ...]:
        return InferenceSession, (self.to_bytes(), self._options)


class ModelSource:
    """What a session was made of, and how to get it again."""

    def __init__(self, model: Any) -> None:
        self._bytes = serialized(model)
        self._path = None if self._bytes is not None else whole_path(model)

    def open(self, options: SessionOptions) -> _core.Session:
        if self._bytes is not None:
            return _core.Session.from_bytes(self._bytes, options)
        session = _core.Session.from_path(self._path or "", options)
        self._stamp = _stamp(self._path)
        return session

    def to_bytes(self) -> bytes:
        if self._bytes is not None:
            return self._bytes
        if _stamp(self._path) != self._stamp:
            raise _core.InvalidInput(f"{self._path!r} was changed after the session had been made; make a new one")
        return _core.model_bytes(self._path or "")

    def __str__(self) -> str:
        return repr(self._path) if self._bytes is None else f"{len(self._bytes)} bytes"


def whole_path(path: Any) -> str:
    """From the root on, also after the current folder has changed; an empty one stays empty."""
    text = os.fsdecode(path)
    return os.path.abspath(text) if text else text


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    if path is None or not os.path.exists(path):
        return None
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def serialized(model: Any) -> bytes | None:
    """The bytes of a model in memory; None for a path."""
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    found: bytes | None = model.SerializeToString() if hasattr(model, "SerializeToString") else None
    return found


def listed(infos: Sequence[_core.ValueInfo]) -> str:
    """``x: tensor(float)[N,4]`` for each."""
    return ", ".join(f"{i.name}: {i.type}{'' if i.extents is None else '[' + ','.join(i.extents) + ']'}" for i in infos)


def note_providers(providers: Sequence[Any] | None) -> None:
    """Says, once per line of the script, that providers other than the CPU are not there."""
    names = [p if isinstance(p, str) else p[0] for p in providers or []]
    others = [name for name in names if name != "CPUExecutionProvider"]
    if others:
        warnings.warn(f"providers: got {', '.join(others)}; ignored, Backpass runs on the CPU", stacklevel=3)


def name_list(what: str, names: Sequence[str] | None) -> list[str]:
    """A list of names; a string is refused, whose letters would be taken for names."""
    if isinstance(names, str):
        raise _core.InvalidInput(f"{what}: got the string {names!r}, expected a list of names, [{names!r}]")
    return list(names or [])


def _with_settings(options: SessionOptions | None, settings: Mapping[str, Any]) -> SessionOptions:
    """The options with these fields set; the caller's own object stays as it is."""
    chosen = SessionOptions()
    names = [name for name in dir(SessionOptions) if not name.startswith("_")]
    for name in names if options is not None else []:
        setattr(chosen, name, getattr(options, name))
    for name, value in settings.items():
        if name not in names:
            raise TypeError(f"unknown session option {name!r}; there are {', '.join(names)}")
        setattr(chosen, name, value)
    return chosen


def open_session(model: Model, options: SessionOptions) -> _core.Session:
    return ModelSource(model).open(options)


class CheckReport:
    """Every problem found in a model. True when there is none; printing lists them."""

    def __init__(
        self, problems: list[_core.Problem], find_memory: Callable[[], _core.MemoryCheck] | None = None
    ) -> None:
        self.problems = problems
        self._find_memory = find_memory

    @functools.cached_property
    def memory(self) -> _core.MemoryCheck:
        """What running the model takes; found when it is first asked for."""
        if self.problems or self._find_memory is None:
            raise ValueError(f"memory of a model that cannot run: {self}")
        return self._find_memory()

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

    def _repr_html_(self) -> str:
        if self.ok:
            return _html.text(str(self))
        rows = [(p.kind, p.op, p.node, p.text) for p in self.problems]
        return _html.table(("kind", "operator", "node", "problem"), rows, f"{len(rows)} problem(s)")


def check(model: Model, trainable: Sequence[str] | None = None, sizes: Mapping[str, int] | None = None) -> CheckReport:
    """Finds everything wrong with a model without running it, and what running it would take.

    With ``trainable``, names of inputs or initializers, also everything that keeps the model's outputs from being
    differentiated with respect to them. ``memory`` of the result has the peak bytes of inference, and of a training
    step where something is trainable, as an expression of the model's symbols; with ``sizes``, ``{"batch": 32}``, also
    as a number.
    """
    content = serialized(model)
    path = "" if content is not None else os.fsdecode(model)
    names = [] if trainable is None else name_list("trainable", trainable)
    problems = _core.check_path(path) if content is None else _core.check_bytes(content)
    if not problems and trainable is not None:
        problems = _gradient_problems(path, content, names)

    def find_memory() -> _core.MemoryCheck:
        if content is None:
            return _core.check_memory_path(path, names, dict(sizes or {}))
        return _core.check_memory_bytes(content, names, dict(sizes or {}))

    return CheckReport(problems, find_memory)


def _gradient_problems(path: str, content: bytes | None, names: list[str]) -> list[_core.Problem]:
    request = _core.GradientRequest()
    request.wrt = names
    request.standard_only = False
    if content is None:
        return _core.check_gradients_path(path, request)
    return _core.check_gradients_bytes(content, request)
