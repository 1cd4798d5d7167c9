"""Training models are taken apart when they are loaded, so that what nobody needs is left out before gradients are
derived: the same losses and gradients, whatever the data; models that are more than that stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import InvalidInput, SessionOptions, Unsupported, artifacts
from backpass.api import CheckpointState, Module, Optimizer
from onnx import TensorProto, helper, numpy_helper, parser
from ort_training.interpreters import OURS, THEIRS, make, needs_original
from ort_training.networks import MODELS
from token_graphs import token_data, token_graph

STEPS = 5
PLAIN = SessionOptions(optimize=False)  # the gradients that the file has, node by node


def trainable(seed: int) -> tuple[onnx.ModelProto, list[str], tuple[int, int]]:
    """A random network over tokens whose output is its loss, its parameters, and the extents of batches."""
    graph = token_graph(seed, dynamic=True)
    model = onnx.load_model_from_string(graph.model)
    kept = [info for info in model.graph.input if info.name not in graph.parameters]
    losses = [info.name for info in model.graph.output]
    del model.graph.input[:], model.graph.output[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in graph.parameters.items())
    model.graph.node.append(helper.make_node("Sum", losses, ["loss"], name="loss"))
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return model, list(graph.parameters), graph.inputs["ids"].shape


def write_artifacts(seed: int, folder: Path, **options: Any) -> tuple[int, int]:
    model, parameters, extents = trainable(seed)
    kind = artifacts.OptimType.SGD
    artifacts.generate_artifacts(model, requires_grad=parameters, optimizer=kind, artifact_directory=folder, **options)
    return extents


def start(folder: Path, seed: int, model: str = "training_model.onnx", options: Any = None) -> tuple[Module, Any]:
    backpass.set_seed(seed)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / model, state, folder / "eval_model.onnx", session_options=options), state


def batches(seed: int, extents: tuple[int, int]) -> list[dict[str, np.ndarray]]:
    numbers = np.random.default_rng(seed)
    return [token_data(numbers, *extents) for _ in range(STEPS)]


def losses_and_gradients(module: Module, state: Any, data: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """Of each step; gradients start anew after the third."""
    found = []
    for step, batch in enumerate(data):
        loss = module(*(batch[name] for name in module.input_names()))
        found.append([np.array(loss), *(np.array(parameter.grad) for _, parameter in state.parameters)])
        if step == 2:
            module.lazy_reset_grad()
    return found


def assert_same(found: list[list[np.ndarray]], wanted: list[list[np.ndarray]]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        largest = max(np.nanmax(np.abs(g), initial=0) for g in theirs[1:])
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-7)
        for a, b in zip(ours[1:], theirs[1:], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(largest, 1e-6))


def refusals(module: Module) -> list[Any]:
    return [report for report in module.pass_reports() if report.pass_name == "take_apart"]


@pytest.mark.parametrize("seed", range(24))
def test_same_losses_and_gradients(seed: int, tmp_path: Path) -> None:
    data = batches(seed, write_artifacts(seed, tmp_path))
    wanted = losses_and_gradients(*start(tmp_path, seed, options=PLAIN), data)
    module, state = start(tmp_path, seed, options=SessionOptions(verify_passes=True))
    assert_same(losses_and_gradients(module, state, data), wanted)
    assert refusals(module) == []
    module.export_model_for_training(tmp_path / "stored.onnx")
    for options in (None, PLAIN):
        assert_same(losses_and_gradients(*start(tmp_path, seed, "stored.onnx", options), data), wanted)


@pytest.mark.parametrize("seed", range(100, 108))
def test_same_parameters_and_evaluation(seed: int, tmp_path: Path) -> None:
    data = batches(seed, write_artifacts(seed, tmp_path))
    results = []
    for options in (PLAIN, None):
        module, state = start(tmp_path, seed, options=options)
        optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(0.01)
        for batch in data:
            inputs = [batch[name] for name in module.input_names()]
            if np.isfinite(module.eval()(*inputs)):  # the mean of no labels is not a number
                module.train()
                optimizer.train_and_update(*inputs)
        last = [data[0][name] for name in module.eval().input_names()]
        results.append([np.array(module(*last)), *(np.array(p.data) for _, p in state.parameters)])
    assert_same([results[1]], [results[0]])


def labelled(share: float, seed: int = 0) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    labels = numbers.integers(0, 9, (4, 8))
    return {"x": numbers.standard_normal((4, 8, 6)).astype(np.float32),
            "labels": np.where(numbers.random(labels.shape) < share, labels, -100)}  # fmt: skip


def tagger(folder: Path, **options: Any) -> None:
    """Words of 9 kinds, of which those without a label (-100) do not count."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[B, S, 6] x, int64[B, S] labels) => (float[] loss) <int64[2] rows = {-1, 9}, int64[1] flat = {-1}> {
      h = MatMul(x, w1) a = Tanh(h) s = MatMul(a, w2) y = Reshape(s, rows) t = Reshape(labels, flat)
      loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(y, t)
    }""")
    numbers = np.random.default_rng(1)
    for name, shape in (("w1", (6, 5)), ("w2", (5, 9))):
        values = numbers.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    artifacts.generate_artifacts(model, requires_grad=["w1", "w2"], artifact_directory=folder, **options)


def test_data_decide_anew_for_every_batch(tmp_path: Path) -> None:
    tagger(tmp_path)
    module, state = start(tmp_path, 0)
    shares = [0.2, 1.0, 0.5, 1.0]
    data = [labelled(share, seed) for seed, share in enumerate(shares)]
    found = losses_and_gradients(module, state, data)
    assert_same(found, losses_and_gradients(*start(tmp_path, 0, options=PLAIN), data))
    report = module.data_report()
    assert {tuple(choice.passes): choice.runs for choice in report.choices} == {(): 2, ("skip_ignored_labels",): 2}
    assert report.chosen == []
    assert [density.share for density in report.densities] == [1.0]
    sparse = max(report.choices, key=lambda choice: len(choice.passes))
    assert 0 < sparse.operations < report.choices[0].operations
    never, kept = start(tmp_path, 0, options=SessionOptions(sparse_threshold=0))
    assert_same(losses_and_gradients(never, kept, data), found)
    assert never.data_report().densities == []


def test_no_label_at_all(tmp_path: Path) -> None:
    tagger(tmp_path)
    module, state = start(tmp_path, 0)
    assert np.isnan(module(*labelled(0.0).values()))
    for _, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.grad, 0)


def test_artifacts_that_compute_less(tmp_path: Path) -> None:
    folders = [tmp_path / "usual", tmp_path / "less"]
    for folder, less in zip(folders, (False, True), strict=True):
        folder.mkdir()
        tagger(folder, compute_less=less)
    usual, less = (onnx.load(folder / "training_model.onnx") for folder in folders)
    assert [v.name for v in usual.graph.input] == [v.name for v in less.graph.input]
    assert [v.name for v in usual.graph.output] == [v.name for v in less.graph.output]
    assert "LabelledRows" in [node.op_type for node in less.graph.node]
    data = [labelled(share, seed) for seed, share in enumerate([0.1, 1.0, 0.6, 0.3])]
    wanted = losses_and_gradients(*start(folders[0], 0, options=PLAIN), data)
    for options in (None, PLAIN):
        assert_same(losses_and_gradients(*start(folders[1], 0, options=options), data), wanted)


def scale(model: onnx.ModelProto) -> None:
    """Half of a gradient."""
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    for node in model.graph.node:
        if node.op_type == "InPlaceAccumulatorV2" and "w1_grad" in node.input:
            node.input[1] = "halved"
    model.graph.node.append(helper.make_node("Mul", ["w1_grad", "half"], ["halved"], name="user_scale"))


def change_seed(model: onnx.ModelProto) -> None:
    """A scaled loss."""
    for tensor in model.graph.initializer:
        if tensor.name == "loss_grad":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(8), tensor.name))


@pytest.mark.parametrize("change", [scale, change_seed])
def test_more_than_a_derivative_stays(change: Any, tmp_path: Path) -> None:
    tagger(tmp_path)
    model = onnx.load(tmp_path / "training_model.onnx")
    change(model)
    onnx.save(model, tmp_path / "changed.onnx")
    data = [labelled(0.3)]
    module, state = start(tmp_path, 0, "changed.onnx")
    found = losses_and_gradients(module, state, data)
    assert_same(found, losses_and_gradients(*start(tmp_path, 0, "changed.onnx", PLAIN), data))
    (refusal,) = refusals(module)
    assert "kept the gradients" in refusal.what
    if change is scale:
        assert "user_scale" in refusal.node
    assert module.data_report().densities == []
    with pytest.raises(Unsupported, match="gradients have to stay"):
        module.export_model_for_training(tmp_path / "stored.onnx")


def strangers(folder: Path) -> dict[str, onnx.ModelProto]:
    """A model of ONNX Runtime's, changed in ways that its names tell."""
    found = {}
    for kind in ("scaled", "seed", "foreign", "noise"):
        model = onnx.load(folder / "training_model.onnx")
        last = next(node for node in model.graph.node if node.op_type == "InPlaceAccumulatorV2")
        gradient = last.input[1]
        if kind == "seed":
            seed = next(t for t in model.graph.initializer if t.name.endswith("_grad"))
            seed.CopyFrom(numpy_helper.from_array(np.float32(2), seed.name))
        elif kind == "foreign":  # a node of the derivative that reads what has nothing to do with it
            node = next(n for n in model.graph.node if "_Grad/" in n.name and n.op_type == "Gemm")
            model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "user_factor"))
            model.graph.node.insert(0, helper.make_node("Mul", [node.input[0], "user_factor"], ["user_x"], name="mine"))
            node.input[0] = "user_x"
        else:
            last.input[1] = "changed"
            op = "Neg" if kind == "scaled" else "Identity"
            model.graph.node.append(helper.make_node(op, [gradient], ["changed"], name=f"user_{kind}"))
        found[kind] = model
    return found


@pytest.mark.slow
@needs_original
@pytest.mark.parametrize("maker", [THEIRS, OURS])
@pytest.mark.parametrize("model", list(MODELS))
def test_models_of_both_makers(model: str, maker: str, tmp_path: Path) -> None:
    make(maker, tmp_path, model)
    folder = tmp_path / model
    stored = np.load(folder / "batches.npz")
    inputs = [stored[str(i)] for i in range(len(stored.files))]

    def run(name: str, options: Any) -> tuple[Module, list[list[np.ndarray]]]:
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / name, state, session_options=options)
        found = []
        for step in range(STEPS):
            loss = module(*(batch[step] for batch in inputs))
            found.append([np.array(loss), *(np.array(p.grad) for _, p in state.parameters if p.grad is not None)])
        return module, found

    _, wanted = run("training_model.onnx", PLAIN)
    module, found = run("training_model.onnx", None)
    assert_same(found, wanted)
    assert refusals(module) == []
    module.export_model_for_training(folder / "stored.onnx")
    assert_same(run("stored.onnx", None)[1], wanted)


@pytest.mark.slow
@needs_original
def test_models_of_onnxruntime_that_were_changed_stay(tmp_path: Path) -> None:
    make(THEIRS, tmp_path, "mlp")
    folder = tmp_path / "mlp"
    for kind, model in strangers(folder).items():
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(model.SerializeToString(), state)
        (refusal,) = refusals(module)
        assert kind == "seed" or refusal.node, refusal
        with pytest.raises(Unsupported, match="gradients have to stay"):
            module.export_model_for_training(tmp_path / "stored.onnx")


def test_bad_paths_are_refused(tmp_path: Path) -> None:
    tagger(tmp_path)
    module, _ = start(tmp_path, 0)
    with pytest.raises((InvalidInput, OSError)):
        module.export_model_for_training(tmp_path / "no such folder" / "stored.onnx")
