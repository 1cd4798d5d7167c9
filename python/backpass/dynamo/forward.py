"""Forward capture: the graph of torch.compile is exported whole, and differentiated by Backpass."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from backpass import Error
from backpass._collection import without_collection
from backpass.dynamo.capturable import (
    NotCapturableError,
    check_aliases,
    check_arguments,
    check_nodes,
    fixed_size,
    number_places,
    of_tensors,
    size_sources,
    with_numbers,
)
from backpass.dynamo.dump import dump_model
from backpass.dynamo.graph import CompiledGraph, reported, transformed
from backpass.dynamo.options import CompileOptions
from backpass.dynamo.report import CompileRecord
from backpass.torch import ExportedModel, InputSpec, Slot, export_graph, export_module, resolve
from backpass.torch.capture import one_at_a_time
from backpass.torch.exporter import differentiable
from backpass.torch.flat import FlatModule, varying_axes
from backpass.torch.resolve import NotPlainError
from backpass.torch.surroundings import nothing_for_debuggers, saving_unseen

log = logging.getLogger("backpass.dynamo")


def compile_forward(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, record: CompileRecord
) -> Callable[..., Any]:
    """A function like the module's forward. Raises NotCapturableError where that would not be the same."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    check_arguments(placeholders, example_inputs)
    check_aliases(module.graph, placeholders)
    places = number_places(placeholders)
    if not places:
        return _compiled(module, example_inputs, options, record)
    graphs: dict[tuple[float, ...], Callable[..., Any]] = {}

    def graph_for(arguments: Sequence[Any]) -> Callable[..., Any]:
        """Floats that torch.compile hands over as tensors (with ``dynamic=True``, an epsilon for example) are constants
        of the exported graph: there is one graph for each set of values that occurs."""
        with _disable_current_modes():
            numbers = tuple(arguments[i].item() for i in places)
        if numbers not in graphs:
            fixed = with_numbers(module, dict(zip(places, numbers, strict=True)))
            graphs[numbers] = _compiled(fixed, arguments, options, record)
        return graphs[numbers]

    graph_for(example_inputs)
    return lambda *arguments: graph_for(arguments)(*arguments)


def _compiled(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, record: CompileRecord
) -> Callable[..., Any]:
    with reported("inference", module, options, record) as report:
        check_nodes(module.graph)
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        exported = _exported(module, placeholders, example_inputs)
        model = transformed(exported.proto, options)
        results = _results(module.graph, exported.output_template)
        constant = [i for i, _, requires_grad in results if not requires_grad]
        try:
            compiled = CompiledGraph(module, exported, model, options, report, example_inputs, constant)
        except Error as error:
            raise NotCapturableError(f"the engine refuses the exported graph: {error}") from error
        if compiled.engine.requires_grad:
            report.kind = "training"
            _check_gradients(compiled, results)
        _check_writes(compiled, placeholders, example_inputs)
        report.dump = dump_model(model, module)
    return lambda *arguments: tuple(compiled(arguments))


def _results(graph: torch.fx.Graph, template: Sequence[Slot]) -> list[tuple[int, torch.fx.Node, bool]]:
    """For each tensor that is computed: which output it is, its node, and whether torch lets one differentiate it."""
    nodes: Any = graph.output_node().args[0]
    values = [n.meta.get("example_value") if isinstance(n, torch.fx.Node) else None for n in nodes]
    return [
        (slot.index, node, value.requires_grad)
        for node, value, slot in zip(nodes, values, template, strict=True)
        if isinstance(value, torch.Tensor) and slot.source == "output"
    ]


def _check_gradients(compiled: CompiledGraph, results: Sequence[tuple[int, torch.fx.Node, bool]]) -> None:
    """What torch lets one differentiate must allow it, if only to give zeros."""
    for i, node, requires_grad in results:
        if requires_grad and i in compiled.engine.flat_outputs:
            raise NotCapturableError(f"the gradient of its result {node} is zero everywhere or not known to Backpass")


def _check_writes(
    compiled: CompiledGraph, placeholders: Sequence[torch.fx.Node], example_inputs: Sequence[Any]
) -> None:
    """What is written back gets no part in autograd's graph."""
    for i in compiled.overwritten:
        place = compiled.inputs[i].target
        if not isinstance(place, int):
            continue
        if example_inputs[place].requires_grad:
            raise NotCapturableError("it changes in place a tensor that requires a gradient")
        if placeholders[place].meta["example_value"].requires_grad:
            raise NotCapturableError("it changes an argument in place, to a value that requires a gradient")
        if i in compiled.engine.read_inputs:
            raise NotCapturableError("it changes in place a tensor whose old value the backward pass reads")


def _exported(
    module: torch.fx.GraphModule, placeholders: Sequence[torch.fx.Node], example_inputs: Sequence[Any]
) -> ExportedModel:
    """The graph as a function of its tensors alone; positions are those among all arguments."""
    try:
        return _resolved(module, placeholders)
    except NotPlainError as reason:
        log.debug("traced by torch.export: %s", reason)
    return _traced(module, placeholders, example_inputs)


def _resolved(module: torch.fx.GraphModule, placeholders: Sequence[torch.fx.Node]) -> ExportedModel:
    """Lowers what torch.compile has traced."""
    started = time.perf_counter()
    with one_at_a_time, without_collection(), nothing_for_debuggers():
        graph, changed = resolve.functional(module)
    places = {node.name: i for i, node in enumerate(placeholders)}
    (results,) = graph.graph.output_node().args
    graph.graph.output_node().args = ((*changed.values(), *results),)  # type: ignore[misc]
    inputs = [InputSpec(n.name, "user", places[n.name]) for n in graph.graph.nodes if n.op == "placeholder"]
    outputs: list[tuple[str, str | int | None]] = [("input_mutation", places[str(n.target)]) for n in changed]
    outputs += [("user", i) for i in range(len(results))]  # type: ignore[arg-type]
    took = time.perf_counter() - started
    try:
        exported = export_graph(graph, inputs, outputs, dispatcher=differentiable(), name="FlatModule")
    except Exception as error:  # as of what torch.export has traced: AOTAutograd may still manage
        raise NotCapturableError(f"it cannot be exported: {type(error).__name__}: {error}") from error
    exported.seconds["resolve"] = took
    return exported


def _traced(
    module: torch.fx.GraphModule, placeholders: Sequence[torch.fx.Node], example_inputs: Sequence[Any]
) -> ExportedModel:
    """The graph as a function of its tensors alone; positions are those among all arguments."""
    places = [i for i, value in enumerate(example_inputs) if isinstance(value, torch.Tensor)]
    names = [placeholders[i].name for i in places]
    shapes = [placeholders[i].meta["example_value"].shape for i in places]
    varies = [[a for a, d in enumerate(shape) if fixed_size(d) is None] for shape in shapes]
    flat = FlatModule(module, of_tensors(module, places, size_sources(placeholders)), names)
    try:
        with _disable_current_modes(), torch._guards.tracing(None), saving_unseen():
            dynamic = varying_axes(names, varies) if any(varies) else None
            exported = export_module(flat, [example_inputs[i] for i in places], dynamic_shapes=dynamic)
    except Exception as error:  # torch.export raises many things; AOTAutograd may still manage
        raise NotCapturableError(f"it cannot be exported: {type(error).__name__}: {error}") from error
    if exported.draft or any(o.kind == "condition" for o in exported.outputs):
        raise NotCapturableError("it decides by the contents of tensors what to compute")
    for spec in exported.inputs:
        if isinstance(spec.target, int):
            fixed = [a for a in varies[spec.target] if isinstance(spec.shape[a], int)]
            if fixed:
                raise NotCapturableError(f"torch.export fixes axis {fixed[0]} of {spec.name}, which varies")
            spec.target = places[spec.target]
    for changed in exported.outputs:
        if changed.kind == "input_mutation":
            changed.target = places[int(changed.target)]  # type: ignore[arg-type]
    return exported
