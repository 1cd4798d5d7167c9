"""Captured graphs made functional without tracing them again.

torch's own way, ``run_decompositions``, traces the whole graph a second time, which takes longer than the capture. Most
modules change nothing in place but the statistics of batch normalisation: those are rewritten here, node by node.
Whatever is not certainly right (tensors changed through views, autocast regions, other higher-order operators) is left
to torch.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

Mutations = dict[fx.Node, fx.Node]

_aten = torch.ops.aten
_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled


class _LeaveItError(Exception):
    """This graph is not simple."""


def functional(module: fx.GraphModule, buffers: set[str]) -> Mutations | None:
    """Rewrites the graph so that nothing is changed in place; returns which placeholder (of those named in `buffers`)
    ends as which value. None, and the graph as it was, if it is not simple."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    try:
        _inline_regions(module, graph)
        final = _without_mutation(graph, buffers)
    except _LeaveItError:
        return None
    module.graph = graph
    return final


def _inline_regions(module: fx.GraphModule, graph: fx.Graph) -> None:
    """Regions under no_grad become part of the graph; what leaves them was marked before."""
    while regions := [n for n in graph.nodes if n.target is _REGION]:
        for node in regions:
            reference: Any = node.args[1]
            body = getattr(module, str(reference.target), None)
            if not isinstance(body, fx.GraphModule) or any(n.op == "get_attr" for n in body.graph.nodes):
                raise _LeaveItError
            inner = [n for n in body.graph.nodes if n.op == "placeholder"]
            values = dict(zip(inner, node.args[2:], strict=True))
            with graph.inserting_before(node):
                results: Any = graph.graph_copy(body.graph, values)
            for user in list(node.users):
                if user.target is not operator.getitem:
                    raise _LeaveItError
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
            graph.erase_node(node)
            if not reference.users:
                graph.erase_node(reference)


def _without_mutation(graph: fx.Graph, buffers: set[str]) -> Mutations:
    final: Mutations = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            transforms = getattr(node.target, "__module__", "").startswith("torch._functorch")  # torch.func
            if transforms or isinstance(node.target, torch._ops.HigherOrderOperator):
                raise _LeaveItError
            continue
        if node.target is _aten.batch_norm.default and node.args[5] and node.args[3] is not None:
            _rewrite_batch_norm(graph, node, buffers, final)
        elif node.target._schema.is_mutable:
            _rewrite_in_place(graph, node, buffers, final)
    return final


def _checked(node: Any, at: fx.Node, buffers: set[str]) -> fx.Node:
    """The tensor that is changed: nobody may see it through another name."""
    if not isinstance(node, fx.Node):
        raise _LeaveItError
    if node.op == "placeholder":
        if node.target not in buffers:
            raise _LeaveItError
    elif node.op != "call_function" or _may_alias(node):
        raise _LeaveItError
    if any(_may_alias(user) for user in node.users if user is not at):
        raise _LeaveItError
    return node


def _may_alias(node: fx.Node) -> bool:
    """Whether a result may be (a view of) an argument."""
    target = node.target
    if target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _may_alias(node.args[0])
    if node.op == "output" or not isinstance(target, torch._ops.OpOverload):
        return node.op != "output"
    if any(r.alias_info is not None for r in target._schema.returns) and not target._schema.is_mutable:
        return True
    # composites such as reshape or contiguous may return their argument and do not say so
    return target._can_decompose() and target not in (_aten.batch_norm.default,)


def _replace_later(old: fx.Node, new: fx.Node, at: fx.Node) -> None:
    """What comes after `at` reads the new value."""
    later, seen = set(), False
    for node in at.graph.nodes:
        if seen:
            later.add(node)
        seen = seen or node is at
    for user in list(old.users):
        if user in later and user is not new:
            user.replace_input_with(old, new)


def _origin(node: fx.Node, final: Mutations) -> fx.Node:
    """The placeholder whose newest value this is, or the node itself."""
    return next((p for p, newest in final.items() if newest is node), node)


def _rewrite_in_place(graph: fx.Graph, node: fx.Node, buffers: set[str], final: Mutations) -> None:
    assert isinstance(node.target, torch._ops.OpOverload)
    name = node.target._schema.name.partition("::")[2]
    plain = getattr(_aten, name.removesuffix("_"), None)
    if not name.endswith("_") or name.endswith("__") or plain is None or node.target.namespace != "aten":
        raise _LeaveItError
    if node.target._overloadname not in plain.overloads():
        raise _LeaveItError
    changed = node.args[0]
    origin = _origin(changed, final) if isinstance(changed, fx.Node) else changed
    if origin is changed:
        changed = _checked(changed, node, buffers)
    old = changed.meta.get("val")  # type: ignore[union-attr]
    new = node.meta.get("val")
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor) or old.dtype != new.dtype:
        raise _LeaveItError
    node.target = getattr(plain, node.target._overloadname)
    promoted = _result_type(node)
    if promoted != old.dtype:
        raise _LeaveItError  # the functional form would have another element type
    _replace_later(changed, node, node)  # type: ignore[arg-type]
    if isinstance(origin, fx.Node) and origin.op == "placeholder":
        final[origin] = node


def _result_type(node: fx.Node) -> torch.dtype | None:
    """The element type the functional operator gives."""
    values = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    fakes = [v for v in values[0] if isinstance(v, torch._subclasses.FakeTensor)]
    if not fakes:
        return None
    with fakes[0].fake_mode, torch.no_grad():
        try:
            found = node.target(*values[0], **values[1])  # type: ignore[operator]
        except Exception as error:
            raise _LeaveItError from error
    return found.dtype if isinstance(found, torch.Tensor) and found.shape == node.meta["val"].shape else None


def _rewrite_batch_norm(graph: fx.Graph, node: fx.Node, buffers: set[str], final: Mutations) -> None:
    """Training batch norm changes its statistics: its functional form returns them."""
    statistics = [node.args[3], node.args[4]]
    for value in statistics:
        if not isinstance(value, fx.Node) or value.op != "placeholder" or value.target not in buffers or value in final:
            raise _LeaveItError
    target = _aten._native_batch_norm_legit_functional.default
    with graph.inserting_before(node):
        whole = graph.call_function(target, tuple(node.args[:8]))
        parts = [graph.call_function(operator.getitem, (whole, i)) for i in range(5)]
    result, mean, variance = node.meta["val"], *(v.meta["val"] for v in statistics)  # type: ignore[union-attr]
    whole.meta["val"] = (result, mean, variance, mean, variance)
    for part, meta in zip(parts, whole.meta["val"], strict=True):
        part.meta["val"] = meta
    for value, part in zip(statistics, parts[3:], strict=True):
        final[value] = part  # type: ignore[index]
        _replace_later(value, part, node)  # type: ignore[arg-type]
    node.replace_all_uses_with(parts[0])
    graph.erase_node(node)
