"""QuantizeLinear and DequantizeLinear beyond their rows: edges, all formats against a plain numpy formula, messages."""

from __future__ import annotations

from typing import Any

import backpass
import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

INTEGERS = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "uint4": (0, 15),
    "int4": (-8, 7),
    "uint2": (0, 3),
    "int2": (-2, 1),
}
FLOATS = [
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
]


def run(op: str, *inputs: np.ndarray | None, domain: str = "", **attrs: Any) -> np.ndarray:
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(inputs)]
    fed = {n: v for n, v in zip(names, inputs, strict=True) if n}
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="q", domain=domain, **attrs)],
        "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in fed.items()],
        [onnx.ValueInfoProto(name="y")],
    )
    opsets = [helper.make_opsetid("", 28)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=opsets)
    return backpass.InferenceSession(model.SerializeToString()).run(None, fed)[0]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("shape", [(2, 9, 3), (2, 3, 9)])
def test_integer_formats_by_block(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    low, high = INTEGERS[name]
    axis = shape.index(9)
    blocks = tuple(3 if n == 9 else n for n in shape)  # the last block holds one element
    x = rng.normal(0, high, shape).astype(np.float32)
    scale = rng.uniform(0.5, 2, blocks).astype(np.float32)
    zero = rng.integers(max(low, 0), 2, blocks).astype(np.dtype(name))
    spread_scale, spread_zero = (np.repeat(a, 4, axis).take(range(9), axis) for a in (scale, zero.astype(np.float32)))
    wanted = np.clip(np.rint(x / spread_scale) + spread_zero, low, high)
    y = run("QuantizeLinear", x, scale, zero, axis=axis, block_size=4)
    np.testing.assert_array_equal(y.astype(np.float32), wanted)
    back = run("DequantizeLinear", y, scale, zero, axis=axis, block_size=4)
    np.testing.assert_array_equal(back, (wanted - spread_zero) * spread_scale)


@pytest.mark.parametrize("name", FLOATS)
def test_float_formats(name: str) -> None:
    x = np.linspace(-50, 50, 1031).astype(np.float32)
    scale = np.array(0.37, np.float32)
    limit = float(ml_dtypes.finfo(name).max)
    wanted = np.clip(x / scale, -limit, limit).astype(name)
    y = run("QuantizeLinear", x, scale, None, output_dtype=helper.np_dtype_to_tensor_dtype(np.dtype(name)))
    np.testing.assert_array_equal(y.astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_array_equal(run("DequantizeLinear", y, scale), wanted.astype(np.float32) * scale)


def test_what_is_not_finite_saturates() -> None:
    x = np.array([np.inf, -np.inf, 1e30, -1e30, np.nan], np.float32)
    y = run("QuantizeLinear", x, np.array(0.5, np.float32), np.array(3, np.int8))
    assert y.tolist() == [127, -128, 127, -128, -128]


def test_ties_go_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert run("QuantizeLinear", x, np.array(1, np.float32), np.array(0, np.int8)).tolist() == [0, 2, 2, 0, -2]


def test_division_in_the_type_of_the_scale() -> None:
    # 2049 has no float16: the quotient is taken of 2048.
    x = np.array([2049], np.float32)
    half = np.array(1, np.float16)
    assert run("QuantizeLinear", x, half, np.array(0, np.int16)).tolist() == [2048]
    assert run("QuantizeLinear", x, half, np.array(0, np.int16), precision=TensorProto.FLOAT).tolist() == [2049]


def test_scales_that_are_powers_of_two() -> None:
    scale = np.array([0.5, 4], np.float32).astype(ml_dtypes.float8_e8m0fnu)
    x = np.array([[1, 2, 3], [4, 8, 12]], np.float32)
    y = run("QuantizeLinear", x, scale, np.zeros(2, np.int8), axis=0)
    assert y.tolist() == [[2, 4, 6], [1, 2, 3]]
    back = run("DequantizeLinear", y, scale, None, axis=0, output_dtype=TensorProto.FLOAT16)
    assert back.dtype == np.float16
    np.testing.assert_array_equal(back, x)


def test_constant_input_has_scale_one() -> None:
    x = np.zeros((2, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [onnx.ValueInfoProto(name=n) for n in "ysz"],
    )
    session = backpass.InferenceSession(helper.make_model(graph).SerializeToString())
    for fed in (x, x[:0]):
        y, s, z = session.run(None, {"x": fed})
        assert (y.tolist(), float(s), int(z)) == (fed.tolist(), 1.0, 0)


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_microsoft_domain(op: str) -> None:
    x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    x = x if op == "QuantizeLinear" else x.astype(np.int8)
    scale, zero = np.array([0.5, 1, 2], np.float32), np.array([1, 0, -1], np.int8)
    expected = run(op, x, scale, zero, axis=0)
    np.testing.assert_array_equal(run(op, x, scale, zero, axis=0, domain="com.microsoft"), expected)


X = np.zeros((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("inputs", "attrs", "message"),
    [
        ((X, np.ones(5, np.float32)), {}, r"\[QuantizeLinear 'q'\].*number of scales"),
        ((X, np.ones(3, np.float32)), {"axis": 3}, "axis"),
        ((X, np.ones((2, 3), np.float32)), {}, "scale of rank 2: expected 0 or 1"),
        ((X, np.ones((2, 2, 4), np.float32)), {"block_size": 1}, "expected 3, blocks of 1 in 3"),
        ((X, np.ones((2, 2, 3), np.float32)), {"block_size": 2}, "extent of scale and input"),
        ((X, np.ones(3, np.float32)), {"block_size": 2}, "scale of rank 1: expected that of the input"),
        ((X, np.ones(3, np.float32)), {"block_size": -1}, "block_size: got -1"),
        ((X, np.array(1, np.float32), np.array(0, np.float32)), {}, "zero point of type float32"),
        (
            (X, np.array(1, np.float32), np.array(0, np.int8)),
            {"output_dtype": 2},
            "zero point of type int8: expected uint8",
        ),
        ((X, np.array(1, np.float32), np.zeros(3, np.int8)), {}, "zero point of shape"),
        ((X, np.array(1, np.float32)), {"output_dtype": 1}, "output_dtype: got 1"),
        ((X, np.array(1, np.float64)), {}, "scale of type float64"),
    ],
)
def test_messages(inputs: tuple[np.ndarray, ...], attrs: dict[str, int], message: str) -> None:
    with pytest.raises(backpass.InvalidInput, match=message):
        run("QuantizeLinear", *inputs, **attrs)


@pytest.mark.parametrize("standard_only", [True, False])
def test_fake_quant_gradient_passes_where_nothing_was_clipped(standard_only: bool) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N, 40] x, float s, float z) => (float[N, 40] y) {
          y = com.microsoft.FakeQuant<quant_min=-8, quant_max=7>(x, s, z)
        }"""
    )
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal((3, 40)).astype(np.float32) * 2 for _ in range(2))
    gradient = backpass.grad(model, ["x", "s"], seeds=True, standard_only=standard_only)
    feeds = {"x": x, "s": np.float32(0.25), "z": np.float32(1), "y_grad": dy}
    _, dx, ds = backpass.InferenceSession(gradient.SerializeToString()).run(None, feeds)
    t = torch.from_numpy(x).requires_grad_()
    torch.fake_quantize_per_tensor_affine(t, 0.25, 1, -8, 7).backward(torch.from_numpy(dy))
    np.testing.assert_array_equal(dx, t.grad.numpy())
    assert ds == 0
