"""Backpass trains as torch does: the same losses step by step, the same parameters in the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from backpass import artifacts
from backpass.api import CheckpointState, Module, Optimizer
from backpass.onnxblock import optim
from torch import nn
from training_networks import CLASSES, TRAINEES, Trainee, export

STEPS = 10
EPSILON = 1e-6


def batches(trainee: Trainee, count: int) -> list[tuple[tuple[np.ndarray, ...], np.ndarray]]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        inputs = trainee.batch(rng)
        made.append((inputs, rng.integers(0, CLASSES, len(inputs[0]))))
    return made


def make(trainee: Trainee, kind: str, folder: Path) -> nn.Module:
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
        optimizer=optim.SGD() if kind == "SGD" else optim.AdamW(eps=EPSILON, adam_mode=0),
        artifact_directory=str(folder),
    )
    return module


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", list(TRAINEES))
def test_losses_and_parameters_follow_torch(name: str, kind: str, tmp_path: Path) -> None:
    trainee = TRAINEES[name]
    module = make(trainee, kind, tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", ours)
    rate = trainee.rate if kind == "SGD" else trainee.adam_rate
    optimizer.set_learning_rate(rate)
    theirs = (
        torch.optim.SGD(module.parameters(), rate)
        if kind == "SGD"
        else torch.optim.AdamW(module.parameters(), rate, eps=EPSILON, weight_decay=0.0)
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
    names = [name for name, _ in module.named_parameters() if name in state.parameters]
    wanted = np.concatenate([module.get_parameter(name).detach().numpy().ravel() for name in names])
    trained = np.concatenate([state.parameters[name].data.ravel() for name in names])
    assert np.linalg.norm(trained - wanted) <= 1e-4 * np.linalg.norm(wanted)


def test_batch_norm_statistics_are_updated_and_exported(tmp_path: Path) -> None:
    trainee = TRAINEES["resnet18"]
    module = make(trainee, "SGD", tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    ours = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    counts: dict[str, int] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(
                lambda _, x, y, name=name: counts.__setitem__(name, x[0].numel() // x[0].shape[1])
            )
    steps, kept = 3, 0.9
    before = {name: value.clone() for name, value in module.named_buffers()}
    for inputs, labels in batches(trainee, steps):
        module(*map(torch.from_numpy, inputs))
        ours(*inputs, labels)
    for name, count in counts.items():
        mean, variance = (module.get_buffer(f"{name}.{part}").numpy() for part in ("running_mean", "running_var"))
        np.testing.assert_allclose(state.parameters[f"{name}.running_mean"].data, mean, rtol=1e-4, atol=1e-5)
        # ONNX keeps the variance of the batch itself, torch the estimate of what it was drawn from.
        start = kept**steps * before[f"{name}.running_var"].numpy()
        wanted = start + (variance - start) * (count - 1) / count
        np.testing.assert_allclose(state.parameters[f"{name}.running_var"].data, wanted, rtol=1e-4)
        module.get_buffer(f"{name}.running_var").copy_(torch.from_numpy(wanted))
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
