"""A key for an export: everything that decides which graph a capture gives, and nothing that does not.

Weights do not count; code, plain attributes, shapes and structures do. Code is the source files of the classes in the
module tree and, beside what is installed, of whatever the globals of those files refer to; and the values of globals
that methods of those classes read, since they may have been computed.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import platform
import site
import sys
import sysconfig
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import backpass
from backpass.ortmodule.tree import ModuleTree

_MEMBERS = ("_parameters", "_buffers", "_modules")
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_TORCH = str(Path(torch.__file__).parents[1])
_INSTALLED = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"), _TORCH)


class NoKeyError(Exception):
    """Something decides about the graph that cannot be compared between processes."""


def fingerprint(module: nn.Module, tree: ModuleTree, call: Iterable[Any]) -> str:
    """`call` is what else decides: structure, shapes and dtypes of the arguments, options."""
    digest = hashlib.sha256()

    def add(*values: object) -> None:
        digest.update(repr(values).encode())

    add(backpass.__version__, torch.__version__, platform.python_version(), *call)
    for path, part in module.named_modules(remove_duplicate=False):
        if any(vars(part)[hooks] for hooks in _FORWARD_HOOKS):
            raise NoKeyError(f"{_class_name(type(part))} has hooks, which are part of the graph")
        add(path, _class_name(type(part)), part.training)
        for name, value in sorted(vars(part).items()):
            if name in _MEMBERS or name == "training" or name.endswith("_hooks") or _is_hash(name, value):
                continue
            add(name, *_described(value, 0))
    for name in tree.slots:
        tensor = tree.tensor(name)
        add(name, tuple(tensor.shape), tensor.dtype, name in tree.parameters)
    add([(a[1], b[1]) for a, b in tree.ties])
    classes = {base for m in tree.modules for base in type(m).__mro__}
    for name, content in _sources(classes):
        add(name, content)
    for name, value in sorted(_globals_read(classes).items()):
        add(name, *_described(value, 0))
    return digest.hexdigest()


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _described(value: Any, depth: int) -> Iterable[Any]:
    """A value in terms that mean the same in another process."""
    if depth > 6:
        raise NoKeyError("attributes are nested too deep")
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
        yield value
    elif isinstance(value, torch.Tensor):
        yield value.dtype, tuple(value.shape), _content(value)
    elif isinstance(value, np.ndarray):
        yield str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    elif isinstance(value, list | tuple | set | frozenset):
        members = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        yield type(value).__name__, [list(_described(v, depth + 1)) for v in members]
    elif isinstance(value, dict):
        yield type(value).__name__, [(repr(k), list(_described(v, depth + 1))) for k, v in value.items()]
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        yield value.__module__, value.__qualname__
        if isinstance(value, types.FunctionType) and "<" in value.__qualname__:  # lambdas and local functions
            yield _described_code(value.__code__)
            yield [list(_described(c.cell_contents, depth + 1)) for c in value.__closure__ or ()]
            yield list(_described([value.__defaults__, value.__kwdefaults__], depth + 1))
    elif isinstance(value, functools.partial):
        yield "partial", [list(_described(v, depth + 1)) for v in (value.func, value.args, value.keywords)]
    elif isinstance(value, types.MethodType | nn.Module):
        yield type(value).__name__, _class_name(type(getattr(value, "__self__", value)))
    elif hasattr(value, "__dict__"):
        yield _class_name(type(value))
        for name, member in sorted(vars(value).items()):
            if not _is_hash(name, member):
                yield name, list(_described(member, depth + 1))
    else:
        yield _class_name(type(value)), repr(value).split(" at 0x")[0]


def _is_hash(name: str, value: Any) -> bool:
    """Python's hash() of something, as transformers' GenerationConfig keeps one: another number in every process."""
    return name.startswith("_") and name.endswith("_hash") and type(value) is int


def _described_code(code: types.CodeType) -> Any:
    constants = [_described_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, code.co_names, constants


def _globals_read(classes: Iterable[type]) -> dict[str, Any]:
    """Plain values among the globals that methods of `classes`, and functions these call, refer to."""
    found: dict[str, Any] = {}
    todo = [f for kind in classes for f in vars(kind).values() if isinstance(f, types.FunctionType)]
    seen: set[types.CodeType] = set()
    while todo:
        function = todo.pop()
        codes = [function.__code__]
        if (
            function.__code__ in seen
            or _is_versioned(function.__module__)
            or _is_installed(function.__code__.co_filename)
        ):
            continue
        seen.add(function.__code__)
        for code in codes:
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
            for name in code.co_names:
                value = function.__globals__.get(name)
                if isinstance(value, types.FunctionType):
                    todo.append(value)
                elif isinstance(value, bool | int | float | str | list | tuple | dict):
                    found[f"{function.__module__}.{name}"] = value
    return found


def _is_versioned(module: str | None) -> bool:
    """Whether the key holds a module's version, or Python's."""
    return (module or "").partition(".")[0] in ("torch", "builtins", "typing", "abc", "collections", "backpass")


def _is_installed(path: str) -> bool:
    return path.startswith(_INSTALLED)


def _content(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(data.tobytes()).hexdigest()


def _sources(classes: Iterable[type]) -> list[tuple[str, str]]:
    """Names and digests of the files that hold the code of `classes` and what they use."""
    todo = [sys.modules.get(kind.__module__) for kind in classes]
    found: dict[str, str] = {}
    while todo:
        module = todo.pop()
        if not isinstance(module, types.ModuleType) or module.__name__ in found:
            continue
        path = getattr(module, "__file__", None)
        if _is_versioned(module.__name__):
            continue
        if path is None or not path.endswith(".py"):
            if module.__name__ == "__main__":
                raise NoKeyError("the module's class was typed in: it has no source file")
            continue
        found[module.__name__] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        if not _is_installed(path):
            todo += [inspect.getmodule(v) for v in vars(module).values() if callable(v) or inspect.ismodule(v)]
    return sorted(found.items())
