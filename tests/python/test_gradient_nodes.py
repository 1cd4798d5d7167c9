"""Gradient nodes of ai.onnx.preview.training: derivatives asked for inside a model."""

from __future__ import annotations

import backpass
import numpy as np
import onnx
import pytest
from onnx import parser

HEAD = '<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]> g '


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + text)


def test_a_value_that_nobody_else_reads_is_differentiated() -> None:
    m = model("""(float[N] x, float[N] w) => (float[N] twice) {
        p = Mul(x, w)
        y = Mul(p, x)
        dx = ai.onnx.preview.training.Gradient<xs = ["x"], y = "y">(x)
        twice = Add(dx, dx)
    }""")
    x, w = np.array([1.0, 2.0, -3.0], np.float32), np.array([0.5, 1.0, 2.0], np.float32)
    for reference in (False, True):
        (twice,) = backpass.InferenceSession(m, reference=reference).run(None, {"x": x, "w": w})
        np.testing.assert_allclose(twice, 4 * x * w)


@pytest.mark.parametrize("reference", [False, True])
def test_derivatives_of_derivatives(reference: bool) -> None:
    m = model("""(float[N] x) => (float[N] first, float[N] second, float[N] third) {
        square = Mul(x, x)
        y = Mul(square, x)
        first = ai.onnx.preview.training.Gradient<xs = ["x"], y = "y">(x)
        z = Mul(first, first)
        second = ai.onnx.preview.training.Gradient<xs = ["x"], y = "z">(x)
        third = ai.onnx.preview.training.Gradient<xs = ["x"], y = "second">(x)
    }""")
    x = np.array([1.0, 2.0, -0.5], np.float32)
    results = backpass.InferenceSession(m, reference=reference).run(None, {"x": x})
    for got, expected in zip(results, (3 * x**2, 36 * x**3, 108 * x**2), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_constants_are_differentiated_by() -> None:
    m = model("""(float[N] x) => (float[2] dw) <float[2] w = {3, 5}> {
        copy = Identity(w)
        square = Mul(copy, copy)
        y = Mul(x, square)
        dw = ai.onnx.preview.training.Gradient<xs = ["copy"], y = "y">(copy)
    }""")
    (dw,) = backpass.InferenceSession(m).run(None, {"x": np.array([1.0, 2.0], np.float32)})
    np.testing.assert_allclose(dw, [6.0, 20.0])


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ('Gradient<xs = ["x"], y = "y">(w)', "the tensors that xs names"),
        ('Gradient<xs = ["x"]>(x)', "expected xs and y"),
        ('Gradient<xs = ["x"], y = "nothing">(x)', "the name of a value"),
        ('Gradient<xs = ["x"], y = "d">(x)', "cycle"),
        ('Gradient<xs = ["i"], y = "y">(i)', "got int64"),
    ],
)
def test_bad_requests_are_refused(node: str, message: str) -> None:
    m = model(f"""(float[2] x, float[2] w, int64[2] i) => (d) {{
        y = Mul(x, w)
        d = ai.onnx.preview.training.{node}
    }}""")
    report = backpass.check(m)
    assert len(report) == 1
    assert message in str(report)


def product(text: str) -> onnx.ModelProto:
    return parser.parse_model('<ir_version: 8, opset_import: ["": 17, "backpass": 1]> g ' + text)


@pytest.mark.parametrize("reference", [False, True])
def test_a_gradient_that_begins_with_a_value(reference: bool) -> None:
    m = product("""(float[N] x, float[N] dy) => (float[N] dx, float[N] dw) {
        w = Mul(x, x)
        y = Mul(x, w)
        copy = Identity(x)
        again = Mul(copy, w)
        all, dw = backpass.VectorJacobianProduct(x, w, y, dy)
        dx = backpass.VectorJacobianProduct(copy, again, dy)
    }""")
    x, dy = np.array([1.0, 2.0, -3.0], np.float32), np.array([0.5, 1.0, 2.0], np.float32)
    dx, dw = backpass.InferenceSession(m, reference=reference).run(None, {"x": x, "dy": dy})
    np.testing.assert_allclose(dx, dy * x * x)
    np.testing.assert_allclose(dw, dy * x)


def test_a_gradient_begins_with_the_type_of_its_value() -> None:
    m = product("(float[2] x, double[2] dy) => (dx) { y = Mul(x, x) dx = backpass.VectorJacobianProduct(x, y, dy) }")
    assert "dY: got float64, expected float32" in str(backpass.check(m))
