"""ConvGrad where oneDNN, the matrix product or both compute it: exact, and the same bits for any number of threads."""

from __future__ import annotations

import backpass
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

# x, w, stride, pad, dilation: strides that leave a rest, groups cut into parts, depthwise, images smaller than kernels
CASES = [
    ((3, 16, 9, 8), (16, 16, 3, 3), 2, 0, 1),
    ((2, 12, 11, 7), (20, 12, 2, 3), 3, 1, 2),
    ((2, 8, 13), (8, 8, 4), 2, 0, 3),
    ((2, 8, 5, 6, 7), (16, 8, 2, 2, 2), 2, 0, 1),
    ((2, 32, 9, 9), (64, 1, 3, 3), 2, 0, 1),
    ((2, 32, 9, 9), (48, 8, 3, 3), 1, 1, 1),
    ((8, 64, 14, 14), (64, 64, 3, 3), 1, 1, 1),
    ((16, 256, 2, 2), (256, 256, 3, 3), 1, 1, 1),
    ((5, 128, 9, 9), (128, 1, 3, 3), 1, 1, 1),
    ((9, 1, 20, 20), (16, 1, 3, 3), 1, 0, 1),
    ((9, 3, 16, 16), (16, 3, 7, 7), 2, 3, 1),
]


def model(feeds: dict[str, np.ndarray], **attrs: object) -> bytes:
    node = helper.make_node("ConvGrad", list(feeds), ["dx", "dw", "db"], domain="com.microsoft", **attrs)
    inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in feeds.items()]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=n) for n in node.output])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize(("x_shape", "w_shape", "stride", "pad", "dilation"), CASES)
def test_exact_and_independent_of_threads(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], stride: int, pad: int, dilation: int
) -> None:
    rng = np.random.default_rng(0)
    n, group = len(x_shape) - 2, x_shape[1] // w_shape[1]
    x, w = (torch.from_numpy(rng.standard_normal(s)).float().double().requires_grad_() for s in (x_shape, w_shape))
    bias = torch.zeros(w_shape[0], dtype=torch.float64, requires_grad=True)
    convolve = getattr(torch.nn.functional, f"conv{n}d")
    y = convolve(x, w, bias, stride=stride, padding=pad, dilation=dilation, groups=group)
    dy = torch.from_numpy(rng.standard_normal(y.shape)).float().double()
    wanted = [t.numpy() for t in torch.autograd.grad(y, [x, w, bias], dy)]

    feeds = {k: t.detach().numpy().astype(np.float32) for k, t in (("dy", dy), ("x", x), ("w", w))}
    attrs = {"strides": [stride] * n, "pads": [pad] * 2 * n, "dilations": [dilation] * n, "group": group}
    results = []
    for threads in (1, 2, 3):
        options = backpass.SessionOptions()
        options.num_threads = threads
        results.append(backpass.InferenceSession(model(feeds, **attrs), options).run(None, feeds))
    for got, want in zip(results[0], wanted, strict=True):
        assert np.abs(got - want).max() <= 5e-6 * np.abs(want).max()
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))
