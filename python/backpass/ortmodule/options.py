"""Options of ORTModule: defaults, then what code sets, then ``ORTMODULE_*`` environment variables, which win."""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backpass.ortmodule.debug import DebugOptions, Logging, LogLevel, SaveOnnx
from backpass.ortmodule.fallback import DEFAULT_POLICY, FallbackPolicy

__all__ = ["WITHOUT_EFFECT", "DebugOptions", "LogLevel", "RuntimeOptions", "from_environment"]

_NO_GPU = "Backpass runs on CPUs"

# Switches of ONNX Runtime Training that change nothing here, and why. Setting one is reported, not an error.
WITHOUT_EFFECT = {
    "ORTMODULE_CONV_ALGO_SEARCH": _NO_GPU,
    "ORTMODULE_USE_TRITON": _NO_GPU,
    "ORTMODULE_TRITON_CONFIG_FILE": _NO_GPU,
    "ORTMODULE_TRITON_DEBUG": _NO_GPU,
    "ORTMODULE_USE_FLASH_ATTENTION": _NO_GPU,
    "ORTMODULE_USE_EFFICIENT_ATTENTION": "attention is fused by the engine",
    "ORTMODULE_ATEN_SDPA_FALLBACK": "attention is fused by the engine",
    "ORTMODULE_ENABLE_TUNING": "kernels are chosen per shape by the engine",
    "ORTMODULE_MAX_TUNING_DURATION_MS": "kernels are chosen per shape by the engine",
    "ORTMODULE_TUNING_RESULTS_PATH": "kernels are chosen per shape by the engine",
    "ORTMODULE_SKIPCHECK_POLICY": "each call looks whether module or inputs changed, which takes microseconds",
    "ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT": "the capture works on shapes, so nothing needs to be copied",
    "ORTMODULE_ALLOW_AUTOGRAD_CHECKPOINT": "torch.utils.checkpoint is captured as what it computes",
    "ORTMODULE_SKIPPED_AUTOGRAD_FUNCTIONS": "functions are told apart by module and qualified name",
    "ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT": "gradients are handed to torch without a copy",
    "ORTMODULE_ENABLE_ZERO_STAGE3": "parameters are whole in every process; trainers split the optimizer's state",
    "ORTMODULE_MEMORY_OPT_PROBE_RECOMPUTE_LEVEL": "what is computed again is found in the whole graph",
}
_OLDEST_OPSET = 18  # that modules can be exported to
# Read elsewhere: DebugOptions and json_config.
_ELSEWHERE = {"ORTMODULE_LOG_LEVEL", "ORTMODULE_SAVE_ONNX_PATH", "ORTMODULE_JSON_CONFIG_PATH"}
# Names that older releases of ONNX Runtime Training had for fields; today's win.
_FORMER = {
    "ORTMODULE_ENABLE_SPARSE_OPTIMIZER": ("enable_label_sparse_optimizer", "enable_embedding_sparse_optimizer"),
    "ORTMODULE_ENABLE_LABEL_SPARSITY_OPT": ("enable_label_sparse_optimizer",),
    "ORTMODULE_ENABLE_INPUT_DENSITY_INSPECTOR": ("print_input_density",),
}


def _variable(name: str, default: Any) -> Any:
    return field(default=default, metadata={"variable": name})


@dataclass
class RuntimeOptions:
    """How modules are exported and run. Give it to ``ORTModule(module, options=...)``."""

    onnx_opset_version: int = _variable("ORTMODULE_ONNX_OPSET_VERSION", 23)
    """Of exported graphs: 18 to 26. What is older is raised to 18, with a warning."""
    enable_custom_autograd_function: bool = _variable("ORTMODULE_ENABLE_CUSTOM_AUTOGRAD", True)
    """Keep each torch.autograd.Function as one operator with its own backward. Off: such modules are refused."""
    enable_compute_optimizer: bool = _variable("ORTMODULE_ENABLE_COMPUTE_OPTIMIZER", True)
    """Let the engine rewrite the graph. Off: every operator runs as it was exported, for every row."""
    enable_label_sparse_optimizer: bool = _variable("ORTMODULE_ENABLE_LABEL_SPARSE_OPTIMIZER", True)
    """Rows without a label are left out of what only the loss reads, in batches that have enough of them."""
    enable_embedding_sparse_optimizer: bool = _variable("ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER", True)
    """Padding that nothing depends on is left out, in batches that have enough of it."""
    sparse_threshold: float = 0.9
    """Share of a batch's rows that are needed, below which the others are left out."""
    print_input_density: bool = _variable("ORTMODULE_PRINT_INPUT_DENSITY", False)
    """Print for each step how many rows of the batch are needed."""
    fallback_policy: FallbackPolicy = field(default=DEFAULT_POLICY, metadata={"variable": "ORTMODULE_FALLBACK_POLICY"})
    fallback_retry: bool = _variable("ORTMODULE_FALLBACK_RETRY", False)
    """After a fallback, try the engine again at each call."""
    cache_dir: str = _variable("ORTMODULE_CACHE_DIR", "")
    """Folder in which exported models are kept for the next process; empty for none."""
    dynamic_shapes: str = "auto"
    """``auto``: two sets of shapes are captured as they are, which is quick; when others come, once more with those
    dimensions variable that varied. ``always``: all variable from the start. ``never``: one export for each set."""
    profile: bool = False
    """Record the time of every step for ``explain()``."""
    num_threads: int = 0
    """Of the engine; 0 for as many as torch uses."""
    disabled_passes: Sequence[str] = ()
    """Rewriting passes of the engine that do not run, by name; ``BACKPASS_DISABLE_PASSES`` adds to them."""
    max_memory: float = 0
    """Bytes that intermediate values of a training pass may take, or up to 1 a share of what they would take. What does
    not fit is computed again by the backward pass, to the same bits. 0 for no limit."""
    memory_opt_level: int = _variable("ORTMODULE_MEMORY_OPT_LEVEL", 0)
    """However much memory there is, the backward pass computes again: 1 what takes no products, 2 all but what stands
    between blocks, 0 what `memory_opt_config` says."""
    memory_opt_config: str = _variable("ORTMODULE_MEMORY_OPT_CONFIG", "")
    """A file with a JSON list of operators whose results are computed again: ``["Gelu+:1:-1"]`` (0 not, 1 yes; how many
    at most, -1 for all)."""
    print_memory_stats: bool = _variable("ORTMODULE_PRINT_MEMORY_STATS", False)
    """Log planned and resident memory after each forward and backward pass."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_threads <= 1024:
            raise ValueError(f"num_threads: got {self.num_threads!r}, expected 0 to 1024")
        if not 0 <= self.max_memory < math.inf:
            raise ValueError(f"max_memory: got {self.max_memory!r}, expected bytes, a share from 0 to 1, or 0 for none")
        if not 0 <= self.sparse_threshold <= 1:
            raise ValueError(f"sparse_threshold: got {self.sparse_threshold!r}, expected a share from 0 to 1")
        if self.memory_opt_level not in (0, 1, 2):
            raise ValueError(f"memory_opt_level: got {self.memory_opt_level!r}, expected 0, 1 or 2")
        if self.dynamic_shapes not in ("auto", "always", "never"):
            raise ValueError(f"dynamic_shapes: got {self.dynamic_shapes!r}, expected 'auto', 'always' or 'never'")

    def with_environment(self, environment: Mapping[str, str], logger: logging.Logger) -> RuntimeOptions:
        """A copy in which environment variables have been followed; those that have no effect are reported."""
        changes = {
            entry: _read(name, environment[name], True)
            for name, entries in _FORMER.items()
            if name in environment
            for entry in entries
        }
        known = set(_FORMER)
        for entry in dataclasses.fields(self):
            name = entry.metadata.get("variable", "")
            known.add(name)
            if name and name in environment:
                changes[entry.name] = _read(name, environment[name], entry.default)
        for name, value in environment.items():
            if name in WITHOUT_EFFECT:
                logger.warning("%s=%s has no effect: %s", name, value, WITHOUT_EFFECT[name])
            elif name.startswith("ORTMODULE_") and name not in known | _ELSEWHERE:
                logger.warning("%s is not an environment variable of ORTModule; it has no effect", name)
        return dataclasses.replace(self, **changes)


class _SkipCheck(enum.IntFlag):
    """Kept for scripts: each call looks whether module or inputs changed, which takes microseconds."""

    SKIP_CHECK_DISABLED = 1
    SKIP_CHECK_DEVICE = 2
    SKIP_CHECK_BUILD_GRADIENT = 4
    SKIP_CHECK_EXECUTION_AGENT = 8

    def is_set(self, check: _SkipCheck) -> bool:
        return not self.is_disabled() and check in self

    def is_disabled(self) -> bool:
        return _SkipCheck.SKIP_CHECK_DISABLED in self


class _MemoryOptimizationLevel(enum.IntFlag):
    """`RuntimeOptions.memory_opt_level` by name."""

    USER_SPECIFIED = 0
    TRANSFORMER_LAYERWISE_RECOMPUTE = 1
    TRANSFORMER_LAYERWISE_RECOMPUTE_WITH_COMPROMISE = 2


# As scripts know them.
_RuntimeOptions = RuntimeOptions
_SaveOnnxOptions = SaveOnnx
_LoggingOptions = Logging


def _read(name: str, text: str, like: Any) -> Any:
    try:
        if isinstance(like, bool):
            return read_switch(text)
        if isinstance(like, FallbackPolicy):
            return read_policy(text)
        return type(like)(text)
    except (KeyError, ValueError) as error:
        raise ValueError(f"environment variable {name}: got {text!r}: {error}") from error


def read_switch(text: str) -> bool:
    """A switch as people write it."""
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.strip().lower() not in values:
        raise ValueError("expected 0 or 1")
    return values[text.strip().lower()]


def read_policy(text: str) -> FallbackPolicy:
    """Names of FallbackPolicy joined by ``|``."""
    policy = FallbackPolicy(0)
    for name in text.split("|"):
        if name.strip() not in FallbackPolicy.__members__:
            raise ValueError(f"expected names out of {', '.join(FallbackPolicy.__members__)}, joined by '|'")
        policy |= FallbackPolicy[name.strip()]
    return policy


def from_environment(options: RuntimeOptions | None, logger: logging.Logger) -> RuntimeOptions:
    """`options`, or the defaults, with the environment on top."""
    found = (options or RuntimeOptions()).with_environment(os.environ, logger)
    if found.onnx_opset_version < _OLDEST_OPSET:
        text = "onnx_opset_version: got %d, expected %d or newer; graphs are exported to %d, which computes the same"
        logger.warning(text, found.onnx_opset_version, _OLDEST_OPSET, _OLDEST_OPSET)
        found = dataclasses.replace(found, onnx_opset_version=_OLDEST_OPSET)
    return found
