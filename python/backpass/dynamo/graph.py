"""CompiledGraph: one functional graph of aten operators, exported and run by the engine."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from typing import Any

import onnx
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from backpass._core import ModuleSession, Unsupported
from backpass.dynamo.dump import dump_model
from backpass.dynamo.exported import Exported
from backpass.dynamo.options import CompileOptions
from backpass.dynamo.outputs import OutputPlan
from backpass.dynamo.report import CompileRecord, GraphReport
from backpass.session import SessionOptions
from backpass.torch import Dispatcher, Slot, export_graph
from backpass.torch.lowerings.pointwise.special import VALUES_ONLY
from backpass.torch.runtime import dense

log = logging.getLogger("backpass.dynamo")


class CompiledGraph:
    """Called as AOTAutograd calls compiled graphs: with one list of arguments, which it empties."""

    def __init__(self, module: torch.fx.GraphModule, report: GraphReport, options: CompileOptions) -> None:
        self._report = report
        self._baseline = module if options.assert_allclose_to_baseline else None
        self._plan = OutputPlan(module.graph)
        self._session: ModuleSession | None = None
        self._feeds: list[int] = []
        self._results: list[Slot] = []
        if self._plan.results:
            self._load(_only_results(module, self._plan.results), options)
        elif any(n.op == "call_function" and n.is_impure() for n in module.graph.nodes):
            raise Unsupported("assertion: got a graph without results that are computed, expected one that it guards")

    def _load(self, module: torch.fx.GraphModule, options: CompileOptions) -> None:
        exported = export(module, options)
        self._feeds, self._results = exported.feeds, exported.results
        self._report.fallbacks = exported.fallbacks
        proto = transformed(exported.proto, options)
        self._report.nodes = len(proto.graph.node)
        self._report.dump = dump_model(proto, module)
        self._session = ModuleSession.from_bytes(
            proto.SerializeToString(), [], options.session_options or SessionOptions()
        )

    def __call__(self, arguments: list[Any]) -> Any:
        self._report.calls += 1
        given = list(arguments)
        arguments.clear()
        results: Sequence[torch.Tensor] = ()
        if self._session is not None:
            feeds = [as_feed(given[i]) for i in self._feeds]
            outputs, _ = self._session.forward(feeds, False)
            results = [fetched(slot, outputs, feeds) for slot in self._results]
        assembled = self._plan.assemble(given, results)
        if self._baseline is not None:
            check_against(Baseline(self._baseline, given), assembled)
        return assembled


def compile_graph(
    module: torch.fx.GraphModule, kind: str, options: CompileOptions, record: CompileRecord, note: str = ""
) -> Any:
    """A graph run by the engine; by torch, with a warning, when it cannot be exported."""
    report = GraphReport(kind, note=note)
    record.graphs.append(report)
    started = time.perf_counter()
    compiled: CompiledGraph | RunByTorch
    try:
        with unset_fake_temporarily():
            compiled = CompiledGraph(module, report, options)
    except Exception as error:  # whatever the reason, torch can run this graph, and the user is told
        report.reason = f"{type(error).__name__}: {error}"
        compiled = RunByTorch(module, report)
    report.seconds = time.perf_counter() - started
    announce(report, module, options)

    def boxed(arguments: list[Any]) -> Any:
        return compiled(arguments)

    boxed._boxed_call = True  # type: ignore[attr-defined]  # torch looks for it on functions
    return boxed


class RunByTorch:
    """A graph that could not be exported."""

    def __init__(self, module: torch.fx.GraphModule, report: GraphReport) -> None:
        self._module = module
        self._report = report

    def __call__(self, arguments: list[Any]) -> Any:
        self._report.calls += 1
        given = list(arguments)
        arguments.clear()
        return self._module(*given)


def export(module: torch.fx.GraphModule, options: CompileOptions) -> Exported:
    if options.exporter == "torch":
        from backpass.dynamo.torch_exporter import export_by_torch

        return export_by_torch(module, options)
    made = export_graph(module, dispatcher=_dispatcher())
    feeds = [int(spec.target) for spec in made.inputs if spec.target is not None]
    return Exported(made.proto, feeds, made.output_template, [f.op for f in made.fallbacks])


def fetched(slot: Slot, outputs: Sequence[torch.Tensor], feeds: Sequence[torch.Tensor]) -> Any:
    if slot.source == "constant":
        return slot.value
    value = (outputs if slot.source == "output" else feeds)[slot.index]
    return int(value) if slot.symint else value


@functools.cache
def _dispatcher() -> Dispatcher:
    """All lowerings, those for values alone among them: nobody differentiates these graphs any more."""
    dispatcher = Dispatcher()
    for target, lowering in VALUES_ONLY.items():
        dispatcher.register(target)(lowering)
    return dispatcher


def transformed(proto: onnx.ModelProto, options: CompileOptions) -> onnx.ModelProto:
    for transform in options.pre_ort_model_transforms:
        proto = transform(proto) or proto
    return proto


def as_feed(value: Any) -> torch.Tensor:
    """What the engine takes: contiguous tensors; sizes as 0-D int64."""
    if isinstance(value, torch.Tensor):
        return dense(value)
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


class Baseline:
    """What torch computes."""

    def __init__(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> None:
        before = torch.get_rng_state()
        self.results = module(*arguments)
        self.is_random = not torch.equal(before, torch.get_rng_state())


def check_against(baseline: Baseline, outputs: Any) -> None:
    """Raises AssertionError where torch computed something else from the same arguments."""
    both = zip(_listed(outputs), _listed(baseline.results), strict=True)
    try:
        for got, expected in both:
            if isinstance(expected, torch.Tensor):
                torch.testing.assert_close(got, expected, equal_nan=True, check_stride=False)
    except AssertionError as error:
        if not baseline.is_random:
            raise
        raise AssertionError(
            "assert_allclose_to_baseline: got a graph that draws random numbers, expected one that does not: torch "
            "draws others, so that results cannot be compared; turn off dropout or this option"
        ) from error


def announce(report: GraphReport, module: torch.fx.GraphModule, options: CompileOptions) -> None:
    if report.reason:
        log.warning("%s", report)
    elif report.note or report.fallbacks:
        log.info("%s", report)
    if options.verbose:
        print(f"[backpass] {report}")
    if options.verbose > 1:
        print(module.graph)


def _listed(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, tuple | list) else (outputs,)


def _only_results(module: torch.fx.GraphModule, results: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
    """The same graph with these outputs and nothing that only others need."""
    graph = torch.fx.Graph()
    nodes: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(module.graph, nodes)
    graph.output(tuple(nodes[r] for r in results))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(module, graph)
