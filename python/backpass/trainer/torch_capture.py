"""From a module, its loss function and example tensors to a model for the native trainer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx
import torch
from onnx import TensorProto, helper
from torch import nn

from backpass._core import Unsupported
from backpass.ortmodule.conditions import proper_parameters, undisturbed
from backpass.ortmodule.guards import Guards
from backpass.ortmodule.tree import ModuleTree
from backpass.torch.exporter import export_module
from backpass.torch.flat import FlatModule, varying_axes
from backpass.torch.model import ExportedModel, InputSpec
from backpass.torch.surroundings import lengths_as_extents
from backpass.trainer.forward_call import ForwardCall
from backpass.trainer.onnx_names import fresh_name, rename, rename_symbols, value_names
from backpass.trainer.source import Capture

if TYPE_CHECKING:
    from backpass.trainer.settings import Settings


@dataclass
class Request:
    """What is to be captured. `outputs` are computed, `wanted` are those that users get."""

    module: nn.Module
    call: ForwardCall
    tensors: dict[str, torch.Tensor]
    wanted: list[str]
    outputs: list[str]
    loss: str
    training: bool
    whole: bool
    settings: Settings
    shapes: dict[str, Sequence[int | str] | None]
    """As described."""
    varying: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Details:
    """What a torch source knows of a capture."""

    shapes: dict[str, tuple[int | str, ...]]  #: of described inputs that the graph reads
    guards: Guards
    places: dict[str, str]  #: described inputs by the names that guards have for them
    described: dict[str, str]  #: described inputs by their names in the model
    outputs: list[str]  #: all described ones that it computes
    dynamic: bool
    exported: ExportedModel

    def fits(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether the graph is what the module computes for these extents."""
        symbols: dict[str, int] = {}
        for name, known in self.shapes.items():
            for one, given in zip(known, shapes[name], strict=True):
                if (symbols.setdefault(one, given) if isinstance(one, str) else one) != given:
                    return False
        return self.guards.hold({place: shapes[name] for place, name in self.places.items()})


def capture(request: Request, state: Collection[str]) -> Capture:
    """Captures the module in the mode it is in. `state` are names of parameters and buffers."""
    exported, dynamic = _exported(request)
    _check(request, exported)
    model = exported.proto
    names = _outputs(model.graph, exported, request)
    taken = value_names(model.graph) | set(state) | set(request.call.inputs) | set(names.values())
    shown: dict[str, str] = {}
    for old, name in names.items():
        if name in state:
            shown[name] = names[old] = fresh_name(f"{name}_output", taken)
    described: dict[str, str] = {}
    for spec in exported.inputs:
        if spec.kind == "user":
            name = list(request.tensors)[int(spec.target)]  # type: ignore[arg-type]
            names[spec.name] = fresh_name(f"{name}_input", taken) if name in state else name
            described[names[spec.name]] = name
    rename(model.graph, names)
    rename_symbols(model.graph, _symbols(exported, request))
    return _finished(model, exported, request, described, names, shown, dynamic)


def _exported(request: Request) -> tuple[ExportedModel, bool]:
    """With extents that vary if there are some and that is possible."""
    if request.varying:
        try:
            return _export(request, request.varying), True
        except Exception:  # with fixed ones it says what is wrong, if anything is
            pass
    return _export(request, None), False


def _export(request: Request, varying: Mapping[str, Sequence[int]] | None) -> ExportedModel:
    places = [f"input_{i}" for i in range(len(request.tensors))]
    function = request.call.function(list(request.tensors), request.outputs, {}, request.whole)
    flat = FlatModule(request.module, function, places)
    tree = ModuleTree(request.module)
    axes = None if varying is None else [varying.get(name, ()) for name in request.tensors]
    narrow = torch.autocast(
        "cpu", torch.bfloat16, enabled=request.settings.mixed_precision
    )  # whatever is around a step
    around = lengths_as_extents(request.module, request.call.loss_fn)
    with undisturbed(), proper_parameters(tree), around, narrow:
        return export_module(
            flat,
            tuple(t.clone() if t.is_inference() else t.detach() for t in request.tensors.values()),
            dynamic_shapes=None if axes is None else varying_axes(places, axes),
        )


def _check(request: Request, exported: ExportedModel) -> None:
    name = type(request.module).__name__
    if exported.draft or any(spec.kind == "condition" for spec in exported.outputs):
        raise Unsupported(
            f"{name} decides by the contents of tensors what to compute, which a train step that updates weights "
            "cannot take back; compute with tensors (torch.where), or train it with ORTModule and torch's optimizers"
        )
    if exported.without_gradients:
        raise Unsupported(
            f"tensors that require gradients, but are no parameters of {name} where forward uses them: got "
            f"{len(exported.without_gradients)}, expected none; register them as nn.Parameter"
        )
    if request.loss in request.outputs:
        _check_loss(request, exported)


def _check_loss(request: Request, exported: ExportedModel) -> None:
    slot = exported.output_template[request.outputs.index(request.loss)]
    if slot.source != "output":
        raise RuntimeError(f"loss '{request.loss}': got a constant or an input, expected the result of the model")
    spec = exported.outputs[slot.index]
    if spec.dtype is None or not spec.dtype.is_floating_point:
        raise RuntimeError(f"loss '{request.loss}': must be float types, got {spec.dtype}")
    if spec.shape:
        raise RuntimeError(f"loss '{request.loss}': must be a scalar, got {list(spec.shape)}")


def _outputs(graph: onnx.GraphProto, exported: ExportedModel, request: Request) -> dict[str, str]:
    """New names for outputs of the graph; results that are inputs, constants or the same twice get nodes of their
    own."""
    names: dict[str, str] = {}
    taken = value_names(graph)
    for name, slot in zip(request.outputs, exported.output_template, strict=True):
        if slot.source == "output" and exported.outputs[slot.index].name not in names:
            names[exported.outputs[slot.index].name] = name
            continue
        made = fresh_name(f"{name}_copy", taken)
        if slot.source == "constant":
            value = helper.make_tensor(made, TensorProto.FLOAT, [], [float(slot.value)])
            graph.node.append(helper.make_node("Constant", [], [made], value=value))
            info = helper.make_tensor_value_info(made, TensorProto.FLOAT, [])
        else:
            spec = exported.outputs[slot.index] if slot.source == "output" else exported.inputs[slot.index]
            graph.node.append(helper.make_node("Identity", [spec.name], [made]))
            known = next(v for v in (*graph.output, *graph.input) if v.name == spec.name)
            info = onnx.ValueInfoProto()
            info.CopyFrom(known)
            info.name = made
        graph.output.append(info)
        names[made] = name
    return names


def _symbols(exported: ExportedModel, request: Request) -> dict[str, str]:
    """Described names of extents for those that torch gave, where it is one for one."""
    given = list(request.tensors)
    found: dict[str, str] = {}
    for spec in exported.inputs:
        shape = request.shapes.get(given[int(spec.target)]) if spec.kind == "user" else None  # type: ignore[arg-type]
        if shape is None or len(shape) != len(spec.shape):
            continue
        for symbol, name in zip(spec.shape, shape, strict=True):
            if isinstance(symbol, str) and symbol.isidentifier() and isinstance(name, str) and name.isidentifier():
                found.setdefault(symbol, name)
    once = [name for name in found.values() if list(found.values()).count(name) == 1]
    return {symbol: name for symbol, name in found.items() if name in once}


def _finished(
    model: onnx.ModelProto,
    exported: ExportedModel,
    request: Request,
    described: dict[str, str],
    names: Mapping[str, str],
    shown: dict[str, str],
    dynamic: bool,
) -> Capture:
    given = list(request.tensors)
    present = {spec.name: names.get(spec.name, spec.name) for spec in exported.outputs}
    assigned = {present[s.name]: str(s.target) for s in exported.outputs if s.kind == "buffer_mutation"}
    written = {present[s.name]: given[int(s.target)] for s in exported.outputs if s.kind == "input_mutation"}  # type: ignore[arg-type]
    users = [spec for spec in exported.inputs if spec.kind == "user"]
    details = Details(
        shapes={given[int(s.target)]: tuple(s.shape) for s in users},  # type: ignore[arg-type]
        guards=Guards(exported.guards),
        places={f"input_{i}": name for i, name in enumerate(given)},
        described=described,
        outputs=request.outputs,
        dynamic=dynamic,
        exported=exported,
    )
    types = {v.name: v.type.tensor_type.elem_type for v in model.graph.output}
    return Capture(
        model=model.SerializeToString(),
        loss=request.loss,
        outputs=[*request.wanted, *written],
        training=request.training,
        assigned=assigned if request.training else {},
        written=written,
        types={name: types[shown.get(name, name)] for name in request.outputs},
        names=shown,
        about=_about(exported, users, given, dynamic),
        details=details,
    )


def _about(exported: ExportedModel, users: Sequence[InputSpec], given: Sequence[str], dynamic: bool) -> list[str]:
    inputs = ", ".join(f"{given[int(s.target)]} {list(s.shape)}" for s in users)  # type: ignore[arg-type]
    lines = [
        f"inputs {inputs}",
        f"{len(exported.proto.graph.node)} nodes",
        "any extents" if dynamic else "these extents",
    ]
    for fallback in exported.fallbacks:
        lines.append(f"torch runs {fallback}")
    for function in exported.python_ops:
        lines.append(f"torch runs {function}")
    return lines
