"""SessionOptions and the small types around it, under onnxruntime's names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from backpass import _core
from backpass.session import note_providers

_said: list[str] = []  #: options that have no effect, once they were warned of


class GraphOptimizationLevel(IntEnum):
    """Backpass knows two levels: none, and all."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted, without effect: steps run one after the other, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Accepted, without effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True, eq=False, repr=False, kw_only=True)  # slots: other names are errors, as in the original
class SessionOptions:
    """Settings of a session.

    Threads, profiling, the optimization level, fixed dimensions and initializers have an effect; the rest is kept.
    """

    _entries: dict[str, str] = field(default_factory=dict)
    denotations: dict[str, int] = field(default_factory=dict)
    dimensions: dict[str, int] = field(default_factory=dict)
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    initializers: dict[str, Any] = field(default_factory=dict)
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = True
    use_per_session_threads: bool = True

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise _core.InvalidInput(f"session options have no entry {key!r}")
        return self._entries[key]

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Dimensions of this name have this extent in the session."""
        self.dimensions[dim_name] = _extent(dim_name, dim_value)

    def add_free_dimension_override_by_denotation(self, dim_denotation: str, dim_value: int) -> None:
        """Dimensions that are marked as this have this extent in the session."""
        self.denotations[dim_denotation] = _extent(dim_denotation, dim_value)

    def add_initializer(self, name: str, ort_value: Any) -> None:
        """The session uses this value in place of the model's."""
        self.initializers[name] = ort_value

    def add_external_initializers(self, names: Sequence[str], ort_values: Sequence[Any]) -> None:
        self.initializers.update(zip(names, ort_values, strict=True))

    def has_providers(self) -> bool:
        return False

    def add_provider(self, provider_name: str, provider_options: Mapping[str, str] | None = None) -> None:
        note_providers([provider_name])

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        raise _core.Unsupported(
            f"custom operators of {os.fspath(path)!r}: Backpass cannot load ONNX Runtime's libraries; "
            "write the operator as a function of the model (ModelProto.functions)"
        )

    @property
    def changes_model(self) -> bool:
        return bool(self.dimensions or self.denotations or self.initializers)

    def to_engine(self) -> _core.SessionOptions:
        if self.optimized_model_filepath and not _said:
            _said.append("optimized_model_filepath")
            text = "SessionOptions.optimized_model_filepath has no effect; execution_model() of a session is what runs"
            warnings.warn(text, stacklevel=4)
        options = _core.SessionOptions()
        options.num_threads = self.intra_op_num_threads
        options.optimize = self.graph_optimization_level != GraphOptimizationLevel.ORT_DISABLE_ALL
        options.profile = self.enable_profiling
        return options

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in self.__slots__ if not name.startswith("_"))
        return f"SessionOptions({', '.join(values)})"


def _extent(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _core.InvalidInput(f"free dimension {name!r}: got {value!r}, expected a number from 0 on")
    return value


@dataclass(eq=False, repr=False, kw_only=True)
class RunOptions:
    """Accepted by `InferenceSession.run`, without effect."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    training_mode: bool = True
    _entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        return self._entries[key]


@dataclass(eq=False, repr=False, kw_only=True)
class ModelMetadata:
    """Who made a model."""

    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    graph_name: str = ""
    producer_name: str = ""
    version: int = 0
