"""What torch does differently while a module is captured: a graph must not depend on it, or would lose it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Another function in place of `owner.name`, for this thread: others get the old one."""
    old, thread = getattr(owner, name), threading.get_ident()

    def either(*args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == thread else old)(*args, **kwargs)

    setattr(owner, name, either)
    try:
        yield
    finally:
        setattr(owner, name, old)


def saving_unseen() -> contextlib.AbstractContextManager[Any]:
    """What tracing saves for its own gradients is not for hooks around the call, which may count it
    (torch.utils.checkpoint)."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def _length(value: Any) -> Any:
    return value.size(0) if isinstance(value, torch.Tensor) and value.dim() > 0 else len(value)


@contextlib.contextmanager
def lengths_as_extents(module: torch.nn.Module, *functions: Any) -> Iterator[None]:
    """len(tensor) in the files of a module's parts, and of these functions, is its first extent, which may vary: the
    built-in function gives a number, and the graph would be for that one alone."""
    code = [*(getattr(type(part), "forward", None) for part in module.modules()), *functions]
    files = {id(f.__globals__): f.__globals__ for f in code if hasattr(f, "__globals__")}
    changed = [names for names in files.values() if "len" not in names]
    try:
        for names in changed:
            names["len"] = _length
        yield
    finally:
        for names in changed:
            del names["len"]


@contextlib.contextmanager
def nothing_for_debuggers() -> Iterator[None]:
    """Neither the lines of Python that each node comes from, nor Python code of each state of the graph: nobody reads
    either here, and they take a quarter of the time. The code is made when somebody calls the graph."""
    from torch.fx import _lazy_graph_module, config

    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        with _lazy_graph_module._use_lazy_graph_module(True):
            yield
    finally:
        config.do_not_emit_stack_traces = before


@contextlib.contextmanager
def failures_told_once() -> Iterator[None]:
    """Whoever called is told why an operator failed; torch would write its own stack into the log before that. Other
    threads' records stay."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


@contextlib.contextmanager
def masks_as_given() -> Iterator[None]:
    """nn.TransformerEncoder and -Decoder look into a mask to see whether it is the causal one, which a graph for any
    mask must not depend on. That they do so is a matter of speed: the mask says the same."""
    from torch.nn.modules import transformer

    with replaced(transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: is_causal is True):
        yield


@contextlib.contextmanager
def inference_mode_as_no_grad() -> Iterator[None]:
    """torch.export writes down what no_grad does, and not what inference_mode does: to gradients it is the same."""
    enter = torch.inference_mode.__enter__

    def as_grad_mode(mode: Any) -> None:
        if not mode.mode and torch.is_grad_enabled():
            enter(mode)  # changes nothing
            return
        mode._inference_mode_context = torch.no_grad() if mode.mode else torch.enable_grad()  # its __exit__ leaves it
        mode._inference_mode_context.__enter__()

    with replaced(torch.inference_mode, "__enter__", as_grad_mode):
        yield


def _refused_hook(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "hook of a tensor: got one set in forward, expected none: the backward pass inside a graph is not run by "
        "torch, so it would not be called; put it on results or parameters outside of forward, or use a "
        "torch.autograd.Function"
    )


@contextlib.contextmanager
def tensor_hooks_refused() -> Iterator[None]:
    """A capture forgets hooks, which may change gradients."""
    with (
        replaced(torch.Tensor, "register_hook", _refused_hook),
        replaced(torch.Tensor, "register_post_accumulate_grad_hook", _refused_hook),
    ):
        yield


@contextlib.contextmanager
def transforms_left() -> Iterator[None]:
    """In graphs of torch.compile, transforms of torch.func are entered and left by calls: a failure between the two
    would leave torch inside."""
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    except BaseException:
        if torch.autograd.forward_ad._current_level < 0:
            with contextlib.suppress(RuntimeError):  # it was not entered
                torch._C._exit_dual_level(level=0)
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        raise


@contextlib.contextmanager
def foreign_parameters() -> Iterator[list[str]]:
    """Names in the graph of real parameters that require gradients, where forward meets some: those of the module are
    fakes at that time, and torch.export makes constants of others that no longer say what they were."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.fx.experimental.proxy_tensor import PythonKeyTracer

    found: list[str] = []
    create = PythonKeyTracer.create_arg

    def create_arg(tracer: Any, value: Any) -> Any:
        made = create(tracer, value)
        if isinstance(value, torch.nn.Parameter) and not isinstance(value, FakeTensor) and value.requires_grad:
            found.append(str(made.target))
        return made

    with replaced(PythonKeyTracer, "create_arg", create_arg):
        yield found


@contextlib.contextmanager
def real_numbers() -> Iterator[None]:
    """A capture computes with real numbers beside the trace, which decide where forward asks for one. (This is what
    torch.export.draft_export does, with a log of it all; but it copies plain tensors only, and computes with whatever
    is in memory for parameters.)"""
    from torch._functorch import config
    from torch._subclasses import fake_utils, meta_utils

    compare = fake_utils._check_fake_real_tensors

    def copied(source: Any) -> Any:
        return source.detach().clone() if isinstance(source, torch.Tensor) else None

    def copy(target: torch.Tensor, source: Any) -> None:
        if isinstance(source, torch.Tensor):
            target.copy_(source.detach())

    def compared(real: torch.Tensor, fake: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(fake.storage_offset(), int):  # else it is a row that data choose, and compares with nothing yet
            compare(real, fake, *args, **kwargs)

    with (
        config.patch(fake_tensor_propagate_real_tensors=True, generate_fake_kernels_from_real_mismatches=True),
        replaced(meta_utils, "_safe_copy", copy),
        replaced(meta_utils, "_safe_clone", copied),
        replaced(fake_utils, "_check_fake_real_tensors", compared),
    ):
        yield


def _equal(input: torch.Tensor, other: torch.Tensor) -> bool:
    return input.shape == other.shape and bool((input == other).all())


def _allclose(input: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
    return bool(torch.isclose(input, other, *args, **kwargs).all())


@contextlib.contextmanager
def comparisons_in_parts() -> Iterator[None]:
    """torch.equal and torch.allclose give a bool at once, which a capture refuses; that of a tensor it may ask for."""
    with contextlib.ExitStack() as stack:
        for owner in (torch, torch.Tensor):
            stack.enter_context(replaced(owner, "equal", _equal))
            stack.enter_context(replaced(owner, "allclose", _allclose))
        yield
