"""What a module takes and returns, taken apart into tensors and put together again.

A *structure* is what is left of a nest of containers when its tensors are taken out: nested tuples that can be
compared, hashed and written as JSON by `dump`. Two calls with equal structures differ in their tensors only.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import keyword
import re
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from backpass.ortmodule.fallback import ORTModuleIOError, refusal

Structure = tuple[Any, ...]

TENSOR: Structure = ("tensor",)
NONE: Structure = ("constant", "none", "")
_NUMBERS: dict[type, str] = {bool: "bool", int: "int", float: "float"}
_SYMBOLIC: dict[type, str] = {torch.SymBool: "bool", torch.SymInt: "int", torch.SymFloat: "float"}
_READ: dict[str, Callable[[str], Any]] = {
    "none": lambda _: None,
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
    "str": str,
    "dtype": lambda text: getattr(torch, text),
    "device": torch.device,
}


def flatten(value: Any, tensors: list[torch.Tensor], objects: bool = False) -> Structure:
    """Appends the tensors of `value` and returns its structure. ORTModuleIOError for types nobody knows.

    With `objects`, these are taken apart into their attributes: right for results, which are new each time (caches of
    keys and values); not for arguments, whose identity may matter.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TENSOR
    if value is None:
        return NONE
    kind = type(value)
    if kind in _NUMBERS:
        return "constant", _NUMBERS[kind], repr(value)
    if kind is str:
        return "constant", "str", value
    if kind in (list, tuple):
        return kind.__name__, tuple(flatten(v, tensors, objects) for v in value)
    if kind is dict:
        return "dict", tuple(value), tuple(flatten(v, tensors, objects) for v in value.values())
    return _flatten_rare(value, tensors, objects)


def _flatten_rare(value: Any, tensors: list[torch.Tensor], objects: bool) -> Structure:
    kind = type(value)
    if kind in _SYMBOLIC:  # a size that the capture keeps variable: comes back as a tensor of one number
        make = torch.tensor if kind is torch.SymBool else torch.scalar_tensor
        tensors.append(make(value, dtype={"int": torch.int64, "float": torch.float64}.get(_SYMBOLIC[kind])))
        return "number", _SYMBOLIC[kind]
    for number, name in _NUMBERS.items():  # numpy's floats are Python's, too
        if isinstance(value, number) and not isinstance(value, enum.Enum):
            return "constant", name, repr(number(value))
    if isinstance(value, torch.dtype):
        return "constant", "dtype", str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return "constant", "device", str(value)
    if isinstance(value, enum.Enum):
        return "enum", kind, value.name
    return _flatten_container(value, kind, tensors, objects)


def _flatten_container(value: Any, kind: type, tensors: list[torch.Tensor], objects: bool) -> Structure:
    def each(values: Any) -> tuple[Structure, ...]:
        return tuple(flatten(v, tensors, objects) for v in values)

    if kind is defaultdict:
        return "defaultdict", value.default_factory, tuple(value), each(value.values())
    if kind is OrderedDict:
        return "mapping", kind, tuple(value), each(value.values())
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return "namedtuple", kind, each(value)
    if kind in pytree.SUPPORTED_NODES and kind is not torch.Size:
        children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        return "pytree", kind, _Context(context), each(children)
    if dataclasses.is_dataclass(value) and not isinstance(value, Mapping):
        names = tuple(field.name for field in dataclasses.fields(value))
        return "dataclass", kind, names, each(getattr(value, n) for n in names)
    if isinstance(value, dict | UserDict):
        return "mapping", kind, tuple(value), each(value.values())
    if isinstance(value, list | tuple):
        return "sequence", kind, each(value)
    if objects and isinstance(value, type):
        return "class", value
    if objects and hasattr(value, "__dict__") and not callable(value):
        return "object", kind, tuple(vars(value)), each(vars(value).values())
    raise refusal(
        ORTModuleIOError,
        f"type of an input or output: got {kind.__module__}.{kind.__qualname__}, expected a tensor, number, string, "
        "None, or a list, tuple, mapping or dataclass of these; convert it, or register it with "
        "torch.utils._pytree.register_pytree_node",
        TypeError,
    )


class _Context:
    """What a registered container keeps besides its members; compared by value where that is possible."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Context) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return 0  # contexts are often lists


def rebuild(structure: Structure, tensors: Iterator[Any]) -> Any:
    """The inverse of `flatten`: takes from `tensors` in order."""
    kind = structure[0]
    if kind == "tensor":
        return next(tensors)
    if kind == "constant":
        return _READ[structure[1]](structure[2])
    if kind == "number":
        return {"bool": bool, "int": int, "float": float}[structure[1]](next(tensors).item())
    if kind == "enum":
        return structure[1][structure[2]]
    if kind == "class":
        return structure[1]
    return _MAKERS[kind](structure, [rebuild(child, tensors) for child in structure[-1]])


def _as_it_was(structure: Structure, values: list[Any]) -> Any:
    """A dataclass or object, without running __init__ again."""
    result = object.__new__(structure[1])
    for name, value in zip(structure[2], values, strict=True):
        object.__setattr__(result, name, value)
    return result


_MAKERS: dict[str, Callable[[Structure, list[Any]], Any]] = {
    "list": lambda structure, values: values,
    "tuple": lambda structure, values: tuple(values),
    "dict": lambda structure, values: dict(zip(structure[1], values, strict=True)),
    "defaultdict": lambda structure, values: defaultdict(structure[1], zip(structure[2], values, strict=True)),
    "mapping": lambda structure, values: structure[1](dict(zip(structure[2], values, strict=True))),
    "namedtuple": lambda structure, values: structure[1](*values),
    "sequence": lambda structure, values: structure[1](values),
    "pytree": lambda structure, values: pytree.SUPPORTED_NODES[structure[1]].unflatten_fn(values, structure[2].value),
    "dataclass": _as_it_was,
    "object": _as_it_was,
}


def leaf_names(structure: Structure, name: str) -> Iterator[str]:
    """Names of the tensors: `name`, with `_<position>` or `_<key>` for each container around."""
    if structure[0] in ("tensor", "number"):
        yield name
    elif structure[0] not in ("constant", "enum", "class"):
        keyed = structure[0] in ("dict", "mapping", "defaultdict", "dataclass", "object")
        keys = structure[-2] if keyed else None
        for i, child in enumerate(structure[-1]):
            yield from leaf_names(child, f"{name}_{i if keys is None else keys[i]}")


def unique_names(names: Sequence[str]) -> list[str]:
    """Names that are Python's and ONNX's, each once."""
    made: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name)
        if not f"_{plain}".isidentifier():  # such as x², whose parts are letters for re
            plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if plain.isidentifier() and not keyword.iskeyword(plain) else f"_{plain}"
        candidate, count = plain, 1
        while candidate in made:
            count += 1
            candidate = f"{plain}_{count}"
        made.append(candidate)
    return made


def dump(structure: Structure) -> Any:
    """A structure as JSON. TypeError where it holds something that another process could not find again."""
    return [_dump_part(part) for part in structure]


def _dump_part(part: Any) -> Any:
    if isinstance(part, tuple):
        return {"t": [_dump_part(p) for p in part]}
    if isinstance(part, list):  # what a registered container keeps
        return {"l": [_dump_part(p) for p in part]}
    if isinstance(part, str) or part is None:
        return part
    if isinstance(part, bool | int | float):
        return {"n": part}
    if isinstance(part, type) and "<locals>" not in part.__qualname__:
        return {"class": [part.__module__, part.__qualname__]}
    if isinstance(part, _Context):
        return {"context": _dump_part(part.value)}
    raise TypeError(f"{part!r} cannot be written down")


def load(data: Any) -> Structure:
    """The inverse of `dump`. ValueError where it names something that `flatten` would not have: `rebuild` calls it."""
    structure = tuple(_load_part(part) for part in data)
    _check(structure)
    return structure


_KINDS: dict[str, Callable[[Any], bool]] = {
    "defaultdict": lambda made: made in (None, list, dict, set, tuple, str, int, float, bool),
    "mapping": lambda made: issubclass(made, dict | UserDict),
    "namedtuple": lambda made: issubclass(made, tuple) and hasattr(made, "_fields"),
    "sequence": lambda made: issubclass(made, list | tuple),
    "pytree": lambda made: made in pytree.SUPPORTED_NODES,
    "dataclass": dataclasses.is_dataclass,
    "object": lambda made: not issubclass(made, type),
    "enum": lambda made: issubclass(made, enum.Enum),
    "class": lambda made: True,
}


def _check(structure: Structure) -> None:
    kind = structure[0]
    if kind in _KINDS and not (isinstance(structure[1], type | None) and _KINDS[kind](structure[1])):
        raise ValueError(f"a {kind} of {structure[1]!r}")
    if kind not in ("tensor", "number", "constant", "enum", "class"):
        for child in structure[-1]:
            _check(child)


def _load_part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    ((kind, value),) = part.items()
    if kind == "t":
        return tuple(_load_part(p) for p in value)
    if kind == "l":
        return [_load_part(p) for p in value]
    if kind == "n":
        return value
    if kind == "context":
        return _Context(_load_part(value))
    found: Any = importlib.import_module(value[0])
    for name in value[1].split("."):
        found = getattr(found, name)
    return found
