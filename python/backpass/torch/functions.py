"""User functions (``torch.autograd.Function``) by name: module, a dot, the qualified name of the class.

Different classes may share that name, as those a factory makes; the second one is called ``name#2``, and so on in the
order in which they are first used.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Iterable
from typing import Any

import torch

from backpass import InvalidInput

_lock = threading.Lock()
_classes: dict[str, type] = {}


def name_of(cls: type) -> str:
    """The name of a class, which is known by it from now on."""
    base = f"{cls.__module__}.{cls.__qualname__}"
    with _lock:
        name, count = base, 1
        while _classes.setdefault(name, cls) is not cls:
            count += 1
            name = f"{base}#{count}"
        return name


def class_of(name: str) -> type:
    """The class of that name: one that was used here, or one that its module holds."""
    found = _classes.get(name) or _import(name)
    if found is None:
        raise InvalidInput(
            f"function {name!r}: this process knows no torch.autograd.Function of that name; import what defines it, "
            "or export the model again"
        )
    with _lock:
        return _classes.setdefault(name, found)


def unresolved(names: Iterable[str]) -> list[str]:
    """Those that this process does not know and cannot import: local classes of another process, for example."""
    return [name for name in names if name not in _classes and _import(name) is None]


def _import(name: str) -> type | None:
    if "#" in name or "<locals>" in name:
        return None
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:cut])
        try:
            module = sys.modules.get(module_name) or importlib.import_module(module_name)
            found: Any = functools.reduce(getattr, parts[cut:], module)
        except (ImportError, AttributeError, ValueError):
            continue
        if isinstance(found, type) and issubclass(found, torch.autograd.Function):
            return found
    return None


def has_setup_context(cls: Any) -> bool:
    """Whether ``forward`` does without a context, which ``setup_context`` then fills."""
    return cls.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context
