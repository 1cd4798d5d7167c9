"""When the engine cannot run a module: which failures let PyTorch run it instead. Nothing falls back unsaid."""

from __future__ import annotations

import enum
import logging
import pathlib
import sysconfig
import traceback

import torch

import backpass


class FallbackPolicy(enum.IntFlag):
    """What may be left to PyTorch. `FALLBACK_DISABLE` wins over everything."""

    FALLBACK_DISABLE = 1
    FALLBACK_FORCE_TORCH_FORWARD = 2
    FALLBACK_FORCE_TORCH_BACKWARD = 4
    FALLBACK_UNSUPPORTED_DEVICE = 8
    FALLBACK_UNSUPPORTED_DATA = 16
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64
    FALLBACK_BAD_INITIALIZATION = 128

    def is_set(self, policy: FallbackPolicy) -> bool:
        return not self.is_disabled() and bool(self & policy)

    def is_disabled(self) -> bool:
        return bool(self & FallbackPolicy.FALLBACK_DISABLE)


_FallbackPolicy = FallbackPolicy  # as scripts know it

DEFAULT_POLICY = (
    FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE
    | FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
    | FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL
    | FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL
)


class ORTModuleFallbackException(Exception):  # noqa: N818  # the name scripts know
    """A module that the engine cannot run. The cause is what went wrong."""


class ORTModuleInitException(ORTModuleFallbackException):
    """The set-up is not usable."""


class ORTModuleDeviceException(ORTModuleFallbackException):
    """A tensor is not on the CPU."""


class ORTModuleIOError(ORTModuleFallbackException):
    """An input or output has a type that cannot be handed over."""


class ORTModuleTorchModelException(ORTModuleFallbackException):
    """PyTorch cannot capture the module."""


class ORTModuleONNXModelException(ORTModuleFallbackException):
    """The exported graph cannot be built in the engine."""


_POLICIES: dict[type[ORTModuleFallbackException], FallbackPolicy] = {
    ORTModuleDeviceException: FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE,
    ORTModuleIOError: FallbackPolicy.FALLBACK_UNSUPPORTED_DATA,
    ORTModuleTorchModelException: FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL
    | FallbackPolicy.FALLBACK_BAD_INITIALIZATION,
    ORTModuleONNXModelException: FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL,
    ORTModuleInitException: FallbackPolicy.FALLBACK_BAD_INITIALIZATION,
}
_FORCED = FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD | FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD


def wrap_exception(
    kind: type[ORTModuleFallbackException], cause: BaseException, text: str = ""
) -> ORTModuleFallbackException:
    """An exception of `kind` that says what `cause` said and keeps it."""
    made = kind(text or str(cause))
    made.__cause__ = cause
    return made


def refusal(
    kind: type[ORTModuleFallbackException], text: str, cause: type[Exception] = RuntimeError
) -> ORTModuleFallbackException:
    """An exception of `kind` for what was found here, caused by an exception as torch might have raised it."""
    return wrap_exception(kind, cause(text))


class FallbackManager:
    """Remembers the failure that made PyTorch take over, and says so once."""

    def __init__(self, policy: FallbackPolicy, retry: bool, logger: logging.Logger) -> None:
        self.policy = policy
        self.retry = retry
        self.reason: ORTModuleFallbackException | None = None
        self._logger = logger

    @property
    def is_active(self) -> bool:
        """Whether this call goes to PyTorch without asking the engine."""
        if self.retry:
            self.reason = None
        return self.reason is not None

    def check(self, error: ORTModuleFallbackException) -> None:
        """Returns when PyTorch may run the module instead; raises `error` otherwise."""
        if not self.policy.is_set(_POLICIES[type(error)] | _FORCED):
            raise error

    def take_over(self, error: ORTModuleFallbackException) -> None:
        """PyTorch runs the module from here on, which is said once."""
        if self.reason is None:
            until = "for this call" if self.retry else "from here on"
            self._logger.warning("PyTorch runs the module %s, without Backpass: %s", until, _told(error))
            self._logger.info("%s", "".join(traceback.format_exception(error.__cause__ or error)).rstrip())
        self.reason = error


_FallbackManager = FallbackManager  # as scripts know it

_LINES, _COLUMNS = 3, 200
_OUTSIDE = (sysconfig.get_path("stdlib"), *(str(pathlib.Path(p).parent) for p in (torch.__file__, backpass.__file__)))


def _told(error: ORTModuleFallbackException) -> str:
    """What went wrong and where in the user's code, in five lines at most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = [line if len(line) <= _COLUMNS else line[: _COLUMNS - 3] + "..." for line in lines[:_LINES]]
    text = "\n  ".join([f"{type(error).__name__}: {shown[0] if shown else ''}", *shown[1:]])
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    own = [f for f in frames if not f.filename.startswith(("<", *_OUTSIDE))]
    place = f"at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}; " if own else ""
    return f"{text}\n  {place}the traceback is logged at level INFO"
