"""Which options there are, their types and defaults, as rules for cerberus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backpass.optim.lr_scheduler import _LRScheduler
from backpass.training.amp.loss_scaler import LossScaler
from backpass.training.cast_strategy import PropagateCastOpsStrategy

OPEN = ("provider_options", "sliced_axes", "sliced_schema")  #: dicts whose keys the caller chooses, which stay dicts


def _instance_of(kind: type, name: str) -> Callable[[str, Any, Callable[[str, str], None]], None]:
    def check(field: str, value: Any, error: Callable[[str, str], None]) -> None:
        if value is not None and not isinstance(value, kind):
            error(field, f"must be of {name} type")

    return check


def _is_callable(field: str, value: Any, error: Callable[[str, str], None]) -> None:
    if value is not None and not callable(value):
        error(field, "must be a function that takes an onnx.ModelProto and returns one")


def _are_session_options(field: str, value: Any, error: Callable[[str, str], None]) -> None:
    """Those of onnxruntime, of its twin here, or of Backpass: all count threads by one name or the other."""
    if value is not None and not any(hasattr(value, name) for name in ("intra_op_num_threads", "num_threads")):
        error(field, "must be of SessionOptions type")


def _flag(default: bool = False) -> dict[str, Any]:
    return {"type": "boolean", "default": default}


def _count(least: int, default: int) -> dict[str, Any]:
    return {"type": "integer", "min": least, "default": default}


def _group(rules: Mapping[str, Any]) -> dict[str, Any]:
    """A dict that may be left out or empty: cerberus fills in the defaults of what it holds."""
    return {"type": "dict", "default_setter": lambda _: {}, "required": False, "schema": dict(rules)}


def _text(default: str = "") -> dict[str, Any]:
    return {"type": "string", "default": default}


def _listed(of: str) -> dict[str, Any]:
    return {"type": "list", "schema": {"type": of}, "default_setter": lambda _: []}


def _object(check: Any) -> dict[str, Any]:
    return {"nullable": True, "default": None, "check_with": check}


_PIPELINE = {
    "pipeline_parallel_size": _count(1, 1),
    "num_pipeline_micro_batches": _count(1, 1),
    "pipeline_cut_info_string": _text(),
    "sliced_schema": {
        "type": "dict",
        "default_setter": lambda _: {},
        "keysrules": {"type": "string"},
        "valuesrules": {"type": "list", "schema": {"type": "integer"}},
    },
    "sliced_axes": {
        "type": "dict",
        "default_setter": lambda _: {},
        "keysrules": {"type": "string"},
        "valuesrules": {"type": "integer"},
    },
    "sliced_tensor_names": _listed("string"),
}
_DISTRIBUTED = {
    "world_rank": _count(0, 0),
    "world_size": _count(1, 1),
    "local_rank": _count(0, 0),
    "data_parallel_size": _count(1, 1),
    "horizontal_parallel_size": _count(1, 1),
    "pipeline_parallel": _group(_PIPELINE),
    "allreduce_post_accumulation": _flag(),
    "deepspeed_zero_optimization": _group({"stage": {"type": "integer", "min": 0, "max": 1, "default": 0}}),
    "enable_adasum": _flag(),
}
_CASTS = {
    "strategy": {
        "check_with": _instance_of(PropagateCastOpsStrategy, "PropagateCastOpsStrategy"),
        "default": PropagateCastOpsStrategy.FLOOD_FILL,
    },
    "level": _count(-1, 1),
    "allow": _listed("string"),
}
_GRAPH_TRANSFORMER = {
    "attn_dropout_recompute": _flag(),
    "gelu_recompute": _flag(),
    "transformer_layer_recompute": _flag(),
    "number_recompute_layers": _count(0, 0),
    "allow_layer_norm_mod_precision": {"type": "boolean"},  # only until 1.10
    "propagate_cast_ops_config": _group(_CASTS),
}
_UTILS = {
    "frozen_weights": {"type": "list", "default_setter": lambda _: []},
    "grad_norm_clip": _flag(True),
    "memory_efficient_gradient": _flag(),
    "invertible_layer_norm_gradient": {"type": "boolean"},  # its name until 1.8
    "run_symbolic_shape_infer": _flag(),
}
_PATHS = {
    "model_after_graph_transforms_path": _text(),
    "model_with_gradient_graph_path": _text(),
    "model_with_training_graph_path": _text(),
    "model_with_training_graph_after_optimization_path": _text(),
}
SCHEMA: dict[str, Any] = {
    "batch": _group({"gradient_accumulation_steps": _count(1, 1)}),
    "device": _group({"id": _text("cuda"), "mem_limit": _count(0, 0)}),
    "distributed": _group(_DISTRIBUTED),
    "lr_scheduler": _object(_instance_of(_LRScheduler, "optim._LRScheduler")),
    "mixed_precision": _group({"enabled": _flag(), "loss_scaler": _object(_instance_of(LossScaler, "amp.LossScaler"))}),
    "graph_transformer": _group(_GRAPH_TRANSFORMER),
    "utils": _group(_UTILS),
    "debug": _group(
        {"deterministic_compute": _flag(), "check_model_export": _flag(), "graph_save_paths": _group(_PATHS)}
    ),
    "_internal_use": _group(
        {
            "enable_internal_postprocess": _flag(True),
            "extra_postprocess": _object(_is_callable),
            "onnx_opset_version": {"type": "integer", "min": 12, "max": 14, "default": 14},
            "enable_onnx_contrib_ops": _flag(True),
        }
    ),
    "provider_options": {"type": "dict", "default_setter": lambda _: {}, "allow_unknown": True},
    "session_options": _object(_are_session_options),
}
