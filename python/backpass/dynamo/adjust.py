"""What is changed in a graph of torch.compile before it is captured, in either mode."""

from __future__ import annotations

import logging

import torch

from backpass.torch.emit import NOT_TRUE

log = logging.getLogger("backpass.dynamo")

# Functions with an argument `sparse`, and its position.
_PLACES = {
    torch.nn.functional.embedding: 6,
    torch.nn.functional.embedding_bag: 7,
    torch.embedding: 4,
    torch.ops.aten.embedding.default: 4,
}


def make_dense(module: torch.fx.GraphModule) -> None:
    """Takes sparse=True out of the graph, and says so: the engine makes dense gradients."""
    found = [n for n in module.graph.nodes if n.target in _PLACES and _is_sparse(n)]
    for node in found:
        if "sparse" in node.kwargs:
            node.update_kwarg("sparse", False)
        else:
            node.update_arg(_PLACES[node.target], False)
    if found:
        module.recompile()
        names = ", ".join(sorted({n.target.__name__ for n in found}))
        log.warning("%s(sparse=True): its gradient is dense here, which torch.optim.SparseAdam does not take", names)


def _is_sparse(node: torch.fx.Node) -> bool:
    place = _PLACES[node.target]
    return bool(node.args[place] if len(node.args) > place else node.kwargs.get("sparse"))


def name_assertions(module: torch.fx.GraphModule) -> None:
    """Those without a message get torch's: torch takes them for useless when it traces the graph."""
    found = [n for n in module.graph.nodes if n.target is torch._assert_async and len(n.args) == 1]
    for node in found:
        node.args = (*node.args, NOT_TRUE)
    if found:
        module.recompile()
