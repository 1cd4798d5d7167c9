"""Names, types and opsets of the model that blocks are stacked on."""

from __future__ import annotations

import copy
import difflib
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from backpass import _core
from backpass._core import InvalidInput
from backpass.onnxblock import model_accessor

_counter = itertools.count(1)
# What is written when the model does not import a domain yet: understood by ONNX Runtime 1.19 too.
_DOMAIN_VERSIONS = {"com.microsoft": 1, "ai.onnx.ml": 3}


class UnknownName(InvalidInput, LookupError):  # noqa: N818 (named like the other errors of the package)
    """A name that no value of the model has."""


def generate_graph_name(token: str) -> str:
    """``onnx::<token>::<n>``, new to the process and to the model under construction."""
    accessor = model_accessor.current()
    taken = accessor.taken if accessor else ()
    while True:
        name = f"onnx::{token}::{next(_counter)}"
        if name not in taken:
            return name


def node_arg_exists(model: onnx.ModelProto, name: str) -> bool:
    """Whether a value of this name exists, or a node asks for one."""
    if _declared(model, name) is not None:
        return True
    return any(name in node.input or name in node.output for node in model.graph.node)


def value_info(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Type and shape of a value, inferred where the model does not tell. UnknownName when there is no such value."""
    info = _declared(model, name)
    if info is not None:
        return info
    if not any(name in node.output for node in model.graph.node):
        raise unknown(model, name)
    return _declared(shape_inference.infer_shapes(model), name) or _inferred_by_engine(model, name)


def element_type(model: onnx.ModelProto, name: str) -> int:
    """The ONNX code of a tensor's element type."""
    return value_info(model, name).type.tensor_type.elem_type


def unknown(model: onnx.ModelProto, name: str, before: str = "") -> UnknownName:
    close = difflib.get_close_matches(name, _given(model.graph), n=3)
    hint = f"; close to it: {', '.join(close)}" if close else ""
    return UnknownName(f"{before}no value of the model is called {name!r}{hint}")


def check_names(model: onnx.ModelProto) -> None:
    """UnknownName for what a node reads and nobody gives: often a name misspelt in a block."""
    known = {"", *_given(model.graph), *(tensor.values.name for tensor in model.graph.sparse_initializer)}
    for node in model.graph.node:
        for name in node.input:
            if name not in known:
                raise unknown(model, name, f"{node.op_type} {node.name!r}: ")


def _given(graph: onnx.GraphProto) -> list[str]:
    """Names of inputs, initializers and what nodes compute."""
    computed = [output for node in graph.node for output in node.output]
    return [*(i.name for i in graph.input), *(i.name for i in graph.initializer), *computed]


def _declared(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto | None:
    graph = model.graph
    info: onnx.ValueInfoProto
    for info in itertools.chain(graph.input, graph.output, graph.value_info):
        if info.name == name and info.HasField("type"):
            return info
    for tensor in graph.initializer:
        if tensor.name == name:
            info = helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
            return info
    return None


def _inferred_by_engine(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """For values behind operators that onnx has no rules for, such as those of com.microsoft."""
    probe = copy.deepcopy(model)
    del probe.graph.output[:]
    probe.graph.output.append(onnx.ValueInfoProto(name=name))
    options = _core.SessionOptions()
    options.optimize = False
    (found,) = _core.Session.from_bytes(probe.SerializeToString(), options).outputs()
    shape = None if found.extents is None else [int(e) if e.isdigit() else e for e in found.extents]
    return helper.make_value_info(name, _type_proto(found.type, shape))


def _type_proto(text: str, shape: list[int | str] | None) -> onnx.TypeProto:
    """The type that the engine spells ``tensor(float)``, ``seq(tensor(int64))``, ``optional(tensor(bool))``."""
    kind, _, inside = text.removesuffix(")").partition("(")
    made: onnx.TypeProto
    if kind == "tensor":
        made = helper.make_tensor_type_proto(onnx.TensorProto.DataType.Value(inside.upper()), shape)
    elif kind == "seq":
        made = helper.make_sequence_type_proto(_type_proto(inside, None))
    elif kind == "optional":
        made = helper.make_optional_type_proto(_type_proto(inside, shape))
    else:
        raise InvalidInput(f"type of an output: got {text}, expected a tensor, a sequence or an optional")
    return made


def register_outputs(model: onnx.ModelProto, names: Iterable[str]) -> None:
    """Makes these values, in this order, the only outputs of the graph."""
    infos = [copy.deepcopy(value_info(model, name)) for name in names]
    del model.graph.output[:]
    model.graph.output.extend(infos)


def names_of(returned: Any, who: object) -> list[str]:
    """What a block's build returned, as a list of names."""
    names = [returned] if isinstance(returned, str) else returned
    if not isinstance(names, list | tuple) or not names or not all(isinstance(n, str) for n in names):
        what = "nothing" if returned is None else repr(returned)
        raise InvalidInput(f"{type(who).__name__}.build returned {what}, expected the name of an output, or several")
    return list(names)


def ensure_opset(model: onnx.ModelProto, domain: str) -> None:
    if not any(opset.domain == domain for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, _DOMAIN_VERSIONS[domain]))


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators; the newest when the model does not say."""
    found = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    return found[0] if found else onnx.defs.onnx_opset_version()


def add_node(
    model: onnx.ModelProto, op: str, inputs: Iterable[str], *outputs: str,
    name: str = "", domain: str = "", **attributes: Any,
) -> list[str]:  # fmt: skip
    """Appends a node; ``name`` (or ``op``) and ``outputs`` are tokens that names are made of; those of the outputs are
    returned. Attributes that are None are left out."""
    if domain:
        ensure_opset(model, domain)
    names = [generate_graph_name(token) for token in outputs]
    # onnx leaves a domain out when it is None, and writes "" otherwise.
    name = generate_graph_name(name or op)
    model.graph.node.append(helper.make_node(op, list(inputs), names, name, domain=domain or None, **attributes))
    return names


def add_initializer(model: onnx.ModelProto, token: str, value: Any, code: int = onnx.TensorProto.FLOAT) -> str:
    """A constant of the given element type; returns its name."""
    array = np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(code))
    name = generate_graph_name(token)
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return name
