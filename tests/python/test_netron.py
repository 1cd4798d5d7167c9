"""Netron, the viewer people look at ONNX files with, opens what Backpass writes."""

import json
import shutil
import subprocess
from pathlib import Path

import backpass
import netron
import onnx
import pytest
import torch
from backpass import artifacts
from backpass.torch import to_onnx

pytestmark = pytest.mark.slow  # needs node, which `make test-slow` installs: Netron's reader is JavaScript


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.drop = torch.nn.Dropout(0.2)
        self.last = torch.nn.Linear(4 * 6 * 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("netron") / "netron"
    shutil.copytree(Path(netron.__file__).parent, folder)
    (folder / "package.json").write_text('{"type": "module"}')  # its files are modules; node wants to be told
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts")
    network = Network()
    model = to_onnx(network, (torch.zeros(2, 1, 8, 8),))
    names = [name for name, _ in network.named_parameters()]
    artifacts.generate_artifacts(
        model,
        requires_grad=names,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    onnx.save(backpass.grad(onnx.load(folder / "eval_model.onnx"), names), folder / "gradient.onnx")
    return folder


@pytest.mark.parametrize("name", ["training_model", "eval_model", "optimizer_model", "gradient"])
def test_opens(name: str, viewer: Path, folder: Path) -> None:
    path = folder / f"{name}.onnx"
    script = Path(__file__).with_name("netron_open.mjs")
    out = subprocess.run(["node", script, viewer, path], capture_output=True, text=True, check=True)
    (drawn,) = json.loads(out.stdout)
    graph = onnx.load(path).graph
    assert drawn["nodes"] == [[n.op_type, [o for o in n.output if o]] for n in graph.node]
    assert drawn["outputs"] == [o.name for o in graph.output]
    assert set(drawn["inputs"]) == {i.name for i in graph.input} - {i.name for i in graph.initializer}
