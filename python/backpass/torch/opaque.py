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
from dataclasses import dataclass, field
from typing import Any

import torch

from backpass import Unsupported
from backpass.torch.arguments import decode, encode
from backpass.torch.functions import class_of, has_setup_context, name_of

Shape = Sequence[int | torch.SymInt]

library: Any = torch.library.Library("backpass", "FRAGMENT")  # type: ignore[no-untyped-call]
library.define("python_op(Tensor?[] tensors, SymInt[] sizes, str func, str arguments) -> Tensor[]")


@dataclass
class Signature:
    """What a call gives, learnt when it is captured."""

    positions: list[int | None] = field(default_factory=list)  #: per output: which tensor it is, None for a constant
    constants: list[Any] = field(default_factory=list)
    is_single: bool = False  #: one output that is not in a tuple
    dirty: list[int] = field(default_factory=list)  #: tensors that are changed in place
    returned: dict[int, int] = field(default_factory=dict)  #: tensor result -> the tensor it is, changed in place
    not_differentiable: list[int] = field(default_factory=list)  #: tensor results

    def arrange(self, results: Sequence[Any]) -> Any:
        outputs = [c if p is None else results[p] for p, c in zip(self.positions, self.constants, strict=True)]
        return outputs[0] if self.is_single else tuple(outputs)


_signatures: dict[tuple[str, str], Signature] = {}


def signature_of(func: str, arguments: str) -> Signature:
    return _signatures[func, arguments]


# ---- a trial run, for types and shapes
class _TrialContext:
    """Takes what a function hands to its context."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count
        self.dirty: tuple[Any, ...] = ()
        self.not_differentiable: tuple[Any, ...] = ()
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.not_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass


def _call_forward(cls: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, _TrialContext]:
    context = _TrialContext(len(args))
    with torch.no_grad(), transparent_autograd_functions():
        if not has_setup_context(cls):
            return cls.forward(context, *args, **kwargs), context
        output = cls.forward(*args, **kwargs)
        cls.setup_context(context, tuple(args), output)
    return output, context


def _index(tensors: Sequence[Any], wanted: Any) -> int | None:
    return next((i for i, t in enumerate(tensors) if t is wanted), None)


def _describe(func: str, output: Any, context: _TrialContext, given: Sequence[Any]) -> tuple[Signature, list[Any]]:
    signature = Signature(is_single=not isinstance(output, tuple))
    results: list[torch.Tensor] = []
    for k, item in enumerate((output,) if signature.is_single else output):
        if not isinstance(item, torch.Tensor):
            if isinstance(item, list | tuple | dict) and "Tensor" in repr(item):
                kind = type(item).__name__
                raise Unsupported(f"function {func}: output {k} is a {kind} of tensors; return them one by one")
            signature.positions.append(None)
            signature.constants.append(item)
            continue
        place = len(results)
        if any(item is t for t in context.not_differentiable):
            signature.not_differentiable.append(place)
        source = _index(given, item)
        if source is not None and any(item is t for t in context.dirty):
            signature.returned[place] = source
        signature.positions.append(place)
        signature.constants.append(None)
        results.append(item)
    dirty = [_index(given, t) for t in context.dirty]
    signature.dirty = [i for i in dirty if i is not None]
    return signature, results


def _try_out(func: str, arguments: str, values: Sequence[Any]) -> list[torch.Tensor]:
    """Runs ``forward`` on tensors without contents, and notes what it gives."""
    cls = class_of(func)
    given = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
    args, kwargs = decode(arguments).fill(given)
    try:
        output, context = _call_forward(cls, args, kwargs)
    except Exception as error:
        output, context = _ask_example(cls, func, given, arguments, error)
    signature, results = _describe(func, output, context, given)
    _signatures[func, arguments] = signature
    seen: list[Any] = []
    for i, result in enumerate(results):  # a custom operator may not return the same memory twice
        results[i] = result.clone() if any(result is s for s in (*seen, *values)) else result
        seen.append(result)
    return results


def _ask_example(cls: Any, func: str, given: list[Any], arguments: str, error: Exception) -> tuple[Any, _TrialContext]:
    """For functions that need real numbers (numpy, ``item()``): a run on made-up ones tells types and shapes."""
    from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

    if not any(isinstance(t, FakeTensor) for t in given):
        raise error
    with unset_fake_temporarily():
        example = [None if t is None else _made_up(t) if isinstance(t, torch.Tensor) else _hint(t) for t in given]
        args, kwargs = decode(arguments).fill(example)
        try:
            output, context = _call_forward(cls, args, kwargs)
        except Exception:
            raise error from None
    replaced: dict[int, torch.Tensor] = {}

    def stand_in(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        source = _index(example, item)
        if source is not None:
            return given[source]
        if id(item) not in replaced:
            replaced[id(item)] = _empty(func, item, example, given, error)
        return replaced[id(item)]

    context.dirty = tuple(stand_in(t) for t in context.dirty)
    context.not_differentiable = tuple(stand_in(t) for t in context.not_differentiable)
    outputs = tuple(stand_in(o) for o in output) if isinstance(output, tuple) else stand_in(output)
    return outputs, context


def _made_up(tensor: torch.Tensor) -> torch.Tensor:
    sizes = [_hint(s) for s in tensor.shape]
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return torch.rand(sizes, dtype=tensor.dtype)
    return torch.zeros(sizes, dtype=tensor.dtype)


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _empty(func: str, item: torch.Tensor, example: list[Any], given: list[Any], error: Exception) -> torch.Tensor:
    """A tensor without contents, with sizes that follow from the inputs' where those may vary."""
    tensors = [(e, g) for e, g in zip(example, given, strict=True) if isinstance(e, torch.Tensor)]
    shape: Shape | None = next((g.shape for e, g in tensors if e.shape == item.shape), None)
    if shape is None and all(isinstance(s, int) for _, g in tensors for s in g.shape):
        shape = item.shape
    if shape is None:
        raise Unsupported(
            f"function {func}: its forward needs real numbers, and the shape {tuple(item.shape)} of a result is no "
            "argument's, so it cannot be captured with sizes that vary; export with fixed sizes"
        ) from error
    empty: torch.Tensor = tensors[0][1].new_empty(shape, dtype=item.dtype)
    return empty


# ---- the operator of captured graphs
def _fake(tensors: Sequence[Any], sizes: Sequence[Any], func: str, arguments: str) -> list[torch.Tensor]:
    return _try_out(func, arguments, [*tensors, *sizes])


def _run(tensors: Sequence[Any], sizes: Sequence[Any], func: str, arguments: str) -> list[torch.Tensor]:
    """The operator outside of the engine: captured graphs can be run by torch, too."""
    given = [t.clone() if isinstance(t, torch.Tensor) else t for t in (*tensors, *sizes)]
    args, kwargs = decode(arguments).fill(given)
    output = original_apply(class_of(func), *args, **kwargs)
    results = [o for o in (output if isinstance(output, tuple) else (output,)) if isinstance(o, torch.Tensor)]
    if (func, arguments) not in _signatures:
        _try_out(func, arguments, [*tensors, *sizes])
    return [r.clone() if any(r is s for s in results[:i]) else r for i, r in enumerate(results)]


torch.library.register_fake("backpass::python_op", _fake, lib=library)
library.impl("python_op", _run, "CompositeExplicitAutograd")


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


torch.library.register_autograd("backpass::python_op", _differentiate, setup_context=_set_up, lib=library)


# ---- interception of Function.apply
_apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]
_original = types.FunctionType(_apply.__code__, _apply.__globals__, "apply", _apply.__defaults__, _apply.__closure__)
_lock = threading.Lock()
_depth = 0
_here = threading.local()


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
    was_on = getattr(_here, "on", False)
    with _lock:
        _depth += 1
        _apply.__code__ = _Stand.apply.__code__  # the code, not the name: `f = F.apply` may have been bound before
    _here.on = True
    try:
        yield
    finally:
        _here.on = was_on
        with _lock:
            _depth -= 1
            if _depth == 0:
                _apply.__code__ = _original.__code__


@contextmanager
def transparent_autograd_functions() -> Iterator[None]:
    """User functions called by this thread are looked through again."""
    was_on = getattr(_here, "on", False)
    _here.on = False
    try:
        yield
    finally:
        _here.on = was_on


def intercept(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``Function.apply`` does in the meantime."""
    if not getattr(_here, "on", False) or cls.__module__.split(".")[0] in ("torch", "functorch"):
        return original_apply(cls, *args, **kwargs)
    if has_setup_context(cls):
        args, kwargs = _with_defaults(cls, args, kwargs)
    tensors: list[torch.Tensor] = []
    sizes: list[torch.SymInt] = []
    _walk((args, kwargs), lambda t: tensors.append(t), torch.Tensor)
    _walk((args, kwargs), lambda s: sizes.append(s), torch.SymInt)

    def slot(value: Any) -> dict[str, int] | None:
        if isinstance(value, torch.Tensor):
            return {"tensor": _index(tensors, value) or 0}
        if isinstance(value, torch.SymInt):
            return {"int": len(tensors) + (_index(sizes, value) or 0)}
        if isinstance(value, torch.SymFloat | torch.SymBool):
            raise Unsupported(f"function {name_of(cls)}: got a {type(value).__name__} as argument; pass a tensor")
        return None

    func = name_of(cls)
    arguments = encode(args, kwargs, slot)
    results = torch.ops.backpass.python_op(tensors, sizes, func, arguments)
    return _finish(signature_of(func, arguments), results, tensors)


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
