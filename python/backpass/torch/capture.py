"""From an nn.Module to a functional fx graph of aten operators that is ready for lowering."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    OutputKind,
    SymIntArgument,
)
from torch.utils import _pytree as pytree

from backpass import Unsupported
from backpass._collection import without_collection
from backpass.torch import autocast, decisions, direct, marks, surroundings
from backpass.torch.builder import unused_name
from backpass.torch.dispatch import Dispatcher
from backpass.torch.model import InputSpec
from backpass.torch.opaque import opaque_autograd_functions, transparent_autograd_functions
from backpass.torch.table import training_table
from backpass.torch.taught import taught

one_at_a_time = threading.RLock()
"""Held while tracing: torch's modes, flags and warnings, what becomes of modules that are called, and the streams that
are silenced meanwhile belong to the whole process."""


@dataclass
class Captured:
    """The graph, and what its placeholders and results are."""

    graph_module: fx.GraphModule
    inputs: list[InputSpec]
    outputs: list[tuple[str, str | int | None]]
    in_spec: Any
    out_spec: Any
    program: torch.export.ExportedProgram
    draft: bool = False
    """The branches that depend on data were taken as the example takes them, and the graph asserts that."""
    traced_again: bool = False
    """torch made the graph functional, by tracing it a second time."""
    unregistered: list[str] = field(default_factory=list)
    """Parameters that require gradients, but are constants of the graph: names that torch gave to them."""
    unguarded: list[str] = field(default_factory=list)
    """Decisions on data that the graph does not assert."""
    seconds: dict[str, float] = field(default_factory=dict)


def capture(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic: bool = False,
    dynamic_shapes: Any = None,
    dispatcher: Dispatcher | None = None,
    draft: bool = False,
) -> Captured:
    """Captures a module in the mode it is in; changes nothing about it, nor about torch's random state.

    With `draft`, it is known to decide by the contents of tensors what to compute.
    """
    args, kwargs = _distinct(module, args, kwargs or {})
    if dynamic and dynamic_shapes is None:
        dynamic_shapes = automatic_shapes(module, args, kwargs)
    started = time.perf_counter()
    with (
        one_at_a_time,
        without_collection(),
        _untouched(module),
        _quiet(),
        surroundings.nothing_for_debuggers(),
        surroundings.failures_told_once(),
        surroundings.masks_as_given(),
        surroundings.inference_mode_as_no_grad(),
        surroundings.tensor_hooks_refused(),
        surroundings.comparisons_in_parts(),
        decisions.bounds_asserted(),
        autocast.seen_within(),
        surroundings.foreign_parameters() as unregistered,
        opaque_autograd_functions(),
        taught(),
    ):
        program, draft = _program(module, args, kwargs, dynamic_shapes, draft)
        decided = decisions.taken(program.graph_module)
        captured_at = time.perf_counter()
        signature = program.graph_signature
        marks.mark_stop_gradient(program.graph_module, _buffers(signature), _wanted(signature, module, (args, kwargs)))
        marks.write_instance_statistics(program.graph_module)
        casting = torch.is_autocast_enabled("cpu")  # torch writes the casts down when it traces a second time
        mutations = None if casting else _simplified(program)
        if mutations is None:
            decisions.forget_numbers(program.graph_module)
            with transparent_autograd_functions():
                table = training_table(dispatcher or Dispatcher())
                program = _decomposed(program, table, dynamic_shapes is not None)
            autocast.widen_losses(program.graph_module.graph)
    result = Captured(
        program.graph_module,
        _inputs(program, module),
        [*(mutations or ()), *_outputs(program.graph_signature)],
        program.call_spec.in_spec,
        program.call_spec.out_spec,
        program,
        draft,
        mutations is None,
        list(dict.fromkeys(unregistered)),
        decisions.not_asserted(program.graph_module, decided),
    )
    again = "decompose" if result.traced_again else "simplify"
    result.seconds = {"capture": captured_at - started, again: time.perf_counter() - captured_at}
    return result


def _simplified(program: torch.export.ExportedProgram) -> list[tuple[str, str | int | None]] | None:
    """Makes the graph functional in place, its changed buffers the first results; None where only torch can."""
    named = _buffers(program.graph_signature)
    final = direct.functional(program.graph_module, set(named))
    if final is None:
        return None
    graph = program.graph_module.graph
    (results,) = graph.output_node().args
    graph.output_node().args = ((*final.values(), *results),)
    return [("buffer_mutation", named[str(placeholder.target)]) for placeholder in final]


def _buffers(signature: ExportGraphSignature) -> dict[str, str | None]:
    """Placeholders of buffers, and their names in torch."""
    return {spec.arg.name: spec.target for spec in signature.input_specs if spec.kind == InputKind.BUFFER}


def _wanted(signature: ExportGraphSignature, module: torch.nn.Module, arguments: Any) -> set[str]:
    """Placeholders of what requires a gradient."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    leaves = zip(signature.user_inputs, pytree.tree_leaves(arguments), strict=False)
    named = [(spec.arg.name, parameters.get(str(spec.target))) for spec in signature.input_specs]
    return {str(name) for name, v in (*named, *leaves) if isinstance(v, torch.Tensor) and v.requires_grad}


def _distinct(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One tensor given twice, or given although the module holds it, would be captured as one input for good."""
    seen = {id(t) for t in (*module.parameters(), *module.buffers())}

    def apart(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in seen:
            value = value.detach().clone().requires_grad_(value.requires_grad)
        seen.add(id(value))
        return value

    found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(apart, (args, kwargs))
    return found


def _program(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, draft: bool
) -> tuple[torch.export.ExportedProgram, bool]:
    """The program, and whether decisions on data are in it. With `draft` that is expected."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    if not draft:
        with contextlib.suppress(GuardOnDataDependentSymNode):
            return _exported(module, args, kwargs, dynamic_shapes), False
    with surroundings.real_numbers():
        return _traced(module, args, kwargs, dynamic_shapes), True


def _exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    """An example extent of 1 stays symbolic if possible; some broadcasts are only understood when it does not."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        with torch.fx.experimental._config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            return _traced(module, args, kwargs, dynamic_shapes)
    except GuardOnDataDependentSymNode:
        raise
    except Exception:
        if dynamic_shapes is None:
            raise
    return _traced(module, args, kwargs, dynamic_shapes)


def _traced(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    with surroundings.transforms_left():
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)


def _decomposed(program: torch.export.ExportedProgram, table: Any, dynamic: bool) -> torch.export.ExportedProgram:
    """As `_exported`: if possible without conditions that keep extents of 1 out."""
    result: torch.export.ExportedProgram
    try:
        with torch.fx.experimental._config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            result = program.run_decompositions(table)
    except Exception:
        if not dynamic:
            raise
        result = program.run_decompositions(table)
    return result


def automatic_shapes(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every extent of every tensor may vary: torch.export finds out which really can."""

    def leaf(value: Any) -> Any:
        return dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO) if isinstance(value, torch.Tensor) else None

    import inspect

    shapes = pytree.tree_map(leaf, (args, kwargs))
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return shapes[0] if not kwargs else None
    named = inspect.signature(module.forward).bind(*shapes[0], **shapes[1])
    return dict(named.arguments) if bound.arguments else None


def _inputs(program: torch.export.ExportedProgram, module: torch.nn.Module) -> list[InputSpec]:
    """Parameters and buffers under their torch names (tied ones share the first), users' leaves by position."""
    first: dict[int, str] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        first.setdefault(id(tensor), name)
    state = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    specs: list[InputSpec] = []
    taken = set(first.values())
    position = 0
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            specs.append(_user_input(spec.arg, position, taken))
            position += 1
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target in state:
            name = first.get(id(state[spec.target]), spec.target)
            specs.append(InputSpec(name, "parameter" if spec.kind == InputKind.PARAMETER else "buffer", name))
        else:
            assert spec.target is not None
            value = program.constants.get(spec.target, program.state_dict.get(spec.target))
            specs.append(InputSpec(unused_name(spec.target, taken), "constant", spec.target, value))
    return specs


def _user_input(argument: Any, position: int, taken: set[str]) -> InputSpec:
    if isinstance(argument, ConstantArgument):
        return InputSpec(argument.name, "python", position, argument.value)
    kind = "symint" if isinstance(argument, SymIntArgument) else "user"
    return InputSpec(unused_name(argument.name, taken), kind, position)  # type: ignore[arg-type]


def _outputs(signature: ExportGraphSignature) -> list[tuple[str, str | int | None]]:
    users = list(signature.user_inputs)
    outputs: list[tuple[str, str | int | None]] = []
    count = 0
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            outputs.append(("buffer_mutation", spec.target))
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            outputs.append(("input_mutation", users.index(spec.target)))
        elif spec.kind == OutputKind.PARAMETER_MUTATION:
            raise Unsupported(
                f"parameter '{spec.target}': got a module that changes it in place, expected one that does not"
            )
        else:
            outputs.append(("user", count))
            count += 1
    return outputs


@contextlib.contextmanager
def _untouched(module: torch.nn.Module) -> Iterator[None]:
    """Random state and buffers come back as they were: draft_export runs the module for real."""
    random_state = torch.get_rng_state()
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    try:
        yield
    finally:
        torch.set_rng_state(random_state)
        with torch.no_grad():
            for buffer, old in buffers:
                if not torch.equal(buffer, old):
                    buffer.copy_(old)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Capture prints graphs and warns about what is handled here."""
    import io
    import logging

    loggers = [logging.getLogger(n) for n in ("torch.export", "torch._export", "torch.fx.experimental.symbolic_shapes")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        nothing = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
