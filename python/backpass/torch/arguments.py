"""Arguments of a call as text: what nodes that torch runs carry in their attribute ``arguments``.

The text is JSON. Numbers, strings, None and lists are themselves; everything else is an object with one key::

    {"tensor": 0}   tensor input 0 of the node        {"tuple": [...]}  {"dict": [[key, value], ...]}
    {"int": 2}      the number tensor input 2 holds   {"dtype": "float32"}  {"device": "cpu"}  {"slice": [0, 4, 1]}
    {"object": "Config@1"}   a Python object that this process keeps; such a call means nothing to another process

Beside ``args`` and ``kwargs`` there may be ``dirty``, tensors that are changed in place, and ``autocast``, the element
type that ``torch.autocast`` around the call casts to.

:func:`encode` makes it, :func:`decode` makes a :class:`Call` of it, whose :meth:`Call.fill` gives the arguments back.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from backpass import InvalidInput

Slot = Callable[[Any], dict[str, int] | None]

_FORMS: dict[type, str] = {torch.layout: "layout", torch.memory_format: "memory_format", torch.dtype: "dtype"}
_lock = threading.Lock()
_objects: dict[str, Any] = {}
_names: dict[int, str] = {}


def encode(args: Sequence[Any], kwargs: dict[str, Any], slot: Slot, **more: Any) -> str:
    """The text. ``slot`` is asked first about every value: its answer stands for tensors and sizes, None means no."""
    form: dict[str, Any] = {"args": [_encode(a, slot) for a in args]}
    if kwargs:
        form["kwargs"] = {name: _encode(value, slot) for name, value in kwargs.items()}
    form.update({name: value for name, value in more.items() if value})
    return json.dumps(form, separators=(",", ":"))


def with_marks(text: str, **more: Any) -> str:
    """The same call with further entries beside ``args`` and ``kwargs``."""
    form = json.loads(text)
    form.update({name: value for name, value in more.items() if value})
    return json.dumps(form, separators=(",", ":"))


def is_portable(text: str) -> bool:
    """Whether another process can make sense of the arguments."""
    return '{"object":' not in text


def _encode(value: Any, slot: Slot) -> Any:
    found = slot(value)
    if found is not None:
        return found
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, immutable_list):
        return [_encode(v, slot) for v in value]
    if isinstance(value, torch.Size) or type(value) is tuple:
        kind = "size" if isinstance(value, torch.Size) else "tuple"
        return {kind: [_encode(v, slot) for v in value]}
    if type(value) in (dict, immutable_dict):
        return {"dict": [[_encode(k, slot), _encode(v, slot)] for k, v in value.items()]}
    if type(value) is slice:
        return {"slice": [_encode(v, slot) for v in (value.start, value.stop, value.step)]}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for named, form in _FORMS.items():
        if isinstance(value, named):
            return {form: str(value).removeprefix("torch.")}
    return {"object": _name_of(value)}


def _name_of(value: Any) -> str:
    with _lock:
        if id(value) not in _names:
            name = f"{type(value).__qualname__}@{len(_objects) + 1}"
            _names[id(value)] = name
            _objects[name] = value  # kept for good: the number stays its own
        return _names[id(value)]


class Call:
    """A call whose tensors are still to come."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            form = json.loads(text)
            self.args = list(form.get("args", []))
            self.kwargs = dict(form.get("kwargs", {}))
            self.dirty = [int(i) for i in form.get("dirty", [])]
            self.autocast: torch.dtype | None = getattr(torch, form["autocast"]) if "autocast" in form else None
        except (ValueError, TypeError, AttributeError):
            raise self._invalid() from None

    def fill(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        try:
            args = [_decode(a, tensors) for a in self.args]
            return args, {name: _decode(value, tensors) for name, value in self.kwargs.items()}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise self._invalid() from None

    def _invalid(self) -> InvalidInput:
        return InvalidInput(f"arguments: got {self.text[:200]!r}, expected what backpass.torch writes")


@functools.lru_cache(maxsize=4096)
def decode(text: str) -> Call:
    return Call(text)


def _decode(form: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(form, list):
        return [_decode(v, tensors) for v in form]
    if not isinstance(form, dict):
        return form
    ((kind, value),) = form.items()
    if kind == "tensor":
        return tensors[value]
    if kind in _SCALARS:
        held = tensors[value]
        return _SCALARS[kind](held.item()) if isinstance(held, torch.Tensor) else held
    return _READERS[kind](value, tensors)


def _object(name: str, _: Sequence[Any]) -> Any:
    if name not in _objects:
        raise InvalidInput(
            f"argument {name!r} is a Python object of the process that exported the model; export it here as well"
        )
    return _objects[name]


def _torch_name(name: str, _: Sequence[Any]) -> Any:
    return getattr(torch, name)


_SCALARS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}
_READERS: dict[str, Callable[[Any, Sequence[Any]], Any]] = {
    "tuple": lambda v, t: tuple(_decode(x, t) for x in v),
    "size": lambda v, t: torch.Size([_decode(x, t) for x in v]),
    "dict": lambda v, t: {_decode(k, t): _decode(x, t) for k, x in v},
    "slice": lambda v, t: slice(*(_decode(x, t) for x in v)),
    "complex": lambda v, _: complex(*v),
    "device": lambda v, _: torch.device(v),
    "dtype": _torch_name,
    "layout": _torch_name,
    "memory_format": _torch_name,
    "object": _object,
}
