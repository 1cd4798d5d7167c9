"""Graphs of torch.compile as graphs of aten operators, without tracing them again.

A node of such a graph calls a function or method of torch, and torch wrote down what it gives. What is missing is which
operators that call leads to, with which arguments. Each call is made once more, on tensors without contents, and
stopped where torch hands it to its first operator: if the result that is known already is all that follows, this
operator is the call. Where others follow (indexing by several things at once), they are let through.

To trace the whole graph, as torch.export does, takes ten times as long. Whatever is not plain (sizes that vary, modes
that are entered and left, numbers read out of tensors, memory that is changed under several names) is left to it.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from backpass.torch import direct, marks

_GRAD_MODE = torch._C._set_grad_enabled  # by which torch.compile writes down where no_grad begins and ends


class NotPlainError(Exception):
    """The graph has to be traced."""


@dataclass
class _Call:
    """An operator that was reached, and what it gave."""

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = field(repr=False)


class _Recorder(ProxyTorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees calls before torch takes them apart, which only modes of this class do; nothing else of it is used."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)  # type: ignore[no-untyped-call]
        self._mode_key = torch._C._TorchDispatchModeKey.PROXY
        self.enter_stack = []
        self.calls: list[_Call] = []
        self.expected: Any = None

    def start(self, expected: Any = None) -> None:
        """`expected` is given for the result of every operator; without it they are asked."""
        self.calls, self.expected = [], expected

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {})) if self.expected is None else self.expected
        self.calls.append(_Call(func, args, dict(kwargs or {}), result))
        return result


def functional(module: fx.GraphModule) -> tuple[fx.GraphModule, direct.Mutations]:
    """The same graph in aten operators, each with its ``val``, as a function of the tensors among its arguments; and
    which of these ends as which value. Raises NotPlainError, and has changed nothing, where it has to be traced."""
    with _disable_current_modes(), torch._guards.tracing(None):
        made = resolved(module)
        marks.mark_stop_gradient(made)
        marks.write_instance_statistics(made)
        arguments = [n for n in made.graph.nodes if n.op == "placeholder"]
        changed = direct.functional(made, {str(n.target) for n in arguments})
    if changed is None:
        raise NotPlainError("it changes memory that may have several names")
    memory = collections.Counter(_memory(n) for n in arguments)
    if any(memory[_memory(n)] > 1 for n in changed):
        raise NotPlainError("it changes an argument that shares its memory with another")
    return made, changed


def _memory(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def resolved(module: fx.GraphModule) -> fx.GraphModule:
    """The graph in aten operators, which may change tensors in place."""
    nodes = list(module.graph.nodes)
    mode = _checked(nodes)
    writer = _Writer()
    with mode, enable_python_dispatcher(), _Recorder() as recorder:
        for node in nodes:
            if node.op == "placeholder":
                writer.placeholder(node)
            elif node.op == "output":
                writer.output(node)
            elif node.target is _GRAD_MODE:
                writer.set_grad_mode(bool(node.args[0]))
            elif node.target is operator.getitem and not isinstance(_value(node.args[0]), torch.Tensor):
                writer.part(node)
            else:
                writer.calls(node, _calls(node, recorder))
    return fx.GraphModule(module, writer.graph)


def _checked(nodes: Sequence[fx.Node]) -> FakeTensorMode:
    """The mode that the graph's tensors belong to, if each node gives tensors of known sizes."""
    modes: set[FakeTensorMode] = set()
    for node in nodes:
        if node.op == "output":
            if not all(isinstance(_value(n), torch.Tensor) for n in pytree.tree_leaves(node.args)):
                raise NotPlainError("it gives something else than tensors")
            continue
        if node.op not in ("placeholder", "call_function", "call_method"):
            raise NotPlainError(f"{node.op} {node.target}")
        if node.target is _GRAD_MODE or (node.op == "placeholder" and type(_value(node)) is int):
            continue
        values = pytree.tree_leaves(_value(node))
        if not values or not all(isinstance(v, FakeTensor) and _has_known_size(v) for v in values):
            raise NotPlainError(f"{node.name} is something else than tensors of known sizes")
        modes |= {v.fake_mode for v in values}
    if len(modes) != 1:
        raise NotPlainError(f"its tensors belong to {len(modes)} modes")
    return modes.pop()


def _value(node: Any) -> Any:
    """What torch.compile wrote down for it."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def _has_known_size(value: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*value.shape, *value.stride(), value.storage_offset()))


def _calls(node: fx.Node, recorder: _Recorder) -> list[_Call]:
    """The operators that a node calls, the last of which gives its value; none if that is one of its arguments."""
    value = _value(node)
    same = _same if node.all_input_nodes else _alike  # functions that make tensors of numbers return copies
    args, kwargs = fx.map_arg((node.args, node.kwargs), _value)
    recorder.start(value)
    result, passed_on = _called(node, args, kwargs), any(_value(n) is value for n in node.all_input_nodes)
    if same(result, value) and len(recorder.calls) == (0 if passed_on else 1):
        return recorder.calls
    recorder.start()
    result = _called(node, args, kwargs)
    if not recorder.calls or not same(recorder.calls[-1].result, result) or not _alike(result, value):
        raise NotPlainError(f"{node.name}: it is not what its last operator gives")
    return recorder.calls


def _called(node: fx.Node, args: Any, kwargs: Any) -> Any:
    try:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception as error:  # one result in place of another may lead anywhere
        return error


def _same(result: Any, value: Any) -> bool:
    """Whether these are the same tensors."""
    found, wanted = pytree.tree_leaves(result), pytree.tree_leaves(value)
    return len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True))


def _alike(result: Any, value: Any) -> bool:
    found, wanted = pytree.tree_leaves(result), pytree.tree_leaves(value)
    return len(found) == len(wanted) and all(
        isinstance(a, torch.Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype)
        for a, b in zip(found, wanted, strict=True)
    )


class _Writer:
    """Builds the graph of operators beside that of torch.compile."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._made: dict[fx.Node, fx.Node] = {}
        self._grad_modes = [True]

    def placeholder(self, node: fx.Node) -> None:
        if isinstance(_value(node), torch.Tensor):
            self._made[node] = self.graph.placeholder(node.name)
            self._made[node].meta["val"] = _value(node)

    def output(self, node: fx.Node) -> None:
        self.graph.output(fx.map_arg(node.args[0], self._made.__getitem__))

    def set_grad_mode(self, enabled: bool) -> None:
        self._grad_modes.append(enabled)

    def part(self, node: fx.Node) -> None:
        """One of several results."""
        made = self.graph.call_function(operator.getitem, fx.map_arg(node.args, self._made.__getitem__))
        made.meta["val"] = _value(node)
        self._made[node] = made

    def calls(self, node: fx.Node, calls: Sequence[_Call]) -> None:
        """The operators that a node calls: tensors among their arguments are what it reads, or came before."""
        known = {id(_value(n)): self._made[n] for n in node.all_input_nodes if n in self._made}
        made = known.get(id(_value(node)))
        for call in calls:
            if len(self._grad_modes) > 1 and call.target._schema.is_mutable:
                raise NotPlainError("it changes tensors and enters no_grad")
            args, kwargs = pytree.tree_map(lambda leaf: _node_of(leaf, known), (call.args, call.kwargs))
            made = self.graph.call_function(call.target, args, kwargs)
            made.meta["val"] = call.result
            if isinstance(call.result, torch.Tensor):
                known[id(call.result)] = made
            elif call is not calls[-1]:
                for i, part in enumerate(call.result):
                    known[id(part)] = self.graph.call_function(operator.getitem, (made, i))
                    known[id(part)].meta["val"] = part
        assert made is not None
        if calls:
            made.meta["val"] = _value(node)
        self._made[node] = made if self._grad_modes[-1] else self._stopped(node, made)

    def _stopped(self, node: fx.Node, made: fx.Node) -> fx.Node:
        """A result under no_grad: what it was made of may have gradients, which end here."""
        if not any(v.requires_grad for n in node.all_input_nodes for v in pytree.tree_leaves(_value(n))):
            return made
        value = _value(node)
        if not isinstance(value, torch.Tensor):
            raise NotPlainError(f"{node.name}: several results at once under no_grad")
        if not value.is_floating_point():
            return made
        stopped = self.graph.call_function(torch.ops.backpass.stop_gradient.default, (made,))
        stopped.meta["val"] = value
        return stopped


def _node_of(leaf: Any, known: dict[int, fx.Node]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if id(leaf) not in known:
        raise NotPlainError("an operator reads a tensor that is no argument")
    return known[id(leaf)]
