"""Nested data taken apart and put together again: tensors in a list, and a schema of what was around them."""

from __future__ import annotations

from backpass import _needs_torch  # noqa: F401

# isort: split

import copy
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Union

import torch


class PrimitiveType:
    """Numbers of Python, which may stand for tensors without dimensions."""

    _primitive_types = frozenset({int, bool, float})

    @staticmethod
    def is_primitive_type(value: Any) -> bool:
        return type(value) in PrimitiveType._primitive_types

    @staticmethod
    def get_tensor(value: Any, device: Any) -> torch.Tensor:
        return torch.tensor(value, device=device)

    @staticmethod
    def get_primitive_dtype(value: Any) -> str:
        """The type as text; a bool's tells its value, since modules branch on them."""
        return f"{type(value)}_{value}" if isinstance(value, bool) else str(type(value))


ORTModelInputOutputType = Union[  # noqa: UP007  # recursive
    None,
    str,
    int,
    bool,
    float,
    torch.Tensor,
    Sequence["ORTModelInputOutputType"],
    Mapping[str, "ORTModelInputOutputType"],
]
ORTModelInputOutputSchemaType = Union[
    None,
    str,
    "_TensorStub",
    Sequence["ORTModelInputOutputSchemaType"],
    Mapping[str, "ORTModelInputOutputSchemaType"],
]


@dataclass(eq=False, repr=False, slots=True)
class _TensorStub:
    """Stands in a schema for the tensor of that number."""

    tensor_idx: int
    name: str | None = None
    dtype: str | None = None
    shape: Any = None
    shape_dims: int | None = None

    def __repr__(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return f"_TensorStub({','.join(f'{name}={value}' for name, value in values if value is not None)})"

    def __eq__(self, other: object) -> bool:
        if not other:
            return False
        if not isinstance(other, _TensorStub):
            raise NotImplementedError(f"_TensorStub == other: got {type(other).__name__}, expected a _TensorStub")
        return all(getattr(self, field.name) == getattr(other, field.name) for field in fields(self))

    __hash__ = None  # type: ignore[assignment]  # it can be changed


def extract_data_and_schema(
    data: Any, constant_as_tensor: bool = False, device: torch.device | None = None
) -> tuple[list[torch.Tensor], Any]:
    """All tensors of nested sequences and mappings, depth first, and the same nest with stubs in their places.

    Numbers stay in the schema, or are made tensors with ``constant_as_tensor``; strings and None stay.
    """
    tensors: list[torch.Tensor] = []

    def add(tensor: torch.Tensor, dtype: str, name: str) -> _TensorStub:
        tensors.append(tensor)
        return _TensorStub(len(tensors) - 1, name, dtype, shape_dims=tensor.dim())

    def stubbed(value: Any, name: str) -> Any:
        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            return add(value, str(value.dtype), name)
        if isinstance(value, str) or PrimitiveType.is_primitive_type(value):
            _warn_of_constant(value)
            if isinstance(value, str) or not constant_as_tensor:
                return value
            return add(PrimitiveType.get_tensor(value, device), PrimitiveType.get_primitive_dtype(value), name)
        if isinstance(value, Sequence):
            return _like(value, [stubbed(v, f"{name}_{i}" if name else str(i)) for i, v in enumerate(value)])
        if isinstance(value, Mapping):
            return _mapping_like(value, {k: stubbed(v, f"{name}_{k}" if name else str(k)) for k, v in value.items()})
        raise TypeError(f"data: got {type(value)}, expected tensors, numbers, strings, sequences and mappings of them")

    schema = stubbed(data, "")
    return tensors, schema


def unflatten_data_using_schema(data: Sequence[torch.Tensor], schema: Any) -> Any:
    """The nest that ``schema`` describes, with the tensors of ``data`` in it."""
    if schema is None or isinstance(schema, str) or PrimitiveType.is_primitive_type(schema):
        return schema
    if isinstance(schema, _TensorStub):
        found = data[schema.tensor_idx]
        if not isinstance(found, torch.Tensor):
            raise AssertionError(f"data[{schema.tensor_idx}]: got {type(found)}, expected a torch.Tensor")
        return found
    if isinstance(schema, Sequence):
        return _like(schema, [unflatten_data_using_schema(data, part) for part in schema])
    if isinstance(schema, Mapping):
        return _mapping_like(schema, {key: unflatten_data_using_schema(data, part) for key, part in schema.items()})
    raise TypeError(f"schema: got {type(schema)}, expected what extract_data_and_schema returns")


def _like(sequence: Any, values: list[Any]) -> Any:
    kind: Any = type(sequence)
    return kind._make(values) if hasattr(kind, "_make") else kind(values)  # a namedtuple takes them one by one


def _mapping_like(mapping: Any, values: dict[Any, Any]) -> Any:
    """Mappings differ in what makes them (dataclasses of Hugging Face, dicts with a default): a copy always works."""
    made = copy.copy(mapping)
    for key, value in values.items():
        made[key] = value
    return made


def _warn_of_constant(value: Any) -> None:
    warnings.warn(
        f"a constant among the data: got {type(value)}, expected tensors; give it to the constructor of the module",
        stacklevel=2,
    )


def map_tensors(function: Callable[[int, torch.Tensor], torch.Tensor], data: Any) -> Any:
    """The same nest with ``function(number, tensor)`` in the place of each tensor; what holds none stays as it is."""
    count = itertools.count()

    def mapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return function(next(count), value)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return _like(value, [mapped(v) for v in value])
        if isinstance(value, Mapping):
            return _mapping_like(value, {key: mapped(v) for key, v in value.items()})
        return value

    return mapped(data)


def extract_tensors(data: Any) -> list[torch.Tensor]:
    """The tensors that `map_tensors` meets, in that order."""
    found: list[torch.Tensor] = []

    def note(_: int, tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, data)
    return found
