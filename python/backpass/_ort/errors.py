"""onnxruntime's errors by their names, and which of them the engine's become.

Scripts written for onnxruntime catch `InvalidArgument`, `Fail`, `NoSuchFile` and others. What is raised here is one of
these and one of Backpass's own errors at once, so that either name catches it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from backpass import _core


class Fail(Exception):  # noqa: N818  # the names scripts know
    """Something went wrong."""


class InvalidArgument(Exception):  # noqa: N818
    """A feed, a name or an option is not as the model wants it."""


class NoSuchFile(Exception):  # noqa: N818
    """The model's file is not there."""


class NoModel(Exception):  # noqa: N818
    """Nothing was loaded."""


class EngineError(Exception):
    """Not raised here."""


class RuntimeException(Exception):  # noqa: N818
    """A node could not be run with what it was given."""


class InvalidProtobuf(Exception):  # noqa: N818
    """The file is damaged, or no model."""


class ModelLoaded(Exception):  # noqa: N818
    """Not raised here."""


class NotImplemented(Exception):  # noqa: N818
    """The model is legal, but Backpass cannot run it."""


class InvalidGraph(Exception):  # noqa: N818
    """The model is not legal."""


class EPFail(Exception):  # noqa: N818
    """Not raised here: there is one provider."""


# One of the engine's errors and of those above at once.
_MissingFile = type("_MissingFile", (_core.InvalidInput, NoSuchFile), {})
_DamagedFile = type("_DamagedFile", (_core.InvalidInput, InvalidProtobuf), {})
_IllegalModel = type("_IllegalModel", (_core.InvalidInput, InvalidGraph, Fail), {})
_UnsupportedModel = type("_UnsupportedModel", (_core.Unsupported, NotImplemented, Fail), {})
_FeedError = type("_FeedError", (_core.InvalidInput, InvalidArgument, ValueError), {})
_FailedRun = type("_FailedRun", (_core.InvalidInput, RuntimeException, InvalidArgument, Fail), {})
_Stopped = type("_Stopped", (_core.Cancelled, Fail), {})
_Bug = type("_Bug", (_core.InternalBug, RuntimeException, Fail), {})
_NAMED = {_core.Unsupported: _UnsupportedModel, _core.Cancelled: _Stopped, _core.InternalBug: _Bug}


@contextmanager
def _named(invalid: Callable[[str], type]) -> Iterator[None]:
    """Gives the engine's errors their names here; ``invalid`` tells by its message which one an InvalidInput gets."""
    try:
        yield
    except _core.InvalidInput as error:
        raise invalid(str(error))(str(error)) from error
    except tuple(_NAMED) as error:
        kind = next(kind for base, kind in _NAMED.items() if isinstance(error, base))
        raise kind(str(error)) from error


@contextmanager
def loading(model: Any) -> Iterator[None]:
    """What goes wrong inside is about loading this model."""
    try:
        with _named(lambda text: _load_error(model, text)):
            yield
    except FileNotFoundError as error:
        raise _MissingFile(str(error)) from error


def _load_error(model: Any, text: str) -> type:
    if isinstance(model, str | os.PathLike) and not os.path.exists(model):
        return _MissingFile
    is_damaged = any(part in text for part in ("damaged", "not an ONNX model", "not a regular file"))
    return _DamagedFile if is_damaged else _IllegalModel


def running() -> AbstractContextManager[None]:
    """What goes wrong inside is about running a model; messages about a node open with its label."""
    return _named(lambda text: _FailedRun if text.startswith("[") else _FeedError)
