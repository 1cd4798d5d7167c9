"""What a call of a user function gives, learnt by running its ``forward`` on tensors without contents."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import library

from backpass import Unsupported
from backpass.torch.arguments import decode, with_marks
from backpass.torch.functions import class_of, has_setup_context

Shape = Sequence[int | torch.SymInt]
here = threading.local()


@contextmanager
def transparent_autograd_functions() -> Iterator[None]:
    """User functions called by this thread are looked through, whatever is around."""
    was_on = getattr(here, "on", False)
    here.on = False
    try:
        yield
    finally:
        here.on = was_on


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


signatures: dict[tuple[str, str], Signature] = {}


def signature_of(func: str, arguments: str) -> Signature:
    return signatures[func, arguments]


# ---- autocast
def casting(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Within, autocast is as it was around a captured call, whatever it is around this one."""
    if dtype == (torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None):
        return nullcontext()
    return torch.autocast("cpu", dtype, enabled=dtype is not None)


def _note_autocast(tensors: Sequence[Any], sizes: Sequence[Any], func: str, arguments: str) -> list[torch.Tensor]:
    """Kernel of ``backpass::python_op`` under autocast, which is off again where the function runs: notes its type."""
    dtype = str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")
    noted = with_marks(arguments, autocast=dtype)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        results: list[torch.Tensor] = torch.ops.backpass.python_op(tensors, sizes, func, noted)
    signatures[func, arguments] = signatures[func, noted]
    return results


_kernels: Any = library.Library("backpass", "IMPL")  # type: ignore[no-untyped-call]
_kernels.impl("python_op", _note_autocast, "AutocastCPU")


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


def index_of(tensors: Sequence[Any], wanted: Any) -> int | None:
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
        source = index_of(given, item)
        if source is not None and any(item is t for t in context.dirty):
            signature.returned[place] = source
        signature.positions.append(place)
        signature.constants.append(None)
        results.append(item)
    dirty = [index_of(given, t) for t in context.dirty]
    signature.dirty = [i for i in dirty if i is not None]
    return signature, results


def try_out(func: str, arguments: str, values: Sequence[Any]) -> list[torch.Tensor]:
    """Runs ``forward`` on tensors without contents, and notes what it gives."""
    cls, call = class_of(func), decode(arguments)
    given = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
    args, kwargs = call.fill(given)
    with casting(call.autocast):
        try:
            output, context = _call_forward(cls, args, kwargs)
        except Exception as error:
            output, context = _ask_example(cls, func, given, arguments, error)
    signature, results = _describe(func, output, context, given)
    signatures[func, arguments] = signature
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
        source = index_of(example, item)
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
