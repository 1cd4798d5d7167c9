"""What torch does differently while a module is captured: a graph must not depend on it, or would lose it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def _replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Another function in place of `owner.name`, for this thread: others get the old one."""
    old, thread = getattr(owner, name), threading.get_ident()

    def either(*args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == thread else old)(*args, **kwargs)

    setattr(owner, name, either)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextlib.contextmanager
def masks_as_given() -> Iterator[None]:
    """nn.TransformerEncoder and -Decoder look into a mask to see whether it is the causal one, which a graph for any
    mask must not depend on. That they do so is a matter of speed: the mask says the same."""
    from torch.nn.modules import transformer

    with _replaced(transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: is_causal is True):
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

    with _replaced(torch.inference_mode, "__enter__", as_grad_mode):
        yield
