"""Artifacts beside those of onnxruntime-training-cpu 1.19.2: the same structure, and it trains both alike.

Needs the path of a Python that has it (with onnx 1.16 and numpy below 2) in BACKPASS_ORT_TRAINING_PYTHON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from backpass.artifacts import LossType, OptimType, generate_artifacts
from onnx import numpy_helper, parser
from ort_training.interpreters import ORIGINAL, needs_original

pytestmark = [pytest.mark.slow, needs_original]

THEIRS = """
import json, sys
import numpy as np, onnx
from onnxruntime.training import api, artifacts
folder, options = sys.argv[1], json.loads(sys.argv[2])
options["loss"] = artifacts.LossType[options["loss"]]
options["optimizer"] = artifacts.OptimType[options["optimizer"]]
artifacts.generate_artifacts(onnx.load(folder + "/forward.onnx"), artifact_directory=folder + "/theirs", **options)
feeds = np.load(folder + "/feeds.npz")
curves = []
for who in ("ours", "theirs"):
    place = folder + "/" + who
    state = api.CheckpointState.load_checkpoint(place + "/checkpoint")
    module = api.Module(place + "/training_model.onnx", state, place + "/eval_model.onnx")
    optimizer = api.Optimizer(place + "/optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.02)
    curve = []
    for _ in range(10):
        curve.append(float(np.asarray(module(feeds["x"], feeds["t"])[0]).reshape(())))
        optimizer.step()
        module.lazy_reset_grad()
    module.eval()
    curve.append(float(np.asarray(module(feeds["x"], feeds["t"])[0]).reshape(())))
    curves.append(curve)
print("CURVES", json.dumps(curves))
"""

MLP = ("float[N, 4] x", "h = Gemm<transB = 1>(x, w1, b1) r = Relu(h) y = Gemm<transB = 1>(r, w2, b2)")
CNN = (
    "float[N, 1, 6, 6] x",
    "c = Conv<pads = [1, 1, 1, 1]>(x, k, kb) r = Relu(c) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) "
    "f = Flatten(p) y = Gemm<transB = 1>(f, v, b2)",
)
SHAPES = {"w1": (8, 4), "b1": (8,), "w2": (3, 8), "b2": (3,), "k": (2, 1, 3, 3), "kb": (2,), "v": (3, 18)}
CASES: list[tuple[tuple[str, str], dict[str, Any]]] = [
    (MLP, {"loss": "CrossEntropyLoss", "optimizer": "AdamW", "requires_grad": ["w1", "w2"], "frozen_params": ["b1"]}),
    (MLP, {"loss": "MSELoss", "optimizer": "SGD", "requires_grad": ["w1", "b1", "w2", "b2"]}),
    (MLP, {"loss": "BCEWithLogitsLoss", "optimizer": "AdamW", "requires_grad": ["w2"], "frozen_params": ["w1"]}),
    (MLP, {"loss": "L1Loss", "optimizer": "AdamW", "requires_grad": ["w1", "b1", "w2", "b2"]}),
    (CNN, {"loss": "CrossEntropyLoss", "optimizer": "SGD", "requires_grad": ["k", "kb", "v", "b2"]}),
]  # fmt: skip


def forward(inputs: str, body: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[N, 3] y) {{ {body} }}'
    model = parser.parse_model(text)
    rng = np.random.default_rng(4)
    used = {name for node in model.graph.node for name in node.input}
    for name, shape in SHAPES.items():
        if name in used:
            values = (0.5 * rng.standard_normal(shape)).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def feeds(network: tuple[str, str], loss: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((7, 1, 6, 6) if network is CNN else (7, 4)).astype(np.float32)
    t = rng.integers(0, 3, 7) if loss == "CrossEntropyLoss" else rng.random((7, 3)).astype(np.float32)
    return {"x": x, "t": t}


def signature(infos: Any) -> list[tuple[str, str]]:
    """Names without the numbers that are counted up, and types."""
    return [(re.sub(r"::\d+$", "", info.name), str(info.type)) for info in infos]


def accumulators(model: onnx.ModelProto) -> list[tuple[str, list[str], list[str]]]:
    nodes = [n for n in model.graph.node if n.op_type == "InPlaceAccumulatorV2"]
    return [(n.name, list(n.input), list(n.output)) for n in nodes]


@pytest.mark.parametrize(("network", "options"), CASES, ids=lambda v: v["loss"] if isinstance(v, dict) else v[1][:1])
def test_same_structure_and_same_curve(network: tuple[str, str], options: dict[str, Any], tmp_path: Path) -> None:
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    onnx.save(forward(*network), tmp_path / "forward.onnx")
    np.savez(tmp_path / "feeds.npz", **feeds(network, options["loss"]))
    options = {"additional_output_names": ["y"], **options}
    kinds = {"loss": LossType[options["loss"]], "optimizer": OptimType[options["optimizer"]]}
    generate_artifacts(forward(*network), artifact_directory=tmp_path / "ours", **(options | kinds))
    command = [ORIGINAL, "-c", THEIRS, str(tmp_path), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    for kind in ("training", "eval", "optimizer"):
        ours, theirs = (onnx.load(tmp_path / who / f"{kind}_model.onnx") for who in ("ours", "theirs"))
        assert signature(ours.graph.input) == signature(theirs.graph.input)
        # BCEWithLogitsLoss and MSELoss end in the same operator, so that even the name of the loss is the same.
        assert signature(ours.graph.output) == signature(theirs.graph.output)
        assert accumulators(ours) == accumulators(theirs)
        if kind == "optimizer":
            (one,), (other,) = ours.graph.node, theirs.graph.node
            assert (one.op_type, one.domain, one.attribute) == (other.op_type, other.domain, other.attribute)
    mine, reference = json.loads(done.stdout.split("CURVES", 1)[1])
    np.testing.assert_allclose(mine, reference, rtol=1e-4)
    assert mine[0] > mine[-1]
