"""to_onnx: a module or an fx graph as a complete ONNX model."""

from __future__ import annotations

import collections
import contextlib
import inspect
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import onnx
import torch
from torch import fx
from torch.utils import _pytree as pytree

from backpass._core import InvalidInput
from backpass.torch.capture import automatic_shapes
from backpass.torch.dispatch import Dispatcher
from backpass.torch.exporter import export_graph, export_module
from backpass.torch.model import ExportedModel, InputSpec
from backpass.torch.optimize import OptimizationOptions, optimize


def to_onnx(
    module: torch.nn.Module | Callable[..., Any],
    args: Sequence[Any] | torch.Tensor = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    target_opset: int | None = None,
    dynamic_shapes: Any = None,
    dynamic: bool = False,
    options: OptimizationOptions | None = None,
    dispatcher: Dispatcher | None = None,
    exporter: Literal["backpass", "torch"] = "backpass",
    return_builder: bool = False,
    stop_gradient: bool = False,
    verbose: int = 0,
) -> Any:
    """An ONNX model with the weights inside, for Backpass, onnxruntime or any other runtime.

    ``module`` (a function, too) is captured in the mode it is in (train or eval), on the example ``args`` (or the one
    tensor) and ``kwargs``; an ``fx.GraphModule`` of aten operators is written down as it is. ``dynamic`` lets every
    extent vary that can; ``dynamic_shapes`` says which, in torch.export's form. ``input_names`` and ``output_names``
    name the user's tensors; the weights keep their torch names. ``dispatcher`` adds or replaces lowerings,
    ``options`` chooses rewrites, and ``exporter="torch"`` takes torch.onnx's own exporter instead (for inference: it
    exports training wrongly).
    ``stop_gradient`` keeps the marks of where gradients stop (``detach()``, ``no_grad``, ``padding_idx``) for training
    the model: nodes that only Backpass knows, without which gradients flow there.
    Returns an ``onnx.ModelProto``; with ``return_builder`` a pair of it and the :class:`GraphBuilder`. What the module
    does to its buffers is not in the model, nor are results that are not tensors; see :func:`export_module` for both.
    """
    options = options or OptimizationOptions(verbose=max(0, verbose - 1))
    module, args = _as_module(module), (args,) if isinstance(args, torch.Tensor) else args
    _check_names(input_names, output_names)
    if exporter == "torch":
        if return_builder:
            raise InvalidInput("return_builder: got True with exporter='torch', expected False; it has no builder")
        if dispatcher is not None or stop_gradient:
            raise InvalidInput(
                "dispatcher, stop_gradient: got one with exporter='torch', expected none; it has neither"
            )
        if dynamic and dynamic_shapes is None:
            dynamic_shapes = automatic_shapes(module, tuple(args), dict(kwargs or {}))
        return _by_torch(module, args, kwargs, input_names, output_names, target_opset, dynamic_shapes, options)
    if exporter != "backpass":
        raise InvalidInput(f"exporter: got {exporter!r}, expected 'backpass' or 'torch'")
    common: dict[str, Any] = {"target_opset": target_opset, "dispatcher": dispatcher, "stop_gradient": stop_gradient}
    if isinstance(module, fx.GraphModule) and is_aten_graph(module):
        exported = export_graph(module, **common)
    else:
        exported = export_module(module, args, kwargs, dynamic=dynamic, dynamic_shapes=dynamic_shapes, **common)
    model = _complete(exported, module)
    _rename_inputs(model, exported, input_names)
    _rename_outputs(model, output_names)
    report = optimize(model, options)
    assert exported.builder is not None
    if keep_running_statistics(model, exported.builder.running_statistics, exported.builder.initializers):
        report = optimize(model, options)
    if verbose:
        _describe(exported, model, report)
    called = sorted({f.op for f in exported.fallbacks} | set(exported.python_ops))
    if called:
        warnings.warn(f"only Backpass can run this model: it calls back into torch for {called}", stacklevel=2)
    if exported.draft:
        text = "takes branches that depend on data as the example arguments do: for others it may be wrong"
        warnings.warn(f"this model {text}", stacklevel=2)
    assert exported.builder is not None
    return (model, exported.builder) if return_builder else model


class _Function(torch.nn.Module):
    """A function as a module, with its signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def _as_module(module: Any) -> torch.nn.Module:
    if isinstance(module, torch.nn.Module):
        return module
    if not callable(module):
        raise InvalidInput(f"module: got {type(module).__name__}, expected a torch.nn.Module or a function")
    return _Function(module)


def _check_names(inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> None:
    """Each value of a model has a name of its own."""
    counts = collections.Counter((*(inputs or ()), *(outputs or ())))
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise InvalidInput(f"input_names, output_names: got {twice[0]!r} twice, expected names that differ")


def is_aten_graph(module: fx.GraphModule) -> bool:
    """Whether a graph needs no capture: only aten operators, and torch wrote down what they give."""
    calls = [n for n in module.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    return all(n.op == "call_function" and "val" in n.meta for n in calls)


def create_input_names(module: torch.nn.Module, args: Sequence[Any]) -> list[str]:
    """Names for the tensors among ``args``: the placeholders' of a graph, else the parameters' of ``forward``."""
    if isinstance(module, fx.GraphModule):
        return [n.name for n in module.graph.nodes if n.op == "placeholder"][: len(args)]
    bound = inspect.signature(module.forward).bind(*args)
    names = []
    for name, value in bound.arguments.items():
        leaves = [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
        names += [name] if len(leaves) == 1 else [f"{name}_{i}" for i in range(len(leaves))]
    return names


def _complete(exported: ExportedModel, module: torch.nn.Module) -> onnx.ModelProto:
    """Weights as initializers, the user's tensors as outputs."""
    model, builder = exported.proto, exported.builder
    assert builder is not None
    state: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    state |= dict(module.named_buffers(remove_duplicate=False))
    weights = [s for s in exported.inputs if s.kind in ("parameter", "buffer")]
    for spec in weights:
        builder.add_initializer(spec.name, state[str(spec.target)])
        model.graph.initializer.append(builder.initializers[spec.name])
    names = {s.name for s in weights}
    inputs = [i for i in model.graph.input if i.name not in names]
    outputs = _user_outputs(exported)
    del model.graph.input[:], model.graph.output[:]
    model.graph.input.extend(inputs)
    model.graph.output.extend(outputs)
    return model


def keep_running_statistics(
    model: onnx.ModelProto,
    known: Mapping[str, tuple[str, str, float]],
    initializers: Mapping[str, onnx.TensorProto],
) -> bool:
    """Gives batch normalisations in training mode the statistics that they update, for training from artifacts to keep
    and evaluation to use: torch's update, made of other nodes, has gone with the results that a model has no place for.
    ``known``: as a builder has them.
    """
    used = {name for node in model.graph.node for name in node.input} | {o.name for o in model.graph.output}
    nodes = [
        n
        for n in model.graph.node
        if n.op_type == "BatchNormalization"
        and initializers.keys() >= {*known.get(n.output[0], ("",))[:2]}
        and not used.intersection(n.output[1:])
    ]
    for node in nodes:
        mean, variance, momentum = known[node.output[0]]
        present = {t.name for t in model.graph.initializer}
        node.input[3], node.input[4] = mean, variance
        model.graph.initializer.extend(initializers[name] for name in (mean, variance) if name not in present)
        next(a for a in node.attribute if a.name == "momentum").f = 1 - momentum
    return bool(nodes)


def _user_outputs(exported: ExportedModel) -> list[onnx.ValueInfoProto]:
    """One output per tensor the user gets; inputs that come back are copied."""
    declared = list(exported.proto.graph.output)
    inputs = {i.name: i for i in exported.proto.graph.input}
    outputs: list[onnx.ValueInfoProto] = []
    for slot in exported.output_template:
        if slot.source == "constant":
            continue
        source = declared[slot.index] if slot.source == "output" else inputs[exported.inputs[slot.index].name]
        info = onnx.ValueInfoProto()
        info.CopyFrom(source)
        if slot.source == "input" or any(o.name == info.name for o in outputs):
            info.name = f"{source.name}_{len(outputs)}_result"
            exported.proto.graph.node.append(onnx.helper.make_node("Identity", [source.name], [info.name]))
        outputs.append(info)
    return outputs


def _user_inputs(exported: ExportedModel) -> list[InputSpec]:
    return [s for s in exported.inputs if s.kind in ("user", "symint")]


def _rename_inputs(model: onnx.ModelProto, exported: ExportedModel, names: Sequence[str] | None) -> None:
    if names is None:
        return
    specs = _user_inputs(exported)
    if len(names) != len(specs):
        raise InvalidInput(f"input_names: got {len(names)}, expected {len(specs)}: {[s.name for s in specs]}")
    _rename(model, {s.name: new for s, new in zip(specs, names, strict=True)})


def _rename_outputs(model: onnx.ModelProto, names: Sequence[str] | None) -> None:
    if names is None:
        return
    old = [o.name for o in model.graph.output]
    if len(names) != len(old):
        raise InvalidInput(f"output_names: got {len(names)}, expected {len(old)}: {old}")
    _rename(model, dict(zip(old, names, strict=True)))


def _rename(model: onnx.ModelProto, names: dict[str, str]) -> None:
    graph = model.graph
    names = {old: new for old, new in names.items() if old != new}
    taken = {n for node in graph.node for n in (*node.input, *node.output)} | {i.name for i in graph.initializer}
    clash = sorted((set(names.values()) & taken) - set(names))
    if clash:  # an inner value has a name the user wants: it moves out of the way
        names = {**{c: f"{c}__inner" for c in clash}, **names}
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    for info in (*graph.input, *graph.output, *graph.initializer):
        info.name = names.get(info.name, info.name)


def _describe(exported: ExportedModel, model: onnx.ModelProto, report: Sequence[str]) -> None:
    times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in exported.seconds.items())
    print(f"[to_onnx] {len(model.graph.node)} nodes, opset {model.opset_import[0].version}; {times}")
    for line in (*report, *map(str, exported.fallbacks)):
        print(f"[to_onnx] {line}")


def _by_torch(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    target_opset: int | None,
    dynamic_shapes: Any,
    options: OptimizationOptions,
) -> onnx.ModelProto:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            tuple(args),
            kwargs=dict(kwargs or {}),
            input_names=list(input_names) if input_names else None,
            output_names=list(output_names) if output_names else None,
            opset_version=target_opset,
            dynamic_shapes=dynamic_shapes,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    optimize(model, options)
    return model
