"""Marks made on a captured graph before torch rewrites it: where gradients stop, what is opaque."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx, library

from backpass import Unsupported

_definitions: Any = library.Library("backpass", "FRAGMENT")  # type: ignore[no-untyped-call]
_definitions.define("stop_gradient(Tensor x) -> Tensor")
library.register_fake("backpass::stop_gradient", lambda x: torch.empty_like(x), lib=_definitions)
_definitions.impl("stop_gradient", lambda x: x.clone(), "CompositeExplicitAutograd")
library.register_autograd("backpass::stop_gradient", lambda _, __: None, lib=_definitions)


def mark_stop_gradient(module: fx.GraphModule, state: Collection[str] = (), wanted: Collection[str] = ()) -> None:
    """detach() and values that leave a no_grad region become backpass::stop_gradient.

    A mark is a copy. Where memory that detach() shares is written to, it stays what it is if it belongs to a buffer
    (`state`: their placeholders), which no gradient reaches; else the graph is refused. So it is where a no_grad region
    changes what depends on the placeholders `wanted`: their gradients are those of the old value in torch.

    torch.export's run_decompositions inlines such regions and turns detach into alias, so gradients would flow.
    """
    graph, mark = module.graph, torch.ops.backpass.stop_gradient.default
    aten = torch.ops.aten
    written = _written(module)
    buffers = {_storage(n) for n in graph.nodes if n.op == "placeholder" and n.target in state}
    dependent = _dependent(graph, wanted)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (aten.detach.default, aten.detach_.default):
            if _storage(node) not in written:
                node.target = mark
            elif _storage(node) not in buffers:
                raise Unsupported(
                    f"[detach '{node.name}'] got a tensor that is changed in place, expected one that stays"
                )
        elif node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and node.args[0] is False:
            inside = {n for n in node.args[2:] if n in dependent and n.op == "call_function"}
            if {_storage(n) for n in inside} & _written(getattr(module, node.args[1].target)):
                raise Unsupported(
                    f"[{node.name}] got a tensor with a gradient changed in place under no_grad, expected it to stay"
                )
            for user in list(node.users):
                _mark_result(graph, user)
    graph.lint()
    module.recompile()


def _storage(node: fx.Node) -> int | None:
    """Which memory the node's value is in."""
    value = node.meta.get("val")
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None


def _written(module: fx.GraphModule) -> set[int | None]:
    """Memory that is changed in place, in regions as well."""
    found: set[int | None] = set()
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.inplace_view not in node.target.tags:
                pairs = zip(node.target._schema.arguments, node.args, strict=False)
                changed = [v for a, v in pairs if a.alias_info is not None and a.alias_info.is_write]
                found |= {_storage(v) for v in changed if isinstance(v, fx.Node)}
    return found


def _dependent(graph: fx.Graph, roots: Collection[str]) -> set[fx.Node]:
    """Nodes to which gradients of these placeholders lead back."""
    found: set[fx.Node] = set()
    stops = (torch.ops.aten.detach.default, torch.ops.higher_order.wrap_with_set_grad_enabled)
    for node in graph.nodes:
        value = node.meta.get("val")
        reached = node.target in roots if node.op == "placeholder" else not found.isdisjoint(node.all_input_nodes)
        if (
            reached
            and node.target not in stops
            and not (isinstance(value, torch.Tensor) and not value.is_floating_point())
        ):
            found.add(node)
    return found


def _mark_result(graph: fx.Graph, node: fx.Node) -> None:
    value = node.meta.get("val")
    if not (isinstance(value, torch.Tensor) and value.dtype.is_floating_point):
        return
    with graph.inserting_after(node):
        marked = graph.call_function(torch.ops.backpass.stop_gradient.default, (node,))
    marked.meta = dict(node.meta)
    node.replace_all_uses_with(marked, delete_user_cb=lambda user: user is not marked)


def write_instance_statistics(module: fx.GraphModule) -> None:
    """instance_norm changes its running statistics without saying so, and torch.export loses that: written out here."""
    aten = torch.ops.aten
    norms = [n for n in module.graph.nodes if n.target is aten.instance_norm.default and n.args[5]]
    norms = [n for n in norms if n.args[3] is not None]
    if not norms:
        return  # to write the code of a large graph anew takes a while
    for node in norms:
        x, mean, variance, momentum = node.args[0], node.args[3], node.args[4], node.args[6]
        spatial = list(range(2, x.meta["val"].dim()))
        with module.graph.inserting_after(node):
            for buffer, statistic in ((variance, aten.var.correction), (mean, aten.mean.dim)):
                settings = {"correction": 1} if statistic is aten.var.correction else {}
                _write_statistic(module.graph, x, buffer, (statistic, spatial, settings), momentum)
        node.update_arg(3, None)
        node.update_arg(4, None)
    module.recompile()


def _write_statistic(graph: fx.Graph, x: fx.Node, buffer: fx.Node, how: Any, momentum: float) -> None:
    aten = torch.ops.aten
    statistic, spatial, settings = how
    detached = graph.call_function(torch.ops.backpass.stop_gradient.default, (x,))
    steps = [detached]

    def then(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with graph.inserting_after(steps[-1]):
            steps.append(graph.call_function(target, args, kwargs))
        return steps[-1]

    each = then(statistic, detached, spatial, **settings)
    batch = then(aten.mean.dim, each, [0])
    moved = then(aten.mul.Tensor, batch, momentum)
    kept = then(aten.mul.Tensor, buffer, 1 - momentum)
    new = then(aten.add.Tensor, kept, moved)
    then(aten.copy_.default, buffer, new)
