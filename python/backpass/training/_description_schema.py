"""What a description of a model may look like, as rules for cerberus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_Error = Callable[[str, str], None]


def _problem(value: Any, sizes: tuple[int, ...]) -> str | None:
    """What is wrong with one described input or output, in the original's words."""
    if not isinstance(value, tuple) or len(value) not in sizes:
        return f"must be a tuple with {' or '.join(str(size) for size in sizes)} elements"
    if not isinstance(value[0], str):
        return "the first element of the tuple (aka name) must be a string"
    if not isinstance(value[1], list):
        return "the second element of the tuple (aka shape) must be a list"
    if any(isinstance(extent, bool) or not isinstance(extent, (int, str)) for extent in value[1]):
        return "each shape must be either a string or integer"
    if len(value) == 3 and not isinstance(value[2], bool):
        return "the third element of the tuple (aka is_loss) must be a boolean"
    return None


def _check_input(field: str, value: Any, error: _Error) -> None:
    if problem := _problem(value, (2,)):
        error(field, problem)


class _OutputCheck:
    """Checks outputs one after the other, and that one of them at most is the loss."""

    def __init__(self) -> None:
        self._has_loss = False

    def __call__(self, field: str, value: Any, error: _Error) -> None:
        problem = _problem(value, (2, 3))
        if problem is None and len(value) == 3 and value[2]:
            problem = "only one is_loss can bet set to True" if self._has_loss else None
            self._has_loss = True
        if problem:
            error(field, problem)


def schema() -> dict[str, Any]:
    """Rules for one description: they count losses, so each description needs rules of its own."""
    return {
        "inputs": {"type": "list", "required": True, "minlength": 1, "schema": {"check_with": _check_input}},
        "outputs": {"type": "list", "required": True, "minlength": 1, "schema": {"check_with": _OutputCheck()}},
    }
