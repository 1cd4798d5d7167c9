"""Description: values and code in terms that mean the same in another process."""

from __future__ import annotations

import enum
import functools
import hashlib
import logging
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

_TORCH = str(Path(torch.__file__).parents[1])
_INSTALLED = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"), _TORCH)
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, slice, range, type(None), type(...))
_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    types.MethodType: lambda method: (method.__func__, method.__self__),
    functools.partial: lambda partial: (partial.func, partial.args, partial.keywords),
    staticmethod: lambda method: (method.__func__,),
    classmethod: lambda method: (method.__func__,),
    property: lambda found: (found.fget, found.fset),
    set: lambda members: sorted(members, key=repr),
    frozenset: lambda members: sorted(members, key=repr),
    Mapping: lambda mapping: [part for item in mapping.items() for part in item],
    list: iter,
    tuple: iter,
}
_BOOKKEEPING = ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl")
_MOST = 100_000  # values; who holds more is not worth a key
_DEEPEST = 60


class NoKeyError(Exception):
    """Something decides about the graph that cannot be compared between processes."""


class Description:
    """Hands to `add` all that values hold and functions read: constants, defaults, closures, globals, class attributes.

    Each object is described once. What is installed counts by its name: its version and files are in the key already.
    """

    def __init__(self, add: Callable[..., None], parts: Mapping[int, str]) -> None:
        """`parts`: modules, by id, that are described elsewhere, and what they are called."""
        self._add = add
        self._parts = parts
        self._seen: dict[int, tuple[int, Any]] = {}  # the object, so that no other gets its id
        self._depth = 0

    def members(self, values: Mapping[str, Any]) -> None:
        """Attributes by name."""
        for name, value in sorted(values.items()):
            if not _is_hash(name, value):
                self._add(name)
                self.value(value)

    def value(self, value: Any) -> None:
        """Anything. Raises NoKeyError where there is no end to it."""
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            self._add(type(value).__name__, value)
            return
        if id(value) in self._seen:
            self._add("again", self._seen[id(value)][0])
            return
        self._seen[id(value)] = len(self._seen), value
        if len(self._seen) > _MOST or self._depth > _DEEPEST:
            raise NoKeyError("attributes and globals hold too much, or are nested too deep")
        self._depth += 1
        self._object(value)
        self._depth -= 1

    def _object(self, value: Any) -> None:
        self._add(class_name(type(value)))
        if id(value) in self._parts:
            self._add(self._parts[id(value)])
        elif isinstance(value, type):
            self._kind(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.BuiltinFunctionType | types.ModuleType | logging.Logger):
            self._add(getattr(value, "__qualname__", getattr(value, "__name__", getattr(value, "name", ""))))
        elif isinstance(value, torch.Tensor):
            self._add(value.dtype, tuple(value.shape), _content(value))
        elif isinstance(value, np.ndarray | np.generic):
            self._add(str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest())
        elif isinstance(value, enum.Enum):
            self._add(value.name)
        else:
            self._held(value)

    def _held(self, value: Any) -> None:
        """What an object consists of."""
        held = next((parts(value) for kind, parts in _PARTS.items() if isinstance(value, kind)), ())
        for part in held:
            self.value(part)
        own = dict(getattr(value, "__dict__", {}))
        own.update({name: getattr(value, name, None) for name in _slots(type(value))})
        if own:
            self.members(own)
        elif not held and not isinstance(value, list | tuple | set | frozenset | Mapping):
            self._add(repr(value).split(" at 0x")[0])

    def _kind(self, kind: type) -> None:
        self._add(class_name(kind))
        for base in kind.__mro__:
            if is_versioned(base.__module__) or is_installed(_file_of(base)):
                continue
            self.members({name: v for name, v in vars(base).items() if name not in _BOOKKEEPING})

    def _function(self, function: types.FunctionType) -> None:
        self._add(function.__module__, function.__qualname__)
        if is_versioned(function.__module__) or is_installed(function.__code__.co_filename):
            return
        codes = list(_nested(function.__code__))
        for code in codes:
            self._add(code.co_code, code.co_names, [_constant(c) for c in code.co_consts])
        self.value(function.__defaults__)
        self.value(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:  # not filled yet
                self._add("empty")
        names = dict.fromkeys(name for code in codes for name in code.co_names)
        for name in names:
            if name in function.__globals__:
                self._add(name)
                self._read(function.__globals__[name], names)

    def _read(self, value: Any, names: Iterable[str]) -> None:
        """A global; of a module of the user's, what is read from it."""
        self.value(value)
        if not isinstance(value, types.ModuleType) or is_versioned(value.__name__):
            return
        if not is_installed(getattr(value, "__file__", None) or ""):
            self.members({name: vars(value)[name] for name in names if name in vars(value)})


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_versioned(module: str | None) -> bool:
    """Whether the key holds a module's version, or Python's."""
    return (module or "").partition(".")[0] in ("torch", "builtins", "typing", "abc", "collections", "backpass")


def is_installed(path: str) -> bool:
    return path.startswith(_INSTALLED)


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or ""


def _is_hash(name: str, value: Any) -> bool:
    """Python's hash() of something, as transformers' GenerationConfig keeps one: another number in every process."""
    return name.startswith("_") and name.endswith("_hash") and type(value) is int


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        found = vars(base).get("__slots__", ())
        yield from (found,) if isinstance(found, str) else found


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _constant(value: Any) -> str:
    """Members of a frozenset come in another order in every process."""
    if isinstance(value, types.CodeType):
        return ""  # it follows
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _content(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(data.tobytes()).hexdigest()
