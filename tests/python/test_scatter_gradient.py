"""Gradients where several updates meet at one element: shares among ties and factors of zero, as torch gives them."""

from __future__ import annotations

import backpass
import numpy as np
import onnx
import pytest
import torch
from onnx import helper

REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def gradients(op: str, reduction: str, data: np.ndarray, index: np.ndarray, updates: np.ndarray) -> list[np.ndarray]:
    node = helper.make_node(op, ["x", "i", "u"], ["y"], reduction=reduction)
    shapes = {"x": data, "i": index, "u": updates, "y": data}
    info = {
        n: helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in shapes.items()
    }
    graph = helper.make_graph([node], "g", [info["x"], info["i"], info["u"]], [info["y"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    onnx.checker.check_model(model)
    session = backpass.InferenceSession(backpass.grad(model, ["x", "u"], seeds=True).SerializeToString())
    seed = np.arange(1.0, data.size + 1).reshape(data.shape)
    return session.run(None, {"x": data, "i": index, "u": updates, "y_grad": seed})[1:]


def expected(reduction: str, data: np.ndarray, index: np.ndarray, updates: np.ndarray) -> list[np.ndarray]:
    x, u = (torch.tensor(a, requires_grad=True) for a in (data, updates))
    y = torch.scatter_reduce(x, 0, torch.tensor(index), u, REDUCTIONS[reduction])
    y.backward(torch.arange(1.0, data.size + 1, dtype=torch.float64).reshape(data.shape))
    return [x.grad.numpy(), u.grad.numpy()]  # type: ignore[union-attr]


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", list(REDUCTIONS))
@pytest.mark.parametrize("values", [[1, 2], [0, 1], [0, 3, -2], [-1, 0, 0]], ids=str)
def test_updates_that_meet(op: str, reduction: str, values: list[int]) -> None:
    rng = np.random.default_rng(len(values))
    for _ in range(5):
        data = rng.choice(values, 4).astype(np.float64)
        updates = rng.choice(values, 6).astype(np.float64)
        index = rng.integers(0, 4, 6)
        got = gradients(op, reduction, data, index if op == "ScatterElements" else index[:, None], updates)
        for name, a, b in zip("xu", got, expected(reduction, data, index, updates), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=f"{name}: data {data}, {updates} at {index}")


def test_an_element_that_is_not_a_number_gives_nothing_back() -> None:
    got = gradients("ScatterElements", "max", np.array([1.0, np.nan]), np.array([0, 1]), np.array([2.0, 3.0]))
    np.testing.assert_array_equal(got[0], [0, 0])
    np.testing.assert_array_equal(got[1], [1, 0])
