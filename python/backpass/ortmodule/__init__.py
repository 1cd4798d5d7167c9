"""ORTModule: torch modules trained by Backpass. See docs/ortmodule.md."""

from backpass import _needs_torch  # noqa: F401

# isort: split

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
