"""Forward capture: the graph of torch.compile is exported whole, and differentiated by Backpass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from torch.utils._python_dispatch import _disable_current_modes

from backpass.dynamo.capturable import (
    NotCapturableError,
    Tensors,
    check_aliases,
    check_arguments,
    check_nodes,
    fixed_size,
    number_places,
    size_sources,
    with_numbers,
)
from backpass.dynamo.dump import dump_model
from backpass.dynamo.graph import Baseline, announce, as_feed, check_against, fetched, transformed
from backpass.dynamo.options import CompileOptions
from backpass.dynamo.report import CompileRecord, GraphReport
from backpass.torch import ExportedModel, export_module
from backpass.torch.runtime import EngineGraph
from backpass.torch.surroundings import saving_unseen

FLOATS = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)


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
    return PerNumbers(module, places, example_inputs, options, record)


def _compiled(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, record: CompileRecord
) -> ForwardGraph:
    started = time.perf_counter()
    check_nodes(module.graph)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    tensors = [i for i, value in enumerate(example_inputs) if isinstance(value, torch.Tensor)]
    adapter = Tensors(module, len(example_inputs), tensors, size_sources(placeholders))
    exported = _exported(adapter, placeholders, [example_inputs[i] for i in tensors])
    report = GraphReport("inference")
    compiled = ForwardGraph(module, adapter, exported, tensors, example_inputs, options, report)
    report.seconds = time.perf_counter() - started
    record.graphs.append(report)
    announce(report, module, options)
    return compiled


class PerNumbers:
    """Floats that torch.compile hands over as tensors (with ``dynamic=True``, an epsilon for example) are constants of
    the exported graph: there is one graph for each set of values that occurs."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        places: Sequence[int],
        example_inputs: Sequence[Any],
        options: CompileOptions,
        record: CompileRecord,
    ) -> None:
        self._module, self._places, self._options, self._record = module, list(places), options, record
        self._graphs: dict[tuple[float, ...], Callable[..., Any]] = {}
        numbers = self._numbers(example_inputs)
        self._graphs[numbers] = self._build(numbers, example_inputs)

    def _numbers(self, arguments: Sequence[Any]) -> tuple[float, ...]:
        with _disable_current_modes():
            return tuple(arguments[i].item() for i in self._places)

    def _build(self, numbers: Sequence[float], arguments: Sequence[Any]) -> ForwardGraph:
        module = with_numbers(self._module, dict(zip(self._places, numbers, strict=True)))
        return _compiled(module, arguments, self._options, self._record)

    def __call__(self, *arguments: Any) -> Any:
        numbers = self._numbers(arguments)
        graph = self._graphs.get(numbers)
        if graph is None:
            graph = self._graphs[numbers] = self._build(numbers, arguments)
        return graph(*arguments)


class ForwardGraph:
    """What torch.compile calls instead of the graph."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        adapter: Tensors,
        exported: ExportedModel,
        tensors: Sequence[int],
        example_inputs: Sequence[Any],
        options: CompileOptions,
        report: GraphReport,
    ) -> None:
        self._report = report
        self._baseline = module if options.assert_allclose_to_baseline else None
        state = {**dict(adapter.named_parameters()), **dict(adapter.named_buffers())}
        self._feeds: list[tuple[int, torch.Tensor | None]] = [
            (tensors[int(s.target)], None) if s.kind == "user" else (-1, state[str(s.target)])  # type: ignore[arg-type]
            for s in exported.inputs
        ]
        self._template = exported.output_template
        self._written = [
            (k, self._place(exported, o, tensors, state)) for k, o in enumerate(exported.outputs) if o.kind != "user"
        ]
        self._overwritten = [i for i, feed in enumerate(self._feeds) if self._is_written(*feed)]
        examples = [example_inputs[i] if held is None else held for i, held in self._feeds]
        wanted = [s.name for s, e in zip(exported.inputs, examples, strict=True) if _is_wanted(e)]
        report.kind = "training" if wanted and torch.is_grad_enabled() else "inference"
        changed = [o.name for o in exported.outputs if o.kind != "user" and o.dtype is not None]
        proto = transformed(_stop_gradients(exported.proto, changed), options)
        report.nodes, report.fallbacks = len(proto.graph.node), [f.op for f in exported.fallbacks]
        self._graph = _loaded(proto.SerializeToString(), [s.name for s in exported.inputs], wanted, options)
        self._check_writes(examples)
        self._cut = self._check_gradients(module.graph)
        report.dump = dump_model(proto, module)

    @staticmethod
    def _place(exported: ExportedModel, output: Any, tensors: Sequence[int], state: dict[str, torch.Tensor]) -> Any:
        """Where a changed value goes: a position among the arguments, or a tensor the graph holds."""
        return tensors[output.target] if output.kind == "input_mutation" else state[output.target]

    def _is_written(self, place: int, held: torch.Tensor | None) -> bool:
        targets = (target for _, target in self._written)
        return any(t is held if held is not None else isinstance(t, int) and t == place for t in targets)

    def _check_writes(self, examples: Sequence[torch.Tensor]) -> None:
        written = {place for _, place in self._written if isinstance(place, int)}
        for i, (place, _) in enumerate(self._feeds):
            if place not in written:
                continue
            if examples[i].requires_grad:
                raise NotCapturableError("it changes in place a tensor that requires a gradient")
            if i in self._graph._read_inputs:
                raise NotCapturableError("it changes in place a tensor whose old value the backward pass reads")

    def _check_gradients(self, graph: torch.fx.Graph) -> list[bool]:
        """Whether each result is to be cut off from autograd, as it is in torch. The other way round there is nothing
        to be done here: what torch lets one differentiate must allow it, if only to give zeros."""
        (end,) = (n for n in graph.nodes if n.op == "output")
        cut = [False] * len(self._template)
        for i, (node, slot) in enumerate(zip(end.args[0], self._template, strict=True)):
            value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
            if not isinstance(value, torch.Tensor) or slot.source != "output" or self._report.kind != "training":
                continue
            flat = slot.index in self._graph._flat
            cut[i] = not value.requires_grad and not flat
            if value.requires_grad and flat:
                raise NotCapturableError(
                    f"the gradient of its result {node} is zero everywhere or not known to Backpass"
                )
        return cut

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        self._report.calls += 1
        wanted = Baseline(self._baseline, _copied(arguments)) if self._baseline is not None else None
        feeds = [as_feed(arguments[i]) if held is None else held for i, held in self._feeds]
        if self._report.kind == "training":  # the engine may have to repeat the pass, from what was there before it
            for i in self._overwritten:
                feeds[i] = feeds[i].clone()
        outputs = self._graph(feeds)
        if self._written:
            with torch.no_grad():
                for k, place in self._written:
                    (arguments[place] if isinstance(place, int) else place).copy_(outputs[k])
        found = (fetched(slot, outputs, feeds) for slot in self._template)
        results = tuple(r.detach() if cut else r for r, cut in zip(found, self._cut, strict=True))
        if wanted is not None:
            check_against(wanted, results)
        return results


def _stop_gradients(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """No gradient ever arrives for what is written back (running statistics): the engine need not expect one."""
    kinds = {v.name: v.type.tensor_type.elem_type for v in proto.graph.output}
    for name in names:
        if kinds[name] not in FLOATS:
            continue
        inner = f"{name}_made"
        for node in proto.graph.node:
            node.input[:] = [inner if n == name else n for n in node.input]
            node.output[:] = [inner if n == name else n for n in node.output]
        proto.graph.node.append(onnx.helper.make_node("StopGradient", [inner], [name], name, domain="backpass"))
        if all(o.domain != "backpass" for o in proto.opset_import):
            proto.opset_import.append(onnx.helper.make_opsetid("backpass", 1))
    return proto


def _loaded(model: bytes, names: list[str], wanted: list[str], options: CompileOptions) -> EngineGraph:
    from backpass import Error

    try:
        with _disable_current_modes():
            return EngineGraph(model, names, wanted if torch.is_grad_enabled() else [], options.session_options)
    except Error as error:
        raise NotCapturableError(f"the engine refuses the exported graph: {error}") from error


def _copied(arguments: Sequence[Any]) -> list[Any]:
    return [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in arguments]


def _is_wanted(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.is_floating_point()


def _exported(adapter: Tensors, placeholders: Sequence[torch.fx.Node], examples: Sequence[torch.Tensor]) -> Any:
    shapes = [n.meta["example_value"].shape for n in placeholders if isinstance(n.meta["example_value"], torch.Tensor)]
    varies = [{a: torch.export.Dim.AUTO for a, d in enumerate(s) if fixed_size(d) is None} for s in shapes]
    dynamic = {"tensors": tuple(v or None for v in varies)} if any(varies) else None
    try:
        with _disable_current_modes(), torch._guards.tracing(None), saving_unseen():
            exported = export_module(adapter, examples, dynamic_shapes=dynamic)
    except Exception as error:  # torch.export raises many things; AOTAutograd may still manage
        raise NotCapturableError(f"it cannot be exported: {type(error).__name__}: {error}") from error
    if exported.draft or any(o.kind == "condition" for o in exported.outputs):
        raise NotCapturableError("it decides by the contents of tensors what to compute")
    for spec in exported.inputs:
        if spec.kind == "user":
            fixed = [a for a in varies[int(spec.target)] if isinstance(spec.shape[a], int)]  # type: ignore[arg-type]
            if fixed:
                raise NotCapturableError(f"torch.export fixes axis {fixed[0]} of {spec.name}, which varies")
    return exported
