"""From fx graphs of aten operators to ONNX: export_graph, export_module."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx
import torch
from torch import fx

from backpass._core import Unsupported
from backpass.torch import decompose
from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.capture import capture
from backpass.torch.decisions import ASSERTION, Decisions, only_asserted
from backpass.torch.dispatch import Dispatcher
from backpass.torch.emit import emit_assertion, emit_aten
from backpass.torch.model import ExportedModel, Fallback, InputSpec, OutputSpec, Slot
from backpass.torch.symbols import Symbolic, dims

DEFAULT_OPSET = 23

_IGNORED = {
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}
_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)

_COLLECTIVE = ("_c10d_functional", "c10d")


class Lowerer:
    """Walks fx graphs, keeping what each node became."""

    def __init__(self, builder: GraphBuilder, dispatcher: Dispatcher, constants: Callable[[str], Any]) -> None:
        self.b = builder
        self.dispatcher = dispatcher
        self.fallbacks: list[Fallback] = []
        self.assertions: list[Value] = []
        self.decided: Value | None = None  #: whether the decisions on data that the graph has taken hold
        self._constants = constants

    def run(self, graph: fx.Graph, env: dict[fx.Node, Any]) -> Any:
        """Lowers every node; placeholders are in `env` already. Returns the output node's argument, translated."""
        decisions, asked = Decisions(self.b, env), only_asserted(graph)
        for node in graph.nodes:
            if node.target is ASSERTION:
                if self.keeps_decisions:
                    decisions.add(node)
            elif node in asked:
                continue
            elif node.op == "call_function":
                env[node] = self._call(node, env)
            elif node.op == "get_attr":
                env[node] = self._attribute(node)
            elif node.op == "output":
                self.decided = decisions.together()
                return self._translate(node.args[0], env)
            elif node.op != "placeholder":
                raise Unsupported(f"[{node.op} '{node.name}'] fx node: got {node.op}, expected a call of an operator")
        return None

    def _translate(self, argument: Any, env: dict[fx.Node, Any]) -> Any:
        return fx.map_arg(argument, env.__getitem__)

    def _attribute(self, node: fx.Node) -> Any:
        found = self._constants(str(node.target))
        if not isinstance(found, torch.Tensor):
            return found
        return self.b.add_initializer(self.b.fresh(str(node.target)), found)

    def _call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        meta = node.meta.get("val")
        if isinstance(meta, Symbolic) and self.b.symbols.knows(meta):
            return meta
        if getattr(node.target, "__name__", "") == "getitem" and not isinstance(node.target, torch._ops.OpOverload):
            container, index = self._translate(node.args, env)
            return container[index]
        if node.target in _IGNORED:
            return None
        args, kwargs = self._translate(node.args, env), self._translate(node.kwargs, env)
        self.b.scope(node.name)
        return self._with_meta(self._lower(node, args, kwargs), meta)

    def _lower(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """By its lowering, else by torch's decomposition, else by torch itself."""
        lowering = self.dispatcher.find(node.target)
        reason = ""
        attempts: list[Callable[[], Any]] = [partial(self._decomposed, node, args, kwargs)]
        if lowering is not None:
            attempts.insert(0, partial(lowering, self.b, node, *args, **kwargs))
        for attempt in attempts:
            mark = self.b.mark()
            try:
                return attempt()
            except NoLoweringError as error:
                self.b.rollback(mark)
                reason = "; ".join(filter(None, (reason, str(error))))
        return self._hand_over(node, args, kwargs, reason)

    def _decomposed(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        module, leaves = decompose.trace(node, self.dispatcher, args, kwargs)
        env = dict(zip([n for n in module.graph.nodes if n.op == "placeholder"], leaves, strict=True))
        inner = Lowerer(self.b, self.dispatcher, lambda name: decompose.attribute(module, name))
        inner.may_hand_over = False
        try:
            result = inner.run(module.graph, env)
        except Unsupported as error:  # a part is: the operator itself need not be
            raise NoLoweringError(f"its part: {error}") from error
        self.b.scope(node.name)
        return result

    may_hand_over = True
    keeps_decisions = False

    def _hand_over(self, node: fx.Node, args: Any, kwargs: Any, reason: str) -> Any:
        name = str(node.target)
        if name.startswith(_COLLECTIVE):
            raise Unsupported(
                f"[{name} '{node.name}'] got a collective of torch.distributed, expected none: its work goes on when "
                "it has returned, which a graph does not wait for; put it into a torch.autograd.Function, which is "
                "called back as a whole, or synchronise outside of the module"
            )
        if not self.may_hand_over:
            raise NoLoweringError(f"its part {name}: {reason}")
        if node.target in _ASSERTIONS and "one_hot: Class values" in str(args[1:]):
            return None  # torch wrote one_hot out, which is not checked here
        self.fallbacks.append(Fallback(name, node.name, reason))
        if node.target in _ASSERTIONS:
            return self.assertions.append(emit_assertion(self.b, *args))
        return emit_aten(self.b, node, args, kwargs)

    def _with_meta(self, result: Any, meta: Any) -> Any:
        """Names become Values that know what torch knew; new symbols can be read off them."""
        if isinstance(result, tuple | list) and isinstance(meta, tuple | list):
            return type(result)(self._with_meta(r, m) for r, m in zip(result, meta, strict=False))
        if isinstance(result, str) and isinstance(meta, torch.Tensor):
            shape = tuple(meta.shape)
            self.b.symbols.learn(result, shape)
            return Value(result, meta.dtype, shape)
        if isinstance(result, str) and isinstance(meta, Symbolic):
            self.b.symbols.learn_number(meta, result)  # type: ignore[arg-type]
            return meta
        return result


def export_graph(
    module: fx.GraphModule,
    inputs: Sequence[InputSpec] | None = None,
    outputs: Sequence[tuple[str, str | int | None]] | None = None,
    *,
    target_opset: int | None = None,
    dispatcher: Dispatcher | None = None,
    stop_gradient: bool = True,
    keep_decisions: bool = False,
    name: str = "graph",
) -> ExportedModel:
    """Lowers a functional fx graph of aten operators.

    ``inputs``: one spec per placeholder (two of the same name are one ONNX input: tied weights); by default all are
    user tensors or sizes (SymInts become 0-D int64 inputs). ``outputs``: (kind, target) for each result of the graph,
    by default all are the user's. ``stop_gradient=False`` writes Identity for the marks that only Backpass knows.
    ``keep_decisions``: where the graph is right for some contents of tensors only, its last output, a ``condition``,
    says whether it was.
    """
    started = time.perf_counter()
    opset = _checked_opset(target_opset)
    builder = GraphBuilder(opset, fixed_opset=target_opset is not None, stop_gradient=stop_gradient)
    lowerer = Lowerer(builder, dispatcher or Dispatcher(), lambda target: decompose.attribute(module, target))
    lowerer.keeps_decisions = keep_decisions
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    specs = list(inputs) if inputs is not None else _default_inputs(placeholders)
    env, infos, used = _declare_inputs(builder, placeholders, specs)
    nodes = _listed(module.graph.output_node().args[0])
    results = _listed(lowerer.run(module.graph, env))
    _keep_assertions(builder, nodes, results, lowerer.assertions)
    kinds = list(outputs) if outputs is not None else [("user", i) for i in range(len(results))]
    passed = _passed_through(nodes, dict(zip(placeholders, specs, strict=True)), used)
    same_as = [next(k for k, other in enumerate(nodes) if other is node) for node in nodes]  # a copy is not the same
    output_specs, template, output_infos = _declare_outputs(builder, results, kinds, passed, same_as)
    if lowerer.decided is not None:
        (held,) = builder.op("Identity", lowerer.decided, outputs=[builder.fresh("decided")])
        output_specs.append(OutputSpec(str(held), "condition", None, torch.bool))
        output_infos.append(builder.value_info(held, torch.bool, ()))
    exported = ExportedModel(
        proto=builder.model(infos, output_infos, name),
        inputs=used,
        outputs=output_specs,
        output_template=template,
        python_inputs=[s for s in specs if s.kind == "python"],
        fallbacks=lowerer.fallbacks,
        python_ops=python_functions(builder.nodes),
        builder=builder,
    )
    exported.seconds["export"] = time.perf_counter() - started
    return exported


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]


def _keep_assertions(b: GraphBuilder, nodes: list[Any], results: list[Any], assertions: Sequence[Value]) -> None:
    """Nothing reads an assertion: a result is made to, whose extents are multiplied by 1."""
    made = [i for i, r in enumerate(results) if isinstance(r, Value) and nodes[i].op != "placeholder"]
    if not assertions:
        return
    if not made:
        raise Unsupported("assertion: got a graph without results that are computed, expected one that it guards")
    first = results[made[0]]
    extents = b.op("Shape", first)
    for token in assertions:
        extents = b.op("Mul", extents, token)
    guarded = b.op("Reshape", first, extents, allowzero=1, shape=first.shape)
    for i in made:
        results[i] = guarded if nodes[i] is nodes[made[0]] else results[i]


def python_functions(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Names of the user functions that these nodes call, each once."""
    named = [a.s.decode() for n in nodes if n.op_type == "PythonOp" for a in n.attribute if a.name == "func_name"]
    return list(dict.fromkeys(named))


def _checked_opset(target_opset: int | None) -> int:
    opset = DEFAULT_OPSET if target_opset is None else target_opset
    if not 18 <= opset <= 26:
        raise Unsupported(f"target_opset: got {opset}, expected 18 to 26")
    return opset


def _default_inputs(placeholders: Sequence[fx.Node]) -> list[InputSpec]:
    specs = []
    for i, node in enumerate(placeholders):
        meta = node.meta.get("val")
        if isinstance(meta, torch.Tensor):
            specs.append(InputSpec(node.name, "user", i))
        elif isinstance(meta, torch.SymInt | torch.SymFloat):
            specs.append(InputSpec(node.name, "symint", i))
        else:
            specs.append(InputSpec(node.name, "python", i, value=meta))
    return specs


def _declare_inputs(
    builder: GraphBuilder, placeholders: Sequence[fx.Node], specs: Sequence[InputSpec]
) -> tuple[dict[fx.Node, Any], list[Any], list[InputSpec]]:
    env: dict[fx.Node, Any] = {}
    infos: list[Any] = []
    used: list[InputSpec] = []
    known: dict[str, Value] = {}
    numbers = []
    for node, spec in zip(placeholders, specs, strict=True):
        meta: Any = node.meta.get("val")
        if spec.kind == "python":
            env[node] = spec.value
        elif spec.name in known:
            env[node] = known[spec.name]
        elif spec.kind == "constant":
            builder.reserve(spec.name)
            env[node] = known[spec.name] = builder.add_initializer(spec.name, spec.value)
        else:
            tensor = isinstance(meta, torch.Tensor)
            dtype = meta.dtype if tensor else torch.float64 if isinstance(meta, torch.SymFloat) else torch.int64
            shape = tuple(meta.shape) if tensor else ()
            builder.reserve(spec.name)
            known[spec.name] = Value(spec.name, dtype, shape)
            infos.append(builder.value_info(spec.name, dtype, shape))
            spec.dtype, spec.shape = dtype, _shown(builder, shape)
            used.append(spec)
            env[node] = known[spec.name] if tensor else meta
            if tensor:
                builder.symbols.learn(spec.name, shape, derived=True)
            else:
                numbers.append((meta, known[spec.name]))
    for meta, value in numbers:
        builder.symbols.learn_number(meta, value)
    return env, infos, used


def _shown(builder: GraphBuilder, shape: Sequence[Any]) -> tuple[int | str, ...]:
    return tuple(d if isinstance(d, int) else builder.symbols.dim_name(d) for d in dims(shape))


def _declare_outputs(
    builder: GraphBuilder,
    results: Sequence[Any],
    kinds: Sequence[tuple[str, Any]],
    passed: Sequence[int | None],
    same_as: Sequence[int],
) -> tuple[list[OutputSpec], list[Slot], list[Any]]:
    specs: list[OutputSpec] = []
    template: list[Slot] = []
    infos: list[Any] = []
    places: dict[str, int] = {}

    made = {name for node in builder.nodes for name in node.output}

    def add(value: Value, kind: str, target: Any) -> int:
        if value in places or value not in made:
            builder.scope("output")
            value = builder.identity(value)
        places[value] = len(specs)
        assert value.dtype is not None
        assert value.shape is not None
        specs.append(OutputSpec(str(value), kind, target, value.dtype, _shown(builder, value.shape)))  # type: ignore[arg-type]
        infos.append(builder.value_info(value, value.dtype, value.shape))
        return places[value]

    slots: dict[int, Slot] = {}
    for i, (result, (kind, target), source) in enumerate(zip(results, kinds, passed, strict=True)):
        if kind != "user":
            add(result, kind, target)
        elif source is not None:
            template.append(Slot("input", source, symint=isinstance(result, Symbolic)))
        elif isinstance(result, Symbolic) and not _is_number(result):
            builder.scope("size")
            template.append(Slot("output", add(builder.symbols.number(result), kind, target), symint=True))
        elif not isinstance(result, Value):
            template.append(Slot("constant", value=_number(result)))
        else:
            if same_as[i] not in slots:
                slots[same_as[i]] = Slot("output", add(result, kind, target))
            template.append(slots[same_as[i]])
    return specs, template, infos


def _passed_through(
    results: Sequence[Any], specs: Mapping[fx.Node, InputSpec], inputs: Sequence[InputSpec]
) -> list[int | None]:
    """For each result, which input it is. A copy of an input is not: the user may change one of the two."""
    places = {spec.name: i for i, spec in enumerate(inputs)}
    return [places.get(specs[r].name) if isinstance(r, fx.Node) and r in specs else None for r in results]


def _is_number(value: Any) -> bool:
    return bool(value.node.expr.is_number)


def _number(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value)
    return float(value) if isinstance(value, torch.SymFloat) else value


@functools.cache
def differentiable() -> Dispatcher:
    """Lowerings for graphs that the engine differentiates: gradients of operators, which torch.func leaves in forward,
    are written out, for the operators that compute them have no derivatives of their own."""
    dispatcher = Dispatcher()
    for name in dispatcher.names():
        if "_backward" in name:
            dispatcher.remove(name)
    return dispatcher


def export_module(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: bool = False,
    dynamic_shapes: Any = None,
    target_opset: int | None = None,
    dispatcher: Dispatcher | None = None,
    stop_gradient: bool = True,
    draft: bool = False,
) -> ExportedModel:
    """Captures a module on example arguments, in the mode (train or eval) it is in, and lowers it.

    ``dynamic``: every extent of every tensor argument may vary, except those the module itself needs fixed;
    ``dynamic_shapes``: which ones, in torch.export's form. ``draft``: it is known to decide by the contents of tensors
    what to compute. Nothing about the module changes.
    """
    dispatcher = dispatcher or differentiable()
    captured = capture(
        module,
        tuple(args),
        dict(kwargs or {}),
        dynamic=dynamic,
        dynamic_shapes=dynamic_shapes,
        dispatcher=dispatcher,
        draft=draft,
    )
    exported = export_graph(
        captured.graph_module,
        captured.inputs,
        captured.outputs,
        target_opset=target_opset,
        dispatcher=dispatcher,
        stop_gradient=stop_gradient,
        keep_decisions=True,
        name=type(module).__name__,
    )
    exported.in_spec, exported.out_spec = captured.in_spec, captured.out_spec
    constants = [spec for spec in captured.inputs if spec.kind == "constant"]
    plain = [str(s.target) for s in constants if getattr(s.value, "requires_grad", False)]
    exported.without_gradients = plain + captured.unregistered
    exported.guards, exported.draft = list(captured.program._guards_code), captured.draft
    exported.unguarded = captured.unguarded
    exported.seconds |= captured.seconds
    return exported
