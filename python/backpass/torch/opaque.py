"""Keeping user functions whole while torch captures a module.

torch.export looks through ``torch.autograd.Function``: it records what ``forward`` does and forgets ``backward``.
Inside of :func:`opaque_autograd_functions` each ``apply`` becomes one node ``backpass::python_op`` instead, which
names the class and carries the arguments (see :mod:`backpass.torch.arguments`).
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import library
from torch.utils.checkpoint import CheckpointFunction

from backpass import Unsupported
from backpass.torch.arguments import decode, encode
from backpass.torch.functions import class_of, has_setup_context, name_of
from backpass.torch.trial import (
    Signature,
    here,
    index_of,
    signature_of,
    signatures,
    transparent_autograd_functions,
    try_out,
)

__all__ = ["intercept", "opaque_autograd_functions", "original_apply", "transparent_autograd_functions"]

definitions: Any = library.Library("backpass", "FRAGMENT")  # type: ignore[no-untyped-call]
definitions.define("python_op(Tensor?[] tensors, SymInt[] sizes, str func, str arguments) -> Tensor[]")


# ---- the operator of captured graphs
def _fake(tensors: Sequence[Any], sizes: Sequence[Any], func: str, arguments: str) -> list[torch.Tensor]:
    return try_out(func, arguments, [*tensors, *sizes])


def _run(tensors: Sequence[Any], sizes: Sequence[Any], func: str, arguments: str) -> list[torch.Tensor]:
    """The operator outside of the engine: captured graphs can be run by torch, too."""
    given = [t.clone() if isinstance(t, torch.Tensor) else t for t in (*tensors, *sizes)]
    args, kwargs = decode(arguments).fill(given)
    output = original_apply(class_of(func), *args, **kwargs)
    results = [o for o in (output if isinstance(output, tuple) else (output,)) if isinstance(o, torch.Tensor)]
    if (func, arguments) not in signatures:
        try_out(func, arguments, [*tensors, *sizes])
    return [r.clone() if any(r is s for s in results[:i]) else r for i, r in enumerate(results)]


library.register_fake("backpass::python_op", _fake, lib=definitions)
definitions.impl("python_op", _run, "CompositeExplicitAutograd")


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.inputs = inputs


def _differentiate(context: Any, gradients: Any) -> tuple[Any, None, None, None]:
    tensors, sizes, func, arguments = context.inputs
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
        outputs = _run(leaves, sizes, func, arguments)
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad and g is not None]
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    found = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    by_leaf = {id(t): g for t, g in zip(wanted, found, strict=True)}
    return [by_leaf.get(id(t)) for t in leaves], None, None, None


library.register_autograd("backpass::python_op", _differentiate, setup_context=_set_up, lib=definitions)


# ---- interception of Function.apply
_apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]
_original = types.FunctionType(_apply.__code__, _apply.__globals__, "apply", _apply.__defaults__, _apply.__closure__)
_lock = threading.Lock()
_depth = 0


def original_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    """``cls.apply``, whether or not functions are opaque at the moment."""
    return _original(cls, *args, **kwargs)


class _Stand:
    """Holds the code that replaces that of ``Function.apply``; like it, it has ``__class__`` in its closure."""

    def apply(cls, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: N805
        __class__  # type: ignore[name-defined]  # noqa: B018
        from backpass.torch.opaque import intercept

        return intercept(cls, args, kwargs)  # type: ignore[arg-type]


@contextmanager
def opaque_autograd_functions() -> Iterator[None]:
    """User functions called by this thread become single nodes. Those of torch itself are looked through."""
    global _depth
    was_on = getattr(here, "on", False)
    with _lock:
        _depth += 1
        _apply.__code__ = _Stand.apply.__code__  # the code, not the name: `f = F.apply` may have been bound before
    here.on = True
    try:
        yield
    finally:
        here.on = was_on
        with _lock:
            _depth -= 1
            if _depth == 0:
                _apply.__code__ = _original.__code__


def intercept(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``Function.apply`` does in the meantime."""
    if getattr(here, "on", False) and cls is CheckpointFunction:
        return _checkpointed(*args)
    if not getattr(here, "on", False) or _is_torchs(cls):
        return original_apply(cls, *args, **kwargs)
    if has_setup_context(cls):
        args, kwargs = _with_defaults(cls, args, kwargs)
    tensors: list[torch.Tensor] = []
    sizes: list[torch.SymInt] = []
    _walk((args, kwargs), lambda t: tensors.append(t), torch.Tensor)
    _walk((args, kwargs), lambda s: sizes.append(s), torch.SymInt)

    def slot(value: Any) -> dict[str, int] | None:
        if isinstance(value, torch.Tensor):
            return {"tensor": index_of(tensors, value) or 0}
        if isinstance(value, torch.SymInt):
            return {"int": len(tensors) + (index_of(sizes, value) or 0)}
        if isinstance(value, torch.SymFloat | torch.SymBool):
            raise Unsupported(f"function {name_of(cls)}: got a {type(value).__name__} as argument; pass a tensor")
        return None

    func = name_of(cls)
    arguments = encode(args, kwargs, slot)
    results = torch.ops.backpass.python_op(tensors, sizes, func, arguments)
    return _finish(signature_of(func, arguments), results, tensors)


def _is_torchs(cls: type) -> bool:
    """Whether torch is looked through: its functions for distributions have derivatives of their own."""
    return cls.__module__.split(".")[0] in ("torch", "functorch") and not cls.__module__.startswith(
        "torch.distributions"
    )


def _checkpointed(run: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
    """What is checkpointed, by itself: looked through, its ``forward`` would be a region without gradients."""
    result = run(*args)
    if torch.is_grad_enabled() and not _any_requires_grad(args) and _any_requires_grad(result):
        raise Unsupported(
            "checkpoint(use_reentrant=True): got arguments that no weight was used for, expected one that has a "
            "gradient in every call: without one, PyTorch gives the weights inside none; use use_reentrant=False"
        )
    return result


def _any_requires_grad(value: Any) -> bool:
    given = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in given)


def _finish(signature: Signature, results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Any:
    """As in eager mode, a tensor that was changed in place is the result itself."""
    arranged = list(results)
    for place, source in signature.returned.items():
        tensors[source].copy_(results[place])
        arranged[place] = tensors[source]
    return signature.arrange(arranged)


def _with_defaults(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import inspect

    bound = inspect.signature(cls.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args, bound.kwargs


def _walk(value: Any, visit: Callable[[Any], None], kind: type) -> None:
    if isinstance(value, kind):
        visit(value)
    elif type(value) in (tuple, list) or isinstance(value, torch.Size):
        for item in value:
            _walk(item, visit, kind)
    elif type(value) is dict:
        for item in value.values():
            _walk(item, visit, kind)
