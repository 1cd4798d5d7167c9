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
    want = backpass.InferenceSession(model, reference=True).run(None, {"x": x})[0]
    assert 0 < np.isnan(want).sum() < want.size
    direct = backpass.InferenceSession(model, disabled_passes=["winograd_convolutions"])
    assert "BlockedConv" in direct.graph_text()
    np.testing.assert_allclose(direct.run(None, {"x": x})[0], want, rtol=1e-3, atol=1e-3)
    # Tiles that are transformed hold it or do not, as a whole.
    got = backpass.InferenceSession(model).run(None, {"x": x})[0]
    assert np.isnan(got[np.isnan(want)]).all()
    assert np.isnan(got).sum() < got.size
    np.testing.assert_allclose(got[~np.isnan(got)], want[~np.isnan(got)], rtol=1e-3, atol=1e-3)


# Quiet and signalling, of either sign, with and without bits that arithmetic on integers could take for an exponent.
PAYLOADS = {
    "float32": (np.uint32, (0x7FC00000, 0x7FC00001, 0x7FFFFFFF, 0xFFC12345, 0x7F800001, 0xFF8ABCDE)),
    "float64": (np.uint64, (0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 0xFFF8123456789ABC, 0x7FF0000000000001)),
    "float16": (np.uint16, (0x7E00, 0x7E01, 0x7FFF, 0xFE55, 0x7C01, 0xFD55)),
    "bfloat16": (np.uint16, (0x7FC0, 0x7FC1, 0x7FFF, 0xFFD5, 0x7F81, 0xFFAA)),
}
POINTWISE = ("Abs", "Acos", "Asinh", "Atan", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu",
             "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round",
             "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan",
             "Tanh")  # fmt: skip
ROWS = (
    "Softmax",
    "LogSoftmax",
    "LpNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "MeanVarianceNormalization",
)
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
              "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip
WIDTH = 37  # vectors of every size, and a rest


def with_one_nan_per_row(dtype: str) -> np.ndarray:
    """Row after row, every kind at every place."""
    storage, payloads = PAYLOADS[dtype]
    x = np.full((len(payloads) * WIDTH, WIDTH), 0.5, np.dtype(dtype))
    bits = x.view(storage)
    for kind, payload in enumerate(payloads):
        for at in range(WIDTH):
            bits[kind * WIDTH + at, at] = payload
    return x


def run_on(x: np.ndarray, op: str, inputs: list[str], behind: bool, **attrs: object) -> np.ndarray:
    """`behind`: another operator in front, so that both are one program."""
    name = "z" if behind else "x"
    nodes = [helper.make_node("Mul", ["x", "one"], ["z"])] if behind else []
    nodes.append(helper.make_node(op, [name, *inputs], ["y"], **attrs))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    ones = {
        "one": np.ones((), x.dtype),
        "scale": np.ones(WIDTH, x.dtype),
        "last": np.array([-1]),
        "first": np.array([0]),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["rows", WIDTH])],
        [helper.make_tensor_value_info("y", attrs.get("to", kind), None)],
        [numpy_helper.from_array(v, k) for k, v in ones.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    result: np.ndarray = backpass.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    return result


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "fused"])
@pytest.mark.parametrize("dtype", PAYLOADS)
@pytest.mark.parametrize("op", POINTWISE)
def test_pointwise_keeps_every_kind_of_nan(op: str, dtype: str, behind: bool) -> None:
    x = with_one_nan_per_row(dtype)
    np.testing.assert_array_equal(np.isnan(run_on(x, op, [], behind)), np.isnan(x))


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "fused"])
@pytest.mark.parametrize("dtype", PAYLOADS)
@pytest.mark.parametrize("op", ROWS)
def test_rows_with_any_kind_of_nan_have_no_numbers(op: str, dtype: str, behind: bool) -> None:
    scale = ["scale"] if op in ("LayerNormalization", "RMSNormalization") else []
    attrs = {"axes": [-1]} if op.startswith("MeanV") else {"axis": -1}
    assert np.isnan(run_on(with_one_nan_per_row(dtype), op, scale, behind, **attrs)).all()


@pytest.mark.parametrize("dtype", PAYLOADS)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_columns_with_any_kind_of_nan_have_no_numbers(op: str, dtype: str) -> None:
    """Along the first axis, where vectors hold several columns; all rows of one kind at once."""
    x = with_one_nan_per_row(dtype)
    for begin in range(0, len(x), WIDTH):
        assert np.isnan(run_on(x[begin : begin + WIDTH], op, [], False, axis=0)).all()


@pytest.mark.parametrize("axes", ["last", "first"])
@pytest.mark.parametrize("dtype", PAYLOADS)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_keep_every_kind_of_nan(op: str, dtype: str, axes: str) -> None:
    x = with_one_nan_per_row(dtype)
    for begin in range(0, len(x), WIDTH):
        assert np.isnan(run_on(x[begin : begin + WIDTH], op, [axes], False, keepdims=0)).all()


def test_narrowing_keeps_every_kind_of_nan() -> None:
    """Also those whose upper half, rounded up, would be a number: what comparisons leave has all bits set."""
    kinds = np.array([0x7FC00000, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFC00000, 0x7F810000, 0x7F800001], np.uint32)
    x = np.tile(kinds, WIDTH).view(np.float32)
    for to in (TensorProto.BFLOAT16, TensorProto.FLOAT16):
        assert np.isnan(run_on(x[:, None].repeat(WIDTH, 1), "Cast", [], False, to=to).astype(np.float32)).all()
