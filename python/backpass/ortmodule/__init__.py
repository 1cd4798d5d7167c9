"""ORTModule: torch modules trained by Backpass. See docs/ortmodule.md."""

from backpass import _needs_torch  # noqa: F401

# isort: split

from typing import Any

from backpass._core import set_seed
from backpass.ortmodule.debug import DebugOptions, LogLevel
from backpass.ortmodule.fallback import FallbackPolicy
from backpass.ortmodule.optimizers import register_graph_optimizer
from backpass.ortmodule.options import RuntimeOptions
from backpass.ortmodule.wrapper import ORTModule

__all__ = [
    "DebugOptions",
    "FallbackPolicy",
    "LogLevel",
    "ORTModule",
    "RuntimeOptions",
    "register_graph_optimizer",
    "set_seed",
]


def __getattr__(name: str) -> Any:
    """What else the original has at this place, for scripts that ask for it."""
    from backpass._ort import ortmodule_names

    if name not in ortmodule_names.__all__:
        raise AttributeError(f"module 'backpass.ortmodule' has no attribute {name!r}")
    return getattr(ortmodule_names, name)
