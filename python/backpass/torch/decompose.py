"""The second level: operators without a lowering, as torch's own decompositions write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from backpass.torch import autocast, direct
from backpass.torch.builder import NoLoweringError

if TYPE_CHECKING:
    from backpass.torch.dispatch import Dispatcher

# Written for values: differentiated, they forget scale_grad_by_freq, and are NaN where a point is compared with itself.
NEVER_DECOMPOSED = frozenset({"aten::embedding", "aten::pdist", "aten::_pdist_forward"})


def trace(node: fx.Node, dispatcher: Dispatcher, args: Any, kwargs: Any) -> tuple[fx.GraphModule, list[Any]]:
    """The operator's decomposition as a graph, and what its placeholders stand for.

    Only if every operator in it has a lowering or a decomposition of its own; otherwise NoLoweringError.
    """
    function = decomposition(node.target)
    if function is None:
        raise NoLoweringError("no lowering, and torch has no decomposition")
    fakes, spec = pytree.tree_flatten(_mutable((node.args, node.kwargs)))
    values, _ = pytree.tree_flatten((args, kwargs), is_leaf=lambda v: v is None or isinstance(v, str))
    if len(values) != len(fakes):
        raise NoLoweringError("its arguments have a form that cannot be traced")
    places = [i for i, f in enumerate(fakes) if isinstance(f, fx.Node)]

    def called(*leaves: Any) -> Any:
        full = list(fakes)
        for place, leaf in zip(places, leaves, strict=True):
            full[place] = leaf
        inner_args, inner_kwargs = pytree.tree_unflatten(full, spec)
        return function(*inner_args, **inner_kwargs)

    examples = [fakes[i].meta["val"] for i in places]
    module = _traced(called, examples, str(node.target))
    if direct.functional(module, set()) is None:  # composites keep what they do in place
        raise NoLoweringError("no lowering, and torch's decomposition changes tensors in place")
    for inner in module.graph.nodes:
        if inner.op == "call_function" and isinstance(inner.target, torch._ops.OpOverload):
            if inner.target is node.target:
                raise NoLoweringError("no lowering, and its decomposition is itself")
            if inner.target not in dispatcher and decomposition(inner.target) is None:
                raise NoLoweringError(f"no lowering, and its decomposition needs {inner.target}")
    return module, [values[i] for i in places]


def _mutable(arguments: Any) -> Any:
    """The same with lists of Python's in place of fx's, which some decompositions change."""
    if isinstance(arguments, list | tuple):
        made = [_mutable(a) for a in arguments]
        return made if isinstance(arguments, list) else tuple(made)
    return {k: _mutable(a) for k, a in arguments.items()} if isinstance(arguments, dict) else arguments


def _traced(function: Callable[..., Any], examples: list[Any], name: str) -> fx.GraphModule:
    modes = [e.fake_mode for e in examples if isinstance(e, torch._subclasses.FakeTensor)]
    mode = modes[0] if modes else FakeTensorMode()
    before = _conditions(mode)
    try:
        with (
            torch.no_grad(),
            autocast.switched_off(),  # its casts are written down
            mode,
            torch.fx.experimental._config.patch(backed_size_oblivious=True),  # type: ignore[attr-defined]
        ):
            traced = make_fx(torch.func.functionalize(function), tracing_mode="real")(*examples)
    except Exception as error:  # whatever torch raises inside a decomposition only means that there is none
        raise NoLoweringError(f"no lowering, and torch's decomposition fails: {error}") from error
    if _conditions(mode) != before:
        raise NoLoweringError("no lowering, and torch's decomposition holds for some sizes only")
    return traced


def _conditions(mode: FakeTensorMode) -> tuple[int, int]:
    """How much is assumed about symbolic sizes."""
    sizes = mode.shape_env
    return (0, 0) if sizes is None else (len(sizes.guards), len(sizes.replacements))


def decomposition(target: Any) -> Callable[..., Any] | None:
    """A function of torch's that computes this operator by others, if there is one."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.name in NEVER_DECOMPOSED:
        return None
    found = torch._decomp.decomposition_table.get(target)
    if found is not None:
        return found
    return target if target._can_decompose() else None


def attribute(module: torch.nn.Module, name: str) -> Any:
    """What a get_attr node refers to."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found
