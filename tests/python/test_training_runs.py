"""Whole training runs: all that must survive a checkpoint at once, clipping, tensors of other libraries, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from backpass import artifacts
from backpass.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from backpass.onnxblock import optim
from onnx import numpy_helper, parser

BODY = """a = MatMul(x, w1) b = Add(a, b1) h = Relu(b) d = Dropout(h, ratio, yes)
n, m, v = BatchNormalization<training_mode = 1>(d, scale, shift, mean, var) y = MatMul(n, w2)"""
SHAPES = {"w1": (6, 9), "b1": 9, "scale": 9, "shift": 9, "mean": 9, "var": 9, "w2": (9, 4)}
TRAINED = ["w1", "b1", "scale", "shift", "w2"]


def generate(folder: Path, optimizer: Any = artifacts.OptimType.AdamW, ratio: float = 0.3) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 6] x) => (float[N, 4] y)
    <float ratio = {{{ratio}}}, bool yes = {{1}}> {{ {BODY} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        values = np.ones(shape) if name in ("var", "scale") else 0.5 * rng.standard_normal(shape)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    artifacts.generate_artifacts(
        model,
        requires_grad=TRAINED,
        frozen_params=["mean", "var"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optimizer,
        additional_output_names=["y"],
        artifact_directory=folder,
    )


def load(
    folder: Path, checkpoint: str = "checkpoint", in_memory: bool = False
) -> tuple[CheckpointState, Module, Optimizer]:
    def source(kind: str) -> Any:
        path = folder / f"{kind}_model.onnx"
        return path.read_bytes() if in_memory else path

    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(source("training"), state, source("eval"))
    return state, module, Optimizer(source("optimizer"), module)


def batch(step: int, count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    return rng.standard_normal((count, 6)).astype(np.float32), rng.integers(0, 4, count)


class Training:
    """Two batches per update, with a schedule."""

    def __init__(self, folder: Path, checkpoint: str = "checkpoint", start: bool = False) -> None:
        self.folder = folder
        self.state, self.module, self.optimizer = load(folder, checkpoint)
        if start:
            self.scheduler = LinearLRScheduler(self.optimizer, 3, 20, 0.05)

    def run(self, steps: range, scheduler_step: Any) -> list[float]:
        losses = []
        for step in steps:
            for half in (0, 1):
                losses.append(float(self.module(*batch(2 * step + half))[0]))
            self.optimizer.step()
            scheduler_step()
            self.module.lazy_reset_grad()
        return losses


@pytest.mark.parametrize("registers_again", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(registers_again: bool, tmp_path: Path) -> None:
    """Parameters, running statistics, moments, learning rate, schedule and random numbers, all at once."""
    generate(tmp_path)
    backpass.set_seed(4)
    whole = Training(tmp_path, start=True)
    expected = whole.run(range(10), whole.scheduler.step)
    backpass.set_seed(4)
    first = Training(tmp_path, start=True)
    losses = first.run(range(4), first.scheduler.step)
    CheckpointState.save_checkpoint(first.state, tmp_path / "half", include_optimizer_state=True)
    backpass.set_seed(77)  # of other sessions; a resumed one goes on with its own numbers
    second = Training(tmp_path, "half", start=registers_again)
    losses += second.run(range(4, 10), second.module._session.scheduler_step)
    assert losses == expected
    assert second.optimizer.get_learning_rate() == whole.optimizer.get_learning_rate()
    for name, parameter in whole.state.parameters:
        np.testing.assert_array_equal(second.state.parameters[name].data, parameter.data)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("limit", [0.05, 1000.0])
def test_clipped_gradients_train_as_in_torch(kind: str, limit: float, tmp_path: Path) -> None:
    clipped = optim.SGD(clip_grad=limit) if kind == "SGD" else optim.AdamW(clip_grad=limit, eps=1e-6, adam_mode=0)
    generate(tmp_path, clipped, ratio=0.0)
    state, module, optimizer = load(tmp_path)
    rate = 0.5 if kind == "SGD" else 0.02
    optimizer.set_learning_rate(rate)
    p = {
        name: torch.from_numpy(np.array(value.data)).requires_grad_(name in TRAINED) for name, value in state.parameters
    }
    trained = [p[name] for name in TRAINED]
    theirs = (
        torch.optim.SGD(trained, rate) if kind == "SGD" else torch.optim.AdamW(trained, rate, eps=1e-6, weight_decay=0)
    )
    for step in range(6):
        x, labels = batch(step)
        theirs.zero_grad()
        h = torch.relu(torch.from_numpy(x) @ p["w1"] + p["b1"])
        n = torch.nn.functional.batch_norm(
            h, p["mean"].clone(), p["var"].clone(), p["scale"], p["shift"], training=True
        )
        loss = torch.nn.functional.cross_entropy(n @ p["w2"], torch.from_numpy(labels))
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(trained, limit))
        assert (norm > limit) == (limit < 1)  # the limit matters, or it does not
        theirs.step()
        assert float(module(x, labels)[0]) == pytest.approx(loss.item(), rel=1e-4)
        optimizer.step()
        for name in TRAINED:  # clipped in place, so the buffers show it
            np.testing.assert_allclose(state.parameters[name].grad, p[name].grad.numpy(), rtol=2e-3, atol=1e-6)
        module.lazy_reset_grad()
    for name in TRAINED:
        np.testing.assert_allclose(state.parameters[name].data, p[name].detach().numpy(), rtol=1e-3, atol=1e-5)


def test_inputs_and_outputs_of_other_libraries(tmp_path: Path) -> None:
    """torch's tensors go in through DLPack; parameters, gradients and results come out as views."""
    generate(tmp_path, ratio=0.0)
    results = []
    for convert in (np.asarray, torch.from_numpy, backpass._convert.to_engine):
        state, module, _ = load(tmp_path)
        x, labels = batch(0)
        loss, scores = module(convert(x), convert(labels))
        assert isinstance(loss, backpass.Tensor if convert is backpass._convert.to_engine else np.ndarray)
        weight = torch.from_dlpack(state._core.parameter("w1"))
        module.copy_buffer_to_parameters(torch.zeros(module.get_parameters_size()))
        assert torch.all(weight == 0)  # the same memory
        results.append([np.from_dlpack(v) if isinstance(v, backpass.Tensor) else v for v in (loss, scores)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("in_memory", [False, True], ids=["files", "bytes"])
def test_export_takes_dropout_and_batch_normalisation_out_of_training(in_memory: bool, tmp_path: Path) -> None:
    generate(tmp_path)
    _, module, optimizer = load(tmp_path, in_memory=in_memory)
    for step in range(5):
        module(*batch(step))
        optimizer.step()
        module.lazy_reset_grad()
    for _ in range(2):  # twice: nothing is used up
        module.export_model_for_inferencing(tmp_path / "inference.onnx", ["y"])
    exported = onnx.load(tmp_path / "inference.onnx")
    onnx.checker.check_model(exported, full_check=True)
    assert [i.name for i in exported.graph.input] == ["x"]
    x, labels = batch(9)
    expected = module.eval()(x, labels)[1]
    for run in (onnxruntime.InferenceSession, backpass.InferenceSession):
        session = run(str(tmp_path / "inference.onnx"))
        for rows in (x, x[:1]):  # a single row: statistics are not the batch's
            np.testing.assert_allclose(session.run(None, {"x": rows})[0], expected[: len(rows)], rtol=1e-4, atol=1e-5)
    module.train()(x, labels)


@pytest.mark.parametrize("rate", [-1.0, "x", None, float("nan")], ids=str)
def test_learning_rates_that_are_none(rate: Any, tmp_path: Path) -> None:
    generate(tmp_path)
    _, _, optimizer = load(tmp_path)
    with pytest.raises(backpass.InvalidInput, match=r"learning rate: got .*, expected a"):
        optimizer.set_learning_rate(rate)


def test_options_of_every_kind(tmp_path: Path) -> None:
    from backpass._ort import SessionOptions

    generate(tmp_path)

    def steps(options: Any) -> int:
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, session_options=options)
        module(*batch(0))
        return len(module.take_profile().steps)

    mine, offered, original = backpass.SessionOptions(), SessionOptions(), onnxruntime.SessionOptions()
    mine.profile = offered.enable_profiling = True
    original.intra_op_num_threads = 1
    assert steps(mine) == steps(offered) > 0
    assert steps(original) == steps(None) == 0
    with pytest.raises(TypeError, match="session_options: got dict"):
        steps({"num_threads": 1})
