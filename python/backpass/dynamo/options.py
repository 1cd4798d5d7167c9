"""CompileOptions: what ``torch.compile(..., backend="backpass", options={...})`` takes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from backpass import InvalidInput, SessionOptions

ModelTransform = Callable[[onnx.ModelProto], onnx.ModelProto | None]

_MODES = ("auto", "forward", "aot")
_EXPORTERS = ("backpass", "torch")


@dataclass(frozen=True)
class CompileOptions:
    """How graphs are compiled.

    Environment variables come on top: ``ONNXRT_CHANGE_REWRITER`` (1 or true: Backpass's exporter, 0 or false: torch's)
    and ``ONNXRT_DUMP_PATH`` (a prefix; each model is written as ``<prefix>N.onnx``, its fx graph as ``<prefix>N.txt``).
    """

    mode: str = "auto"
    """``forward``: the forward graph is exported and differentiated by Backpass. ``aot``: torch's AOTAutograd makes a
    forward and a backward graph, each is exported. ``auto``: forward where possible, else aot, and the log says why."""

    exporter: str = "backpass"
    """``backpass``, or ``torch``: the graph that ``torch.onnx.export`` makes (implies ``aot``)."""

    pre_ort_model_transforms: Sequence[ModelTransform] = ()
    """Called with each exported model before it is loaded; they change it in place or return another."""

    preallocate_output: bool = False
    """Accepted for scripts that set it: outputs always are torch tensors that the engine wrote into, without copies."""

    assert_allclose_to_baseline: bool = False
    """Every graph is also run by torch and the results compared; slow, for finding errors."""

    session_options: SessionOptions | None = None

    optimize: bool = True
    """Whether torch's exporter optimises its graph (``exporter="torch"``)."""

    verbose: int = 0
    """1: a line for each graph; 2: also the graph itself."""

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, _MODES)
        _one_of("exporter", self.exporter, _EXPORTERS)
        if self.exporter == "torch" and self.mode == "forward":
            raise InvalidInput(
                "[torch.compile] exporter: torch.onnx.export exports no training graphs, got mode='forward', "
                "expected mode='aot' with exporter='torch'"
            )

    @staticmethod
    def of(options: CompileOptions | Mapping[str, Any] | None, mode: str | None = None) -> CompileOptions:
        """From what torch.compile hands over, environment variables on top."""
        made = options if isinstance(options, CompileOptions) else CompileOptions(**_fields(dict(options or {})))
        if mode is not None and mode != "default":
            raise InvalidInput(
                f"[torch.compile] mode: got {mode!r}, which selects between variants of another backend; "
                "use options={'mode': ...}, one of " + ", ".join(_MODES)
            )
        switch = os.environ.get("ONNXRT_CHANGE_REWRITER", "").lower()
        if switch:
            _one_of("ONNXRT_CHANGE_REWRITER", switch, ("1", "0", "true", "false"))
            exporter = "backpass" if switch in ("1", "true") else "torch"
            keep = exporter == "backpass" or made.mode != "forward"
            made = dataclasses.replace(made, exporter=exporter, mode=made.mode if keep else "aot")
        return made


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Names of the original are understood: ort_session_options, use_aot_autograd."""
    if "ort_session_options" in options:
        options["session_options"] = options.pop("ort_session_options")
    if "use_aot_autograd" in options:
        options.setdefault("mode", "aot" if options.pop("use_aot_autograd") else "forward")
    known = {f.name for f in dataclasses.fields(CompileOptions)}
    if unknown := sorted(set(options) - known):
        raise InvalidInput(
            f"[torch.compile] options: got {', '.join(map(repr, unknown))}, expected some of {', '.join(sorted(known))}"
        )
    return options


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InvalidInput(f"[torch.compile] {name}: got {value!r}, expected one of {', '.join(known)}")
