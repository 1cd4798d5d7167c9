"""Networks of convolutions with constant weights, which run in blocked layout: random ones against onnxruntime, single
convolutions against torch in float64, the same bits for any number of threads."""

from __future__ import annotations

import backpass
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

CHANNELS = (1, 3, 8, 12, 16, 20, 24, 32, 40, 48, 70)
SEEDS = range(40)


class Chain:
    """A random network, with shapes of one image: channels, height, width."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shapes = {"x": (self.any(CHANNELS), self.any((7, 14, 19)), self.any((6, 14, 23)))}
        last = "x"
        for _ in range(int(self.rng.integers(3, 8))):
            last = self.any((self.conv, self.conv, self.conv, self.depthwise, self.pool, self.branches, self.point))(
                last
            )
        self.outputs = [last, self.node("GlobalAveragePool", [last], (self.shapes[last][0], 1, 1))]

    def any(self, choices: tuple) -> object:
        return choices[int(self.rng.integers(len(choices)))]

    def constant(self, *shape: int) -> str:
        values = self.rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, op: str, inputs: list[str], shape: tuple[int, int, int], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.shapes[name] = shape
        return name

    def windows(self, x: str, channels: int, group: int, kernel: tuple[int, int] | None = None) -> str:
        inside, height, width = self.shapes[x]
        kernel = kernel or tuple(int(self.any((1, 1, 3, 3, 3, 5))) for _ in range(2))
        stride = self.any(((1, 1), (1, 1), (2, 2), (2, 1)))
        dilation = self.any(((1, 1), (1, 1), (2, 1)))
        pads = [int(self.rng.integers(0, k)) for k in kernel + kernel]
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        free = [e + a + b - r for e, a, b, r in zip((height, width), pads[:2], pads[2:], reach, strict=True)]
        if min(free) < 0:
            return x
        out = tuple(f // s + 1 for f, s in zip(free, stride, strict=True))
        inputs = [x, self.constant(channels, inside // group, *kernel)]
        if self.rng.random() < 0.7:
            inputs.append(self.constant(channels))
        attributes = {"group": group, "strides": stride, "dilations": dilation, "pads": pads}
        return self.activation(self.node("Conv", inputs, (channels, *out), **attributes))

    def activation(self, x: str) -> str:
        op = self.any(("", "Relu", "Clip", "HardSwish", "Sigmoid", "LeakyRelu"))
        if op == "Clip":
            return self.node(op, [x, "low", "high"], self.shapes[x])
        return self.node(op, [x], self.shapes[x]) if op else x

    def conv(self, x: str) -> str:
        group = 2 if self.shapes[x][0] % 2 == 0 and self.rng.random() < 0.2 else 1
        return self.windows(x, int(self.any(CHANNELS[2:])) // group * group, group)

    def depthwise(self, x: str) -> str:
        return self.windows(x, self.shapes[x][0], self.shapes[x][0])

    def pool(self, x: str) -> str:
        c, height, width = self.shapes[x]
        if min(height, width) < 3:
            return x
        op = self.any(("MaxPool", "AveragePool"))
        return self.node(op, [x], (c, height - 1, width - 1), kernel_shape=[2, 2])

    def branches(self, x: str) -> str:
        """Two convolutions that meet again, in a sum or side by side."""
        c, height, width = self.shapes[x]
        outside = int(self.any(CHANNELS[2:]))
        both = [
            self.node("Conv", [x, self.constant(outside, c, 3, 3)], (outside, height, width), pads=[1] * 4),
            self.node("Conv", [x, self.constant(outside, c, 1, 1)], (outside, height, width)),
        ]
        if self.rng.random() < 0.5:
            return self.activation(self.node("Add", both, (outside, height, width)))
        return self.node("Concat", both, (2 * outside, height, width), axis=1)

    def point(self, x: str) -> str:
        """Something of each channel by itself: a factor, or a gate as in squeeze and excitation."""
        c = self.shapes[x][0]
        if self.rng.random() < 0.5:
            return self.node("Mul", [x, self.constant(c, 1, 1)], self.shapes[x])
        mean = self.node("GlobalAveragePool", [x], (c, 1, 1))
        gate = self.node("Sigmoid", [self.node("Conv", [mean, self.constant(c, c, 1, 1)], (c, 1, 1))], (c, 1, 1))
        return self.node("Mul", [x, gate], self.shapes[x])

    def model(self) -> bytes:
        limits = [numpy_helper.from_array(np.float32(v), n) for v, n in ((-0.2, "low"), (0.6, "high"))]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *self.shapes["x"]])]
        outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", *self.shapes[n]]) for n in self.outputs]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, [*self.weights, *limits])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def session(data: bytes, threads: int = 1, without: tuple[str, ...] = ()) -> backpass.InferenceSession:
    options = backpass.SessionOptions()
    options.num_threads = threads
    options.disabled_passes = list(without)
    return backpass.InferenceSession(data, options)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks(seed: int) -> None:
    chain = Chain(seed)
    data = chain.model()
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    judge = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    ours = [session(data, threads) for threads in (1, 2, 3)]
    for batch in (1, 3):
        x = chain.rng.standard_normal((batch, *chain.shapes["x"])).astype(np.float32)
        wanted = judge.run(None, {"x": x})
        got = [s.run(None, {"x": x}) for s in ours]
        for a, b in zip(got[0], wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(b).max())))
        for others in got[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(got[0], others, strict=True))


def test_networks_run_blocked() -> None:
    """What the random networks are for: most of them have blocked convolutions, rests of blocks, and Winograd's."""
    texts = [session(Chain(seed).model()).graph_text() for seed in SEEDS]
    assert sum("BlockedConv" in t for t in texts) >= 35
    assert sum("channels=" in t for t in texts) >= 8
    assert sum("winograd=1" in t for t in texts) >= 15


# batch, channels in and out, height, width, padding before and after; both sizes of tiles, and rests of all kinds
SQUARES = [
    (1, 64, 64, 56, 56, 1, 1),
    (1, 128, 96, 7, 7, 1, 1),
    (1, 512, 512, 7, 7, 1, 1),
    (3, 24, 40, 19, 30, 0, 2),
    (9, 40, 24, 13, 5, 1, 0),
    (2, 64, 48, 4, 4, 2, 2),
]


@pytest.mark.parametrize("case", SQUARES)
def test_transformed_squares(case: tuple[int, ...]) -> None:
    n, c, k, height, width, before, after = case
    rng = np.random.default_rng(n)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((n, c, height, width), (k, c, 3, 3), (k,)))
    pads = [before, before, after, after]
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=pads)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", c, height, width])]
    constants = [numpy_helper.from_array(v, name) for v, name in ((w, "w"), (b, "b"))]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")], constants)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

    def in_doubles(change: object) -> np.ndarray:
        tx, tw, tb = (torch.from_numpy(change(v).astype(np.float64)) for v in (x, w, b))
        padded = torch.nn.functional.pad(tx, (before, after, before, after))
        return torch.nn.functional.conv2d(padded, tw, tb).numpy()

    wanted, magnitudes = in_doubles(np.asarray), in_doubles(np.abs)
    got = session(data).run(None, {"x": x})[0]
    direct = session(data, without=("winograd_convolutions",)).run(None, {"x": x})[0]
    assert not np.array_equal(got, direct), "Winograd's method was not used"
    # docs/winograd.md: 2 to 3 times the error of direct sums; an element rounds by the magnitudes of its tile
    error, plain = (float(np.sqrt(np.mean((v - wanted) ** 2))) for v in (got, direct))
    assert error <= 5 * plain
    assert np.all(np.abs(got - wanted) <= 1e-6 * magnitudes.max())
    for threads in (2, 3):
        assert np.array_equal(got, session(data, threads).run(None, {"x": x})[0])


def test_no_number_crosses_into_other_channels() -> None:
    """A NaN in one image stays there, and reaches what depends on it; what is left of a block is never read."""
    rng = np.random.default_rng(3)
    chain = Chain(0)
    chain.nodes.clear()
    chain.shapes = {"x": (24, 9, 9)}
    y = chain.node("Conv", ["x", chain.constant(24, 24, 1, 1)], (24, 9, 9))
    y = chain.node("Conv", [y, chain.constant(24, 1, 3, 3)], (24, 9, 9), group=24, pads=[1] * 4)
    chain.outputs = [chain.node("Clip", [y, "low", "high"], (24, 9, 9))]
    x = rng.standard_normal((2, 24, 9, 9)).astype(np.float32)
    x[1, 5, 4, 4] = np.nan
    x[0, 7, 0, 0] = np.inf
    got, wanted = (s.run(None, {"x": x})[0] for s in (session(chain.model()), ort.InferenceSession(chain.model())))
    assert np.isnan(got[1, :, 3:6, 3:6]).all()
    assert np.isfinite(got[1, :, :3]).all()
    finite = np.isfinite(got)
    assert finite[0].all()
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-5)
