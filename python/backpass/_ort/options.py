"""SessionOptions and the small types around it, under onnxruntime's names."""

from __future__ import annotations

import os
from enum import IntEnum

from backpass import _core


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


class SessionOptions:
    """Settings of a session. Threads, profiling and the optimization level have an effect; the rest is kept."""

    __slots__ = (
        "_entries",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "use_deterministic_compute",
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
        self._entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise _core.InvalidInput(f"session options have no entry {key!r}")
        return self._entries[key]

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
