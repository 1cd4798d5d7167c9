"""ModuleTree: what of a module its exported graph depends on, and whether that is still so."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import types
from typing import Any

import numpy as np
import torch
from torch import nn

from backpass import _core

_OWN = set(vars(nn.Module())) - {"training"}  # what every module holds for itself
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, enum.Enum, np.generic)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LARGE = 256  # entries of a container up to which it is compared by what it holds

Slot = tuple[dict[str, Any], str]


class ModuleTree:
    """A look at a module's parts, flags and plain attributes at one moment.

    Exported graphs hold the values that numbers, strings, flags, functions, unregistered tensors and containers of them
    had, on the module, its parts and their ``config`` objects, and what hooks did. `unchanged` sees when one of these
    differs: cheap enough for every call. Containers of more than 256 entries are told apart by identity and size.
    """

    def __init__(self, root: nn.Module) -> None:
        self.slots: dict[str, Slot] = {}  # of parameters and buffers, by name; tied ones by each of their names
        self.parameters: list[str] = []
        self.modules: list[nn.Module] = []
        self.is_lazy = False  # parameters get their shapes by the first call
        self._tables: list[dict[Any, Any]] = []  # of members, attributes, hooks
        self._hooks: list[tuple[dict[int, Any], tuple[int, ...]]] = []
        self._same: list[tuple[dict[str, Any], str, Any]] = []
        self._plain: list[tuple[dict[str, Any], str, Any]] = []
        self._containers: list[tuple[dict[str, Any], str, Any]] = []
        self._types: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._described: list[Any] = []
        self._seen: set[int] = set()
        self._add(root, "")
        self._described.append(tuple(self._types.items()))
        self._sizes = [(table, len(table)) for table in self._tables]
        self._given = list(self.slots.values())
        self.ties = self._find_ties()
        self.key = tuple(self._described)

    def _add(self, module: nn.Module, prefix: str) -> None:
        first = id(module) not in self._seen
        self._seen.add(id(module))
        for name, child in module._modules.items():
            if first:
                self._same.append((module._modules, name, child))
            if child is not None:
                self._add(child, f"{prefix}{name}.")
        for members in (module._parameters, module._buffers):
            for name, tensor in members.items():
                if tensor is None:
                    self._same.append((members, name, None))
                    continue
                self.slots[prefix + name] = (members, name)
                if nn.parameter.is_lazy(tensor):
                    self.is_lazy = True
                else:
                    self._types[prefix + name] = tuple(tensor.shape), tensor.dtype
                if members is module._parameters:
                    self.parameters.append(prefix + name)
        if first:
            self.modules.append(module)
            own = vars(module)
            hooks = [own[table] for table in _HOOKS]
            self._tables += [module._parameters, module._buffers, module._modules, own, *hooks]
            self._hooks += [(table, tuple(table)) for table in hooks if table]
            self._described.append((prefix, type(module), *map(tuple, hooks)))
            self._note(vars(module), _OWN)

    def _note(self, attributes: dict[str, Any], without: set[str]) -> None:
        names = []
        for name, value in attributes.items():
            if name in without:
                continue
            if is_plain(value):
                names.append(name)
            elif isinstance(value, _CONTAINERS):
                held = _contents(value)
                self._containers.append((attributes, name, held))
                self._described.append((name, held))
            elif _is_record(value):
                self._same.append((attributes, name, value))
                if id(value) not in self._seen:
                    self._seen.add(id(value))
                    self._note(vars(value), set())
        if names:
            values = tuple(attributes[name] for name in names)
            kinds = tuple(map(type, values))  # 2 == 2.0 == True, more or less
            self._plain += [(attributes, name, value) for name, value in zip(names, values, strict=True)]
            self._described.append((tuple(names), values, kinds))

    def _find_ties(self) -> list[tuple[Slot, Slot]]:
        """Places that hold the same tensor, which is one input of the graph."""
        first: dict[int, str] = {}
        ties = []
        for name, slot in self.slots.items():
            known = first.setdefault(id(slot[0][slot[1]]), name)
            other = self.slots[known]
            if known != name:
                self._described.append((known, name))
            if other[0] is not slot[0] or other[1] != slot[1]:  # else one module, reached in two ways
                ties.append((other, slot))
        return ties

    def unchanged(self) -> bool:
        """Whether a graph exported when this look was taken still says what the module computes."""
        return (
            _core.all_as_noted(self._sizes, self._same, self._plain, self._given)
            and (not self.ties or all(a[0][a[1]] is b[0][b[1]] for a, b in self.ties))
            and (not self._hooks or all(tuple(table) == keys for table, keys in self._hooks))
            and (not self._containers or all(_contents(a.get(n)) == held for a, n, held in self._containers))
        )

    def retyped(self) -> bool:
        """Whether a parameter or buffer has another shape or element type than when this look was taken.

        Not looked at for every call: the engine refuses such tensors, and then is the time to ask.
        """
        now = ((self.tensor(name), was) for name, was in self._types.items())
        return any((tuple(tensor.shape), tensor.dtype) != was for tensor, was in now)

    def tensor(self, name: str) -> torch.Tensor:
        members, key = self.slots[name]
        tensor: torch.Tensor = members[key]
        return tensor


_CONTAINERS = (list, tuple, dict, set, frozenset, functools.partial, slice, np.ndarray, torch.Tensor)


class _Same:
    """Stands for an object as itself, and keeps it, so that no other gets its id."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _contents(value: Any, depth: int = 0) -> Any:
    """What a container holds, to be compared and hashed; objects and what is large or nested deep by identity."""
    if is_plain(value):
        return type(value), value
    if isinstance(value, torch.Tensor):
        return _Same(value), value._version
    if isinstance(value, functools.partial):
        return _contents(value.func), _contents(value.args, depth + 1), _contents(value.keywords, depth + 1)
    if isinstance(value, slice):
        return slice, *(_contents(v, depth + 1) for v in (value.start, value.stop, value.step))
    if isinstance(value, np.ndarray) and value.size <= _LARGE and value.dtype != object:
        return value.dtype.str, value.shape, value.tobytes()
    if not isinstance(value, list | tuple | dict | set | frozenset) or depth > 4:
        return _Same(value)
    if len(value) > _LARGE:
        return _Same(value), len(value)
    members = value.values() if isinstance(value, dict) else value
    return (
        type(value),
        tuple(value) if isinstance(value, dict) else (),
        tuple([_contents(m, depth + 1) for m in members]),
    )


def _is_record(value: Any) -> bool:
    """Objects that hold settings."""
    if isinstance(value, types.SimpleNamespace | argparse.Namespace):
        return True
    return (hasattr(value, "to_dict") or dataclasses.is_dataclass(value)) and hasattr(value, "__dict__")


def is_plain(value: Any) -> bool:
    """Whether a value is compared by what it is, not by what it holds."""
    if type(value) is tuple:
        return all(is_plain(v) for v in value)
    return isinstance(value, _PLAIN + _FUNCTIONS)


def is_seen(value: Any) -> bool:
    """Whether ModuleTree notices that an attribute got this value."""
    return is_plain(value) or isinstance(value, torch.Tensor | nn.Module)
