"""ORTTrainerOptions: what `ORTTrainer` is told besides model, description and optimizer.

    options = ORTTrainerOptions({"batch": {"gradient_accumulation_steps": 4}, "device": {"id": "cpu"}})
    options.batch.gradient_accumulation_steps  # 4
    options.utils.grad_norm_clip = False

What is left out has a default; what is unknown is an error. docs/orttrainer2.md says what each option means on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from backpass.training._needs_trainer import need
from backpass.training._options_schema import OPEN, SCHEMA

__all__ = ["ORTTrainerOptions"]


class _Options(SimpleNamespace):
    """Options of one level, as attributes that may be written."""


class ORTTrainerOptions(_Options):
    """Options by the names and defaults of the original, as attributes of attributes."""

    _main_class_name = "ORTTrainerOptions"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        validator = need("cerberus", "ORTTrainerOptions").Validator(SCHEMA)
        given = {} if options is None else _copied(options)
        validated = validator.validated(given)
        if validated is None:
            raise ValueError(f"Invalid options: {validator.errors}")
        self._original_opts = {} if options is None else options
        self._validated_opts = validated
        for name, value in validated.items():
            setattr(self, name, _attributes(name, value))

    def _copy(self) -> ORTTrainerOptions:
        """The same options, that can be changed without changing these: schedulers and scalers are the same objects."""
        new = ORTTrainerOptions.__new__(ORTTrainerOptions)
        for name, value in vars(self).items():
            setattr(new, name, _twin(value))
        return new

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{n!r}: {v!r}" for n, v in vars(self).items() if n in self._validated_opts) + "}"


def _attributes(name: str, value: Any) -> Any:
    if name in OPEN or not isinstance(value, dict):
        return value
    return _Options(**{inner: _attributes(inner, kept) for inner, kept in value.items()})


def _copied(value: Any) -> Any:
    """Dicts and lists anew, everything else as it is: validation fills in defaults, and callers keep what they gave."""
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, list) else value


def _twin(value: Any) -> Any:
    if isinstance(value, _Options):
        return _Options(**{name: _twin(inner) for name, inner in vars(value).items()})
    return copy.copy(value) if isinstance(value, (list, dict)) else value
