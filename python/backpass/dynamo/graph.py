"""CompiledGraph: a graph of torch.compile, exported and run by the engine."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import onnx
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from backpass.dynamo.dump import dump_model
from backpass.dynamo.options import CompileOptions
from backpass.dynamo.report import CompileRecord, GraphReport
from backpass.torch import Dispatcher, ExportedModel, export_graph
from backpass.torch.compiled import CompiledModule
from backpass.torch.lowerings.pointwise.special import VALUES_ONLY

log = logging.getLogger("backpass.dynamo")


class CompiledGraph(CompiledModule):
    """Called with the graph's arguments."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        exported: ExportedModel,
        model: onnx.ModelProto,
        options: CompileOptions,
        report: GraphReport,
        examples: Sequence[Any] | None = None,
        constant: Collection[int] = (),
    ) -> None:
        """`model` is what the options' transforms made of the export. Gradients are wanted of those among the
        `examples` that require one."""
        super().__init__(exported, constant=constant)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.connect({name: (state, name) for name in state})
        fed = self.feeds(examples) if examples is not None and torch.is_grad_enabled() else []
        wanted = [spec.name for spec, tensor in zip(exported.inputs, fed, strict=False) if tensor.requires_grad]
        weights = {s.name for s, t in zip(exported.inputs, fed, strict=False) if isinstance(t, torch.nn.Parameter)}
        report.nodes, report.fallbacks = len(model.graph.node), [f.op for f in exported.fallbacks]
        report.torch_seconds = exported.torch_seconds
        with _disable_current_modes():
            self.engine = self.load(model, wanted, options.session_options, weights)
        self._report = report
        self._baseline = module if options.assert_allclose_to_baseline else None

    def __call__(self, arguments: Sequence[Any]) -> Sequence[Any]:
        self._report.calls += 1
        check = baseline(self._baseline, arguments) if self._baseline is not None else None
        results = self.run(self.engine, self.feeds(arguments), arguments)
        if check is not None:
            check(results)
        return results


def compile_graph(
    module: torch.fx.GraphModule, kind: str, options: CompileOptions, record: CompileRecord, note: str = ""
) -> Any:
    """A functional graph of aten operators run by the engine; by torch, with a warning, when it cannot be exported."""
    (results,) = module.graph.output_node().args
    is_single = isinstance(results, torch.fx.Node)
    compiled: CompiledGraph | None = None
    with reported(kind, module, options, record, note) as report:
        try:
            with unset_fake_temporarily():
                exported = export(module, options)
                model = transformed(exported.proto, options)
                report.dump = dump_model(model, module)
                compiled = CompiledGraph(module, exported, model, options, report)
        except Exception as error:  # whatever the reason, torch can run this graph, and the user is told
            report.reason = f"{type(error).__name__}: {error}"

    def boxed(arguments: list[Any]) -> Any:
        """Called as AOTAutograd calls compiled graphs: with one list of arguments, which it empties."""
        given = list(arguments)
        arguments.clear()
        if compiled is None:
            report.calls += 1
            return module(*given)
        found = compiled(given)
        return found[0] if is_single else found

    boxed._boxed_call = True  # type: ignore[attr-defined]  # torch looks for it on functions
    return boxed


def export(module: torch.fx.GraphModule, options: CompileOptions) -> ExportedModel:
    if options.exporter == "torch":
        from backpass.dynamo.torch_exporter import export_by_torch

        return export_by_torch(module, options)
    return export_graph(module, dispatcher=_dispatcher())


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


def baseline(module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
    """Lets torch compute from copies of the arguments. What is returned raises AssertionError for other results."""
    before = torch.get_rng_state()
    wanted = module(*(a.detach().clone() if isinstance(a, torch.Tensor) else a for a in arguments))
    is_random = not torch.equal(before, torch.get_rng_state())

    def check(results: Sequence[Any]) -> None:
        try:
            for got, expected in zip(results, wanted if isinstance(wanted, tuple | list) else [wanted], strict=True):
                if isinstance(expected, torch.Tensor):
                    torch.testing.assert_close(got, expected, equal_nan=True, check_stride=False)
        except AssertionError as error:
            if not is_random:
                raise
            raise AssertionError(
                "assert_allclose_to_baseline: got a graph that draws random numbers, expected one that does not: torch "
                "draws others, so that results cannot be compared; turn off dropout or this option"
            ) from error

    return check


@contextlib.contextmanager
def reported(
    kind: str, module: torch.fx.GraphModule, options: CompileOptions, record: CompileRecord, note: str = ""
) -> Iterator[GraphReport]:
    """The report of a graph that is compiled inside: timed, recorded and told when that ends well."""
    report, started = GraphReport(kind, note=note), time.perf_counter()
    yield report
    report.seconds = time.perf_counter() - started
    record.graphs.append(report)
    if report.reason:
        log.warning("%s", report)
    elif report.note or report.fallbacks:
        log.info("%s", report)
    if options.verbose:
        print(f"[backpass] {report}")
    if options.verbose > 1:
        print(module.graph)
