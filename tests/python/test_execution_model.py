"""What a session runs can be written to a file after rewriting, loaded again, and gives the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import op_case
import pytest
import torch
from backpass import _core, artifacts
from backpass.api import CheckpointState, Module
from onnx import TensorProto, helper
from random_graphs import draw
from random_nodes import FAMILIES
from training_networks import CLASSES, TRAINEES, export

ROWS = [row for row in op_case.all_rows() if row.oracle != "random"]
SEED = 11


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same_bits, a, b))
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


def names(session: backpass.InferenceSession) -> list[str]:
    return [info.name for info in (*session.get_inputs(), *session.get_outputs())]


def check_again(session: backpass.InferenceSession, feeds: dict[str, Any]) -> None:
    again = backpass.InferenceSession(session.execution_model())
    assert names(again) == names(session)
    assert same_bits(again.run(None, feeds), session.run(None, feeds))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
@pytest.mark.parametrize("dynamic", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["symbols", "numbers"])
def test_rows(row: op_case.Row, dynamic: bool) -> None:
    for item in op_case.instances(row, row.dtypes[0], row.opsets[0], 1):
        check_again(backpass.InferenceSession(item.model(dynamic=dynamic).SerializeToString()), item.feeds)


@pytest.mark.parametrize("name", TRAINEES)
def test_networks(name: str) -> None:
    torch.manual_seed(SEED)
    trainee = TRAINEES[name]
    inputs = trainee.batch(np.random.default_rng(SEED))
    model = export(trainee.build().eval(), inputs)
    session = backpass.InferenceSession(model.SerializeToString())
    check_again(session, {f"input_{i}": x for i, x in enumerate(inputs)})


# ---- Training
def with_parameters_fed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Floating-point initializers become inputs."""
    graph = model.graph
    values = {
        t.name: onnx.numpy_helper.to_array(t).copy() for t in graph.initializer if t.data_type == TensorProto.FLOAT
    }
    kept = [t for t in graph.initializer if t.name not in values]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.input.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in values.items())
    return model, values


def with_seeds_fed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The gradients that YieldOp waits for become inputs; by name, of which output each is."""
    graph = model.graph
    (waiting,) = [node for node in graph.node if node.op_type == "YieldOp"]
    graph.node.remove(waiting)
    types = {info.name: info for info in graph.value_info}
    graph.input.extend(types[name] for name in waiting.output)
    return model, dict(zip(waiting.output, helper.get_node_attr_value(waiting, "seeds"), strict=True))


def check_module(model: onnx.ModelProto, fed: dict[str, np.ndarray], trained: list[str]) -> None:
    """Forward and backward, and the same by the model that ran, whose seeds are inputs."""
    session = _core.ModuleSession.from_bytes(model.SerializeToString(), trained, backpass.SessionOptions())
    outputs, pending = session.forward([torch.from_numpy(fed[info.name].copy()) for info in session.inputs()], True)
    rng = np.random.default_rng(SEED)
    seeds = [torch.from_numpy(np.asarray(rng.standard_normal(y.shape)).astype(y.numpy().dtype)) for y in outputs]
    if pending is None or not any(session.differentiable_outputs()):
        return
    given = [s if is_seeded else None for s, is_seeded in zip(seeds, session.differentiable_outputs(), strict=True)]
    gradients = session.backward(pending, given)

    again, waiting = with_seeds_fed(onnx.load_model_from_string(session.execution_model()))
    results = backpass.InferenceSession(again.SerializeToString()).run(
        None, fed | {name: seeds[k].numpy() for name, k in waiting.items()}
    )
    expected = [y.numpy() for y in (*outputs, *(g for g in gradients if g is not None))]
    assert same_bits(results, expected)


@pytest.mark.parametrize("name", TRAINEES)
def test_modules(name: str) -> None:
    torch.manual_seed(SEED)
    trainee = TRAINEES[name]
    inputs = trainee.batch(np.random.default_rng(SEED))
    model, parameters = with_parameters_fed(export(trainee.build(), inputs))
    trained = [n for n in parameters if "running" not in n]
    check_module(model, {f"input_{i}": x for i, x in enumerate(inputs)} | parameters, trained)


@pytest.mark.parametrize("seed", range(0, 100, 4))
def test_random_graphs(seed: int) -> None:
    for one in range(seed, seed + 4):
        graph = draw(one, FAMILIES)
        model = graph.model()
        check_again(backpass.InferenceSession(model.SerializeToString()), graph.feeds)
        check_module(model, graph.feeds, list(graph.feeds))


@pytest.mark.parametrize("name", TRAINEES)
def test_training_sessions(name: str, tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    trainee = TRAINEES[name]
    inputs = trainee.batch(rng)
    network = trainee.build()
    model = export(network, inputs)
    held = {t.name for t in model.graph.initializer}
    trained = [n for n, _ in network.named_parameters() if n in held]
    loss = artifacts.LossType.CrossEntropyLoss
    artifacts.generate_artifacts(model, requires_grad=trained, loss=loss, artifact_directory=str(tmp_path))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    fed = [*inputs, rng.integers(0, CLASSES, len(inputs[0]))]
    feeds = dict(zip(module.input_names(), fed, strict=True))
    feeds |= {n: p.data.copy() for n, p in state.parameters}
    again = backpass.InferenceSession(module.execution_model())
    feeds = {info.name: feeds[info.name] for info in again.get_inputs()}
    count = len(module.output_names())
    outputs = module(*fed)
    expected = [np.asarray(y) for y in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]
    results = again.run(None, feeds)
    assert same_bits(results[:count], expected)
    found = [state.parameters[n].grad for n in trained]
    assert all(any(same_bits(g, r) for r in results[count:]) for g in found)
