"""SessionOptions and the small types around it, under onnxruntime's names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from backpass import _core
from backpass.session import note_providers


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


class SessionOptions:
    """Settings of a session.

    Threads, profiling, the optimization level, fixed dimensions and initializers have an effect; the rest is kept.
    """

    __slots__ = (
        "_entries",
        "denotations",
        "dimensions",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
        "graph_optimization_level",
        "initializers",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "use_deterministic_compute",
        "use_per_session_threads",
    )  # a name that is none of these is an error, as in the original

    def __init__(self) -> None:
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = True
        self.use_per_session_threads = True
        self.execution_order = ExecutionOrder.DEFAULT
        self.dimensions: dict[str, int] = {}
        self.denotations: dict[str, int] = {}
        self.initializers: dict[str, Any] = {}
        self._entries: dict[str, str] = {}

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

    def to_engine(self) -> _core.SessionOptions:
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


class RunOptions:
    """Accepted by `InferenceSession.run`, without effect."""

    def __init__(self) -> None:
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False
        self.training_mode = True
        self._entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        return self._entries[key]


class ModelMetadata:
    """Who made a model."""

    def __init__(self) -> None:
        self.custom_metadata_map: dict[str, str] = {}
        self.description = ""
        self.domain = ""
        self.graph_description = ""
        self.graph_name = ""
        self.producer_name = ""
        self.version = 0
