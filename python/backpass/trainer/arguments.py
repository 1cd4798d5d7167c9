"""What users give to a step: descriptions of inputs and outputs, and values for them by position and by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Description:
    """An input or output of a model: its name, and its extents, of which those that are named may vary.

    Values are not compared with it. Where a value has another rank than described, all its extents are taken as they
    come.
    """

    name: str
    shape: Sequence[int | str] | None = None
    dtype: Any = None  #: a torch or numpy type, used only to stand in for an input that is left out

    def varying(self, rank: int) -> list[int]:
        """Axes of a value of this rank that the description lets vary."""
        if self.shape is None or len(self.shape) != rank:
            return []
        return [axis for axis, extent in enumerate(self.shape) if isinstance(extent, str)]


def by_name(args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Values of a call by described name: those given by position first, then those by name, in description order.

    A single list is a list of values. AssertionError where there are more values than names, or one is given twice.
    """
    if len(args) == 1 and isinstance(args[0], list):
        args = args[0]
    unknown = [name for name in kwargs if name not in names]
    assert not unknown, f"inputs: got {unknown}, expected names among {list(names)}"
    named = [name for name in names if name in kwargs]
    free = [name for name in names if name not in kwargs]
    assert len(args) <= len(free), f"inputs: got {len(args)} by position, expected at most {len(free)}: {free}"
    found = dict(zip(free, args, strict=False))
    found.update({name: kwargs[name] for name in named})
    return {name: found[name] for name in names if name in found}


def mismatched_dimension(values: Mapping[str, Any], inputs: Sequence[Description]) -> str | None:
    """A named extent that two values do not agree on."""
    seen: dict[str, int] = {}
    for description in inputs:
        shape = getattr(values.get(description.name), "shape", None)
        if shape is None:
            continue
        for axis in description.varying(len(shape)):
            assert description.shape is not None
            symbol = str(description.shape[axis])
            if seen.setdefault(symbol, shape[axis]) != shape[axis]:
                return symbol
    return None
