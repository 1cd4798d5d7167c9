"""Fused limits let NaN pass: a network that has gone astray must not look healthy."""

from __future__ import annotations

import backpass
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper


def convolution(kernel: int, activation: str) -> bytes:
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((16, 16, kernel, kernel)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[kernel // 2] * 4),
        helper.make_node(activation, ["c"], ["y"], name="limit"),
    ]
    extents = ["batch", 16, 12, 12]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, extents)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, extents)],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()


# 9 x 9 is beyond our own loops and goes through oneDNN.
@pytest.mark.parametrize("kernel", [1, 3, 9])
@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu"])
def test_convolution_with_activation(kernel: int, activation: str) -> None:
    model = convolution(kernel, activation)
    x = np.random.default_rng(6).standard_normal((1, 16, 12, 12)).astype(np.float32)
    x[0, 3, 5, 6] = np.nan
    session = backpass.InferenceSession(model)
    assert "BlockedConv" in session.graph_text()
    got = session.run(None, {"x": x})[0]
    want = backpass.InferenceSession(model, reference=True).run(None, {"x": x})[0]
    assert 0 < np.isnan(want).sum() < want.size
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
