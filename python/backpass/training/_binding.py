"""Values of a call, by the names they are described with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backpass.optim._require import require
from backpass.trainer.arguments import Description, by_name, mismatched_dimension


def described(descriptions: Sequence[Any]) -> list[Description]:
    """As the engine wants them."""
    return [Description(d.name, d.shape) for d in descriptions]


def bound(
    args: Sequence[Any], kwargs: Mapping[str, Any], inputs: Sequence[Any], may_miss: bool = False
) -> dict[str, Any]:
    """Positional values first, then those by name. Names that are not described are passed over, as callers give whole
    batches. AssertionError for another number of values (fewer if they `may_miss`), or extents that disagree."""
    names = [description.name for description in inputs]
    values = by_name(args, {name: value for name, value in kwargs.items() if name in names}, names)
    missing = [name for name in names if name not in values]
    require(may_miss or not missing, f"inputs: got {[*values]}, {missing} missing, expected {names}")
    for description in inputs:
        check_rank(description, values.get(description.name))
    differing = mismatched_dimension(values, described(inputs))
    require(differing is None, f"Mismatch in dynamic shape {differing}")
    return values


def check_rank(description: Any, value: Any) -> None:
    """AssertionError for a value with more or fewer axes than described; a single number may have any."""
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) == len(description.shape) or all(n == 1 for n in (*shape, *description.shape)):
        return
    text = f"input '{description.name}': got shape {list(shape)}, expected {len(description.shape)} axes"
    raise AssertionError(f"{text}, as its description {description.shape}")


def chosen(fetches: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Names of outputs to compute; none for all. RuntimeError for one that is not described."""
    unknown = [name for name in fetches if name not in outputs]
    if unknown:
        raise RuntimeError(
            f"The specified fetches list contains invalid output names: got {unknown}, expected some of {list(outputs)}"
        )
    return list(fetches)
