"""The backend function of torch.compile, and the factory that makes ones with other settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from backpass.dynamo.adjust import make_dense, name_assertions
from backpass.dynamo.aot import compile_aot
from backpass.dynamo.capturable import NotCapturableError
from backpass.dynamo.forward import compile_forward
from backpass.dynamo.options import CompileOptions
from backpass.dynamo.report import CompileRecord

_record = CompileRecord()


def record() -> CompileRecord:
    """What ``backend="backpass"`` compiled in this process so far."""
    return _record


def backpass(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CompileOptions | Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What torch.compile calls with each graph. ``options``: fields of :class:`CompileOptions`."""
    return compile_module(graph_module, example_inputs, CompileOptions.of(options, mode), _record)


def compile_module(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, record: CompileRecord
) -> Callable[..., Any]:
    """Forward capture where the options and the graph allow it, else AOT."""
    note = ""
    make_dense(module)
    name_assertions(module)
    if options.mode != "aot" and options.exporter == "backpass":
        try:
            return compile_forward(module, example_inputs, options, record)
        except NotCapturableError as error:
            if options.mode == "forward":
                raise
            note = f"AOT mode because {error}"
    return compile_aot(module, example_inputs, options, record, note)


def make_aot_ort(
    dynamic: bool = False,
    rewrite: bool = False,
    verbose: int = 0,
    *,
    mode: str = "aot",
    preallocate_output: bool = False,
    **other: Any,
) -> tuple[Callable[..., Any], CompileRecord]:
    """A backend for torch.compile with these settings, and the record of what it compiles.

    ``rewrite``: torch's exporter optimises its graphs (those of Backpass are always optimised when they are loaded).
    ``dynamic``: extents are to vary. Which ones do is torch.compile's decision (its own argument ``dynamic``); this
    turns off what fixed shapes would allow, ``preallocate_output``. ``other``: fields of :class:`CompileOptions`.
    """
    preallocate_output = preallocate_output and not dynamic
    options = CompileOptions(
        mode=mode, optimize=rewrite, verbose=verbose, preallocate_output=preallocate_output, **other
    )
    made = CompileRecord()

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        merged = CompileOptions.of(given.get("options") or options, given.get("mode"))
        return compile_module(graph_module, example_inputs, merged, made)

    return backend, made
