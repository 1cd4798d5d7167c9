"""Backpass trains as torch does: the same losses step by step, the same parameters in the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from training_networks import CLASSES, TRAINEES, Trainee, export

from backpass import artifacts
from backpass.api import CheckpointState, Module, Optimizer

STEPS = 10


def batches(trainee: Trainee, count: int) -> list[tuple[tuple[np.ndarray, ...], np.ndarray]]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        inputs = trainee.batch(rng)
        made.append((inputs, rng.integers(0, CLASSES, len(inputs[0]))))
    return made


def make(trainee: Trainee, optimizer: artifacts.OptimType, folder: Path) -> nn.Module:
    torch.manual_seed(0)
    module = trainee.build().train()
    data = batches(trainee, 1)[0][0]
    model = export(module, data)
    trainable = {name for name, _ in module.named_parameters()}
    kept = [t.name for t in model.graph.initializer if t.name in trainable]
    artifacts.generate_artifacts(
        model,
        requires_grad=kept,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optimizer,
        artifact_directory=str(folder),
    )
    return module


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", list(TRAINEES))
def test_losses_and_parameters_follow_torch(name: str, kind: str, tmp_path: Path) -> None:
    trainee = TRAINEES[name]
    module = make(trainee, artifacts.OptimType[kind], tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", ours)
    rate = 0.05 if kind == "SGD" else 1e-3
    optimizer.set_learning_rate(rate)
    # The original's AdamW: epsilon is added to the uncorrected root, and decay comes last.
    theirs = (
        torch.optim.SGD(module.parameters(), rate)
        if kind == "SGD"
        else torch.optim.AdamW(module.parameters(), rate, eps=1e-6, weight_decay=0.0)
    )
    expected, got = [], []
    for inputs, labels in batches(trainee, STEPS):
        theirs.zero_grad()
        loss = nn.functional.cross_entropy(module(*map(torch.from_numpy, inputs)), torch.from_numpy(labels))
        loss.backward()
        theirs.step()
        expected.append(loss.item())
        got.append(float(ours(*inputs, labels)))
        optimizer.step()
        ours.lazy_reset_grad()
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    for parameter, value in module.named_parameters():
        if parameter in state.parameters:
            scale = float(value.detach().abs().max()) + 1e-3
            np.testing.assert_allclose(state.parameters[parameter].data, value.detach().numpy(), atol=1e-4 * scale)


def test_batch_norm_statistics_are_updated_and_exported(tmp_path: Path) -> None:
    trainee = TRAINEES["resnet18"]
    module = make(trainee, artifacts.OptimType.SGD, tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    for inputs, labels in batches(trainee, 3):
        module(*map(torch.from_numpy, inputs))
        ours(*inputs, labels)
    for name, value in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            np.testing.assert_allclose(state.parameters[name].data, value.numpy(), rtol=1e-4, atol=1e-6)
    ours.export_model_for_inferencing(tmp_path / "inference.onnx", ["scores"])
    exported = onnx.load(tmp_path / "inference.onnx")
    onnx.checker.check_model(exported, full_check=True)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "inference.onnx"))
    (inputs, _) = batches(trainee, 1)[0]
    with torch.no_grad():
        expected = module.eval()(*map(torch.from_numpy, inputs)).numpy()
    (got,) = session.run(None, {"input_0": inputs[0]})
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
