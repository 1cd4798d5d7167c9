"""Convolutions and pooling over bfloat16 and float16 images: what float32 gives for the same numbers, rounded once."""

from __future__ import annotations

import backpass
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

Arrays = dict[str, np.ndarray]
TYPES = {"bfloat16": (TensorProto.BFLOAT16, torch.bfloat16), "float16": (TensorProto.FLOAT16, torch.float16)}


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    return torch.from_numpy(values).to(TYPES[name][1]).float().numpy()


def model(nodes: list[onnx.NodeProto], feeds: Arrays, outputs: list[str], name: str | None) -> bytes:
    """float32 outside; inside, feeds and results that are floats are of the type `name`."""
    inside: list[onnx.NodeProto] = []
    if name is not None:
        inside += [helper.make_node("Cast", [f"{k}_wide"], [k], to=TYPES[name][0]) for k in feeds]
    inside += nodes
    wide = []
    for output in outputs:
        inside.append(helper.make_node("Cast", [output], [f"{output}_wide"], to=TensorProto.FLOAT))
        wide.append(onnx.ValueInfoProto(name=f"{output}_wide"))
    suffix = "_wide" if name is not None else ""
    inputs = [helper.make_tensor_value_info(f"{k}{suffix}", TensorProto.FLOAT, v.shape) for k, v in feeds.items()]
    domains = [("", 22), ("com.microsoft", 1)]
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains]
    return helper.make_model(
        helper.make_graph(inside, "g", inputs, wide), opset_imports=opsets, ir_version=10
    ).SerializeToString()


def run(nodes: list[onnx.NodeProto], feeds: Arrays, outputs: list[str], name: str | None, threads: int = 1) -> list:
    options = backpass.SessionOptions()
    options.num_threads = threads
    suffix = "_wide" if name is not None else ""
    session = backpass.InferenceSession(model(nodes, feeds, outputs, name), options)
    return session.run(None, {f"{k}{suffix}": v for k, v in feeds.items()})


def check(nodes: list[onnx.NodeProto], feeds: Arrays, outputs: list[str], name: str) -> None:
    feeds = {k: rounded(v, name) for k, v in feeds.items()}
    wanted = [rounded(v, name) for v in run(nodes, feeds, outputs, None)]
    for threads in (1, 2, 3):
        for output, got, want in zip(outputs, run(nodes, feeds, outputs, name, threads), wanted, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{output}, {threads} threads")


# batch, channels in, channels out, height, width, padding: tiles of four and of two results, borders, rests of vectors;
# the last two are too small for Winograd's method
CONVOLUTIONS = [
    (9, 32, 64, 26, 26, 0),
    (7, 65, 39, 9, 29, 1),
    (64, 48, 80, 4, 4, 1),
    (2, 1, 32, 28, 28, 0),
    (1, 3, 5, 7, 6, 1),
]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_and_its_gradients(case: tuple[int, ...], name: str) -> None:
    n, c, k, height, width, pad = case
    rng = np.random.default_rng(0)
    shapes = {
        "x": (n, c, height, width),
        "w": (k, c, 3, 3),
        "b": (k,),
        "dy": (n, k, height + 2 * pad - 2, width + 2 * pad - 2),
    }
    feeds = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    pads = [pad] * 4
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=pads),
        helper.make_node("ConvGrad", ["dy", "x", "w"], ["dx", "dw", "db"], domain="com.microsoft", pads=pads),
    ]
    check(nodes, feeds, ["y", "dx", "dw", "db"], name)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(3, 5, 24, 24), (64, 33, 12, 12), (1, 1, 9, 7), (2, 3, 200, 190), (0, 4, 8, 8)])
def test_pooling(shape: tuple[int, ...], name: str) -> None:
    """More channels than are converted together, and a rest of them; one plane; planes larger than a slice; none."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for kind, attributes in (
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1]}),
        ("LpPool", {"kernel_shape": [2, 3], "p": 3}),
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
    ):
        check([helper.make_node(kind, ["x"], ["y"], **attributes)], {"x": x}, ["y"], name)


@pytest.mark.parametrize("kind", ["max_pool2d", "avg_pool2d"])
def test_trained_under_autocast(kind: str) -> None:
    """Gradients through a pooling layer of bfloat16 images follow torch's."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Conv2d(8, 40, 3)
            self.second = torch.nn.Conv2d(40, 48, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.second(torch.relu(self.first(x))))
            return getattr(torch.nn.functional, kind)(y, 2).float().square().mean()

    torch.manual_seed(1)
    x = torch.randn(6, 8, 15, 14)
    gradients = []
    for wrap in (torch.nn.Module.train, backpass.ORTModule):
        net = Net()
        with torch.autocast("cpu", torch.bfloat16):
            loss = wrap(net)(x)
        loss.backward()
        gradients.append([p.grad for p in net.parameters()])
    reference = Net().double()
    reference(x.double()).backward()
    for theirs, ours, exact in zip(*gradients, (p.grad for p in reference.parameters()), strict=True):
        error, their_error = ((g - exact).norm() / exact.norm() for g in (ours, theirs))
        assert error <= 1.5 * their_error + 2**-9
