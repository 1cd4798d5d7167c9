"""Files that `debug.graph_save_paths` asks for: the model on its way to a training step.

They are to be looked at, so they hold operators of ONNX and of onnxruntime only: passes that make others are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx

from backpass import InferenceSession, SessionOptions, grad
from backpass.optim.config import _OptimizerConfig
from backpass.trainer.engine import Engine
from backpass.training.model_desc_validation import LEARNING_RATE_IO_DESCRIPTION_NAME as RATE

_DOMAIN = "com.microsoft"
# Passes whose operators exist in Backpass alone.
_OWN = (
    "add_gathered",
    "chunk_loss",
    "fuse_attention",
    "fuse_linear",
    "keep_less",
    "skip_ignored_labels",
    "skip_padding",
    "split_batch_norm",
)


def save_graphs(engine: Engine, config: _OptimizerConfig, paths: Mapping[str, str]) -> None:
    """Writes those of the four models that have a path."""
    forward, loss = engine.onnx_model(), engine.loss
    shapes = {tensor.name: tensor for tensor in forward.graph.initializer if tensor.name in engine.trained}

    def gradient() -> onnx.ModelProto:
        return grad(forward, list(shapes), [loss], standard_only=False) if shapes else forward

    makers: dict[str, Callable[[], onnx.ModelProto]] = {
        "model_after_graph_transforms_path": lambda: _rewritten(forward),
        "model_with_gradient_graph_path": gradient,
        "model_with_training_graph_path": lambda: _with_updates(gradient(), config, shapes),
        "model_with_training_graph_after_optimization_path": lambda: _with_updates(
            _rewritten(gradient()), config, shapes
        ),
    }
    for name, path in paths.items():
        onnx.save(makers[name](), path)


def _rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    options = SessionOptions()
    options.disabled_passes = list(_OWN)
    return onnx.load_model_from_string(InferenceSession(model.SerializeToString(), options).execution_model())


def _with_updates(
    model: onnx.ModelProto, config: _OptimizerConfig, weights: Mapping[str, onnx.TensorProto]
) -> onnx.ModelProto:
    """The model with nodes of the optimizer behind its gradients; moments and counters are inputs."""
    graph = model.graph
    graph.input.append(onnx.helper.make_tensor_value_info(RATE, onnx.TensorProto.FLOAT, [1]))
    makers = {"SGDOptimizer": _sgd, "AdamOptimizer": _adam, "LambOptimizer": _lamb}
    for node, tensors in makers[config.name](config, weights):
        graph.input.extend(tensors)
        graph.node.append(node)
    if all(opset.domain != _DOMAIN for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    return model


_Nodes = Iterator[tuple[onnx.NodeProto, list[onnx.ValueInfoProto]]]


def _sgd(config: _OptimizerConfig, weights: Mapping[str, onnx.TensorProto]) -> _Nodes:
    for name in weights:
        yield _node("SGDOptimizer", name, [RATE, name, f"{name}_grad"], [f"{name}_new"]), []


def _adam(config: _OptimizerConfig, weights: Mapping[str, onnx.TensorProto]) -> _Nodes:
    for name, weight in weights.items():
        count = onnx.helper.make_tensor_value_info(f"Update_Count_{name}", onnx.TensorProto.INT64, [1])
        moments = _moments(name, weight)
        kept = [count.name, name, f"{name}_grad", *(m.name for m in moments)]
        made = [f"{count.name}_new", *(f"{m.name}_new" for m in moments), f"{name}_new"]
        values = {key: _attribute(value) for key, value in config.values_of(name).items() if key != "lr"}
        yield _node("AdamOptimizer", name, [RATE, *kept], made, **values), [count, *moments]


def _lamb(config: _OptimizerConfig, weights: Mapping[str, onnx.TensorProto]) -> _Nodes:
    if not weights:
        return
    step = onnx.helper.make_tensor_value_info("Step", onnx.TensorProto.INT64, [1])
    kept, made, tensors = ["", "", "", RATE, "Step"], ["Step_new"], [step]
    for name, weight in weights.items():
        moments = _moments(name, weight)
        kept += [name, f"{name}_grad", *(m.name for m in moments), ""]
        made += [f"{name}_new", "", *(f"{m.name}_new" for m in moments), ""]
        tensors += moments
    values = [config.values_of(name) for name in weights]
    lists = {key: [float(v[key]) for v in values] for key in ("alpha", "beta", "lambda", "epsilon", "max_norm_clip")}
    shared = {key: _attribute(values[0][key]) for key in ("ratio_min", "ratio_max", "do_bias_correction")}
    yield _node("LambOptimizer", "all", kept, made, **lists, **shared), tensors


def _node(operator: str, name: str, inputs: list[str], outputs: list[str], **values: Any) -> onnx.NodeProto:
    return onnx.helper.make_node(operator, inputs, outputs, f"{operator}_{name}", domain=_DOMAIN, **values)


def _moments(name: str, weight: onnx.TensorProto) -> list[onnx.ValueInfoProto]:
    return [
        onnx.helper.make_tensor_value_info(f"{moment}_{name}", weight.data_type, list(weight.dims))
        for moment in ("Moment_1", "Moment_2")
    ]


def _attribute(value: Any) -> float | int:
    return value if isinstance(value, float) else int(value)
