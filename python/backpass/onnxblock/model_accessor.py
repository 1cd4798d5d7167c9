"""base, empty_base, custom_op_library: the model that blocks are stacked on, while a ``with`` lasts."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import onnx
from onnx import helper

from backpass._core import InvalidInput, Unsupported

_MS_OPSET = 1


class ModelAccessor:
    """The model under construction. Blocks append to ``model``; ``path`` is the file it came from, if it did."""

    def __init__(self, model: onnx.ModelProto, path: str | None = None) -> None:
        self.model = model
        self.path = path
        self.depth = 0  # of block calls; only the outermost one checks the model
        self.taken = {name for name in _names(model.graph) if name.startswith("onnx::")}

    @property
    def has_path(self) -> bool:
        return self.path is not None


_current: ContextVar[ModelAccessor | None] = ContextVar("backpass.onnxblock.base", default=None)


def current() -> ModelAccessor | None:
    """The accessor of the innermost ``with base(...)``, None outside."""
    return _current.get()


@contextlib.contextmanager
def base(model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> Iterator[ModelAccessor]:
    """Blocks called inside build on a copy of ``model``; the accessor's ``model`` holds the result.

    ``model_path`` is the file the model was read from, needed when its weights lie in files beside it.
    """
    if not isinstance(model, onnx.ModelProto):
        raise InvalidInput(f"base model: got {type(model).__name__}, expected an onnx.ModelProto")
    copied = copy.deepcopy(model)
    copied.ir_version = max(copied.ir_version, 4)  # before, initializers of blocks would have to be inputs as well
    path = None if model_path is None else os.fspath(model_path)
    if path is not None:
        onnx.load_external_data_for_model(copied, str(Path(path).parent))
    with _entered(ModelAccessor(copied, path)) as accessor:
        yield accessor


@contextlib.contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Blocks called inside build on a model without nodes, of the given opset (the newest when None)."""
    standard = helper.make_opsetid("", opset_version or onnx.defs.onnx_opset_version())
    model = onnx.ModelProto(producer_name="backpass", graph=onnx.GraphProto(name="graph"))
    model.ir_version = helper.find_min_ir_version_for([standard])
    model.opset_import.extend([helper.make_opsetid("com.microsoft", _MS_OPSET), standard])
    with _entered(ModelAccessor(model)) as accessor:
        yield accessor


@contextlib.contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises `Unsupported`: libraries of custom operators are tied to ONNX Runtime's own interface."""
    reject_custom_op_library(custom_op_library_path)
    yield


def reject_custom_op_library(path: str | os.PathLike[str]) -> None:
    if not os.path.exists(path):
        raise InvalidInput(f"custom_op_library: {os.fspath(path)!r} does not exist")
    raise Unsupported(
        f"custom_op_library {os.fspath(path)!r}: Backpass cannot load ONNX Runtime's libraries of custom operators; "
        "write the operator as a function of the model (ModelProto.functions), which is inlined and differentiated"
    )


@contextlib.contextmanager
def _entered(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    if _current.get() is not None:
        raise InvalidInput("a base model is in use already: leave its `with` before entering another")
    token = _current.set(accessor)
    try:
        yield accessor
    finally:
        _current.reset(token)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of values and nodes, those of subgraphs included."""
    for group in (graph.input, graph.output, graph.value_info, graph.initializer):
        yield from (item.name for item in group)
    for node in graph.node:
        yield node.name
        yield from node.output
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _names(subgraph)
