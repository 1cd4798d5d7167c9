"""Marks made on a captured graph before torch rewrites it: where gradients stop, what is opaque."""

from __future__ import annotations

import contextlib
import importlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx

_library: Any = torch.library.Library("backpass", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("stop_gradient(Tensor x) -> Tensor")
torch.library.register_fake("backpass::stop_gradient", lambda x: torch.empty_like(x), lib=_library)
_library.impl("stop_gradient", lambda x: x.clone(), "CompositeExplicitAutograd")
torch.library.register_autograd("backpass::stop_gradient", lambda _, __: None, lib=_library)


def mark_stop_gradient(module: fx.GraphModule) -> None:
    """detach() and values that leave a no_grad region become backpass::stop_gradient.

    torch.export's run_decompositions inlines such regions and turns detach into alias, so gradients would flow.
    """
    graph, mark = module.graph, torch.ops.backpass.stop_gradient.default
    aten = torch.ops.aten
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (aten.detach.default, aten.detach_.default):
            node.target = mark
        elif node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and node.args[0] is False:
            for user in list(node.users):
                _mark_result(graph, user)
    graph.lint()
    module.recompile()


def _mark_result(graph: fx.Graph, node: fx.Node) -> None:
    value = node.meta.get("val")
    if not (isinstance(value, torch.Tensor) and value.dtype.is_floating_point):
        return
    with graph.inserting_after(node):
        marked = graph.call_function(torch.ops.backpass.stop_gradient.default, (node,))
    marked.meta = dict(node.meta)
    node.replace_all_uses_with(marked, delete_user_cb=lambda user: user is not marked)


def drop_asserts(module: fx.GraphModule) -> None:
    """draft_export writes the example's branch decisions down as assertions, which other data may break."""
    for node in reversed(list(module.graph.nodes)):
        name = str(node.target)
        if node.op == "call_function" and ("_assert_scalar" in name or "sym_constrain" in name):
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _callbacks(name: str) -> AbstractContextManager[None]:
    try:
        module = importlib.import_module("backpass.torch.callbacks")
    except ModuleNotFoundError:
        return contextlib.nullcontext()
    found: AbstractContextManager[None] = getattr(module, name)()
    return found


def opaque_functions() -> AbstractContextManager[None]:
    """Inside, each call of a user's autograd.Function becomes one node of the graph."""
    return _callbacks("opaque_autograd_functions")


def transparent_functions() -> AbstractContextManager[None]:
    """Inside, autograd.Functions are traced through again: torch's own passes run there."""
    return _callbacks("transparent_autograd_functions")
