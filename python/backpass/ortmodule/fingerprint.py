"""A key for an export: everything that decides which graph a capture gives, and nothing that does not.

Weights do not count; code, attributes, shapes and structures do. Code is the source files of the classes in the module
tree and, beside what is installed, of whatever the globals of those files refer to; and what `Description` finds from
these classes on: values that were computed, given on the command line, or put in the place of others.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import backpass
from backpass.ortmodule.description import Description, NoKeyError, class_name, is_installed, is_versioned
from backpass.ortmodule.tree import ModuleTree

_MEMBERS = ("_parameters", "_buffers", "_modules")
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def fingerprint(module: nn.Module, tree: ModuleTree, call: Iterable[Any]) -> str:
    """`call` is what else decides: structure, shapes and dtypes of the arguments, options."""
    digest = hashlib.sha256()

    def add(*values: object) -> None:
        digest.update(repr(values).encode())

    add(backpass.__version__, torch.__version__, platform.python_version(), *call)
    parts = list(module.named_modules(remove_duplicate=False))
    description = Description(add, {id(part): path for path, part in reversed(parts)})
    for path, part in parts:
        if any(vars(part)[hooks] for hooks in _FORWARD_HOOKS):
            raise NoKeyError(f"{class_name(type(part))} has hooks, which are part of the graph")
        add(path, class_name(type(part)), part.training)
        own = {
            n: v for n, v in vars(part).items() if n not in _MEMBERS and n != "training" and not n.endswith("_hooks")
        }
        description.members(own)
    for name in tree.slots:
        tensor = tree.tensor(name)
        add(name, tuple(tensor.shape), tensor.dtype, name in tree.parameters)
    add([(a[1], b[1]) for a, b in tree.ties])
    classes = dict.fromkeys(base for m in tree.modules for base in type(m).__mro__)
    for name, content in _sources(classes):
        add(name, content)
    for kind in classes:
        description.value(kind)
    return digest.hexdigest()


def _sources(classes: Iterable[type]) -> list[tuple[str, str]]:
    """Names and digests of the files that hold the code of `classes` and what they use."""
    todo = [sys.modules.get(kind.__module__) for kind in classes]
    found: dict[str, str] = {}
    while todo:
        module = todo.pop()
        if not isinstance(module, types.ModuleType) or module.__name__ in found:
            continue
        path = getattr(module, "__file__", None)
        if is_versioned(module.__name__):
            continue
        if path is None or not path.endswith(".py"):
            if module.__name__ == "__main__":
                raise NoKeyError("the module's class was typed in: it has no source file")
            continue
        found[module.__name__] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        if not is_installed(path):
            todo += [inspect.getmodule(v) for v in vars(module).values() if callable(v) or inspect.ismodule(v)]
    return sorted(found.items())
