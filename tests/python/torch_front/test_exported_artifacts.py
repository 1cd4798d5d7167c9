"""From a PyTorch module to artifacts: what is trained is the module, batch normalisation included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from backpass import artifacts
from backpass.api import CheckpointState, Module, Optimizer
from backpass.torch import to_onnx


def test_batch_normalisation_keeps_its_statistics(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5, momentum=0.3), torch.nn.Linear(5, 3))
    with torch.no_grad():
        network[1].running_mean.uniform_(-1, 1)
        network[1].running_var.uniform_(1, 2)
    old = {name: buffer.clone() for name, buffer in network.named_buffers()}
    x, labels = torch.randn(16, 6) + 2, torch.randint(0, 3, (16,))
    model = to_onnx(network.train(), (x,), dynamic=True)
    artifacts.generate_artifacts(
        model,
        requires_grad=[name for name, _ in network.named_parameters()],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    with torch.no_grad():
        hidden = network[0](x)
    for name, batch in (("mean", hidden.mean(0)), ("var", hidden.var(0, unbiased=False))):
        np.testing.assert_array_equal(state.parameters[f"1.running_{name}"].data, old[f"1.running_{name}"])
        old[f"1.running_{name}"].mul_(0.7).add_(batch, alpha=0.3)
    module(x.numpy(), labels.numpy())
    optimizer.step()
    for name in ("1.running_mean", "1.running_var"):
        np.testing.assert_allclose(state.parameters[name].data, old[name], rtol=1e-5)
    values = {name: torch.from_numpy(np.array(parameter.data)) for name, parameter in state.parameters}
    network.load_state_dict(values | {"1.num_batches_tracked": torch.tensor(1)})
    expected = torch.nn.functional.cross_entropy(network.eval()(x), labels).item()
    np.testing.assert_allclose(module.eval()(x.numpy(), labels.numpy()), expected, rtol=1e-4)
