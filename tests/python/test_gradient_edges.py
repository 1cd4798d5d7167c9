"""Gradients where functions have a kink, a tie or a pole, and what finite differences cannot judge: what torch says."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import onnx.parser
import onnx.reference
import pytest
import torch
import torch_functions
from onnx import helper
from torch.nn import functional

INF = float("inf")
KINKS = [-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0]


def model(op: str, inputs: list[np.ndarray], attrs: dict[str, Any], domain: str = "", opset: int = 26) -> Any:
    names = [f"x{i}" for i in range(len(inputs))]
    declared = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op, names, ["y"], domain=domain, **attrs)
    graph = helper.make_graph([node], "edge", declared, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=13)


def gradients(op: str, inputs: list[Any], attrs: dict[str, Any] | None = None, fused: bool = False) -> list[np.ndarray]:
    """Of the sum of the output, with respect to all inputs that hold floats."""
    arrays = [np.asarray(v) for v in inputs]
    wrt = [f"x{i}" for i, v in enumerate(arrays) if v.dtype.kind == "f"]
    found = backpass.grad(model(op, arrays, attrs or {}), wrt, standard_only=not fused)
    return backpass.InferenceSession(found.SerializeToString()).run(None, {f"x{i}": v for i, v in enumerate(arrays)})[
        1:
    ]


def by_torch(function: Any, inputs: list[Any], attrs: dict[str, Any] | None = None) -> list[np.ndarray]:
    tensors = [torch.from_numpy(np.asarray(v)) for v in inputs]
    floats = [t.requires_grad_() for t in tensors if t.is_floating_point()]
    return [g.numpy() for g in torch.autograd.grad(function(*tensors, **(attrs or {})).sum(), floats)]


CASES = [
    ("Abs", [KINKS], {}),
    ("Relu", [KINKS], {}),
    ("LeakyRelu", [KINKS], {"alpha": 0.25}),
    ("LeakyRelu", [KINKS], {"alpha": -0.25}),
    ("PRelu", [KINKS, [0.25]], {}),
    ("ThresholdedRelu", [KINKS], {"alpha": 0.5}),
    ("Elu", [[*KINKS, 800.0, -800.0]], {"alpha": 2.0}),
    ("Celu", [[*KINKS, 800.0, -800.0]], {"alpha": 2.0}),
    ("Shrink", [KINKS], {"lambd": 0.5, "bias": 0.25}),
    ("Clip", [KINKS, -0.5, 0.5], {}),
    ("Clip", [KINKS, 1.0, -1.0], {}),
    ("Max", [[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]], {}),
    ("Min", [[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]], {}),
    ("ReduceMax", [[[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], np.array([1])], {}),
    ("ReduceMin", [[[1.0, 1.0, 3.0], [2.0, 2.0, 2.0]], np.array([1])], {"keepdims": 0}),
    ("ReduceL1", [[0.0, -1.0, 2.0]], {}),
    ("ReduceL2", [[[0.0, 0.0], [3.0, 4.0]], np.array([1])], {}),
    ("ReduceProd", [[[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]], np.array([1])], {}),
    ("CumProd", [[[2.0, 3.0, 4.0, 5.0], [2.0, 0.0, 4.0, 0.0], [0.0, 0.0, 4.0, 1.0]], np.array(1)], {}),
    ("CumProd", [[[2.0, 0.0, 4.0, 5.0]], np.array(1)], {"exclusive": 1, "reverse": 1}),
    ("ReduceLogSumExp", [[[-INF, 0.0, 1.0], [1000.0, 0.0, 1000.0]], np.array([1])], {}),
    ("Pow", [[0.0, 0.0, 0.0, 2.0, -2.0, -2.0], [0.0, 1.0, 2.0, 0.0, 2.0, 3.0]], {}),
    ("Sqrt", [[0.0, 4.0]], {}),
    ("Softplus", [[-800.0, 0.0, 800.0]], {}),
    ("Mish", [[-800.0, 0.0, 800.0]], {}),
    ("HardSwish", [[-4.0, -1.0, 0.0, 1.0, 4.0]], {}),
    ("HardSigmoid", [[-4.0, -2.5, 0.0, 2.5, 4.0]], {}),
]


OTHERS = {
    "Softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "Mish": functional.mish,
    "HardSwish": functional.hardswish,
    "Pow": torch.pow,
}


@pytest.mark.parametrize("fused", [False, True], ids=["standard", "fused"])
@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_as_torch(op: str, inputs: list[Any], attrs: dict[str, Any], fused: bool) -> None:
    arrays = [v if isinstance(v, np.ndarray) else np.array(v, np.float64) for v in inputs]
    got = gradients(op, arrays, attrs, fused)
    want = by_torch(torch_functions.FUNCTIONS.get(op) or OTHERS[op], arrays, attrs)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12)


def test_log_sum_exp_of_nothing_but_minus_infinity() -> None:
    """Adding weightless terms changes nothing; torch has NaN here."""
    np.testing.assert_array_equal(gradients("ReduceLogSumExp", [np.full(3, -INF)])[0], np.zeros(3))


def second(op: str, x: np.ndarray, rest: list[Any], function: Any) -> None:
    """The derivative of <v, gradient> against torch's."""
    arrays = [x, *rest]
    v = np.random.default_rng(3).standard_normal(x.shape)
    first = backpass.grad(model(op, arrays, {}), ["x0"])
    twice = backpass.grad(first, ["x0"], outputs=["x0_grad"], seeds=True)
    feeds = {**{f"x{i}": a for i, a in enumerate(arrays)}, "x0_grad_grad": v}
    got = backpass.InferenceSession(twice.SerializeToString()).run(None, feeds)[-1]
    t = torch.from_numpy(x).requires_grad_()
    (g,) = torch.autograd.grad(function(t).sum(), t, create_graph=True)
    (want,) = torch.autograd.grad((g * torch.from_numpy(v)).sum(), t)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12, atol=1e-12)


ZEROS = np.array([[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])


def test_second_derivative_of_a_product_with_zeros() -> None:
    second("ReduceProd", ZEROS, [np.array([1])], lambda x: torch.prod(x, 1))


def test_second_derivative_of_running_products_with_zeros() -> None:
    second("CumProd", ZEROS, [np.array(1)], lambda x: torch.cumprod(x, 1))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1, 0], []], ids=str)
def test_reduction_over_axes_known_at_run_time(axes: list[int], keepdims: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 18]> g (double[A,B,C] x, int64[n] axes) => (double[k] y) {{
        s = ReduceSumSquare <keepdims={keepdims}> (x, axes)
        minus = Constant <value_ints=[-1]> ()
        y = Reshape(s, minus)
    }}"""
    x = np.random.default_rng(1).standard_normal((2, 3, 4))
    given = np.array(axes, np.int64)
    found = backpass.grad(onnx.parser.parse_model(text), ["x"], seeds=True)
    y = np.square(x).sum(tuple(axes) if axes else None)
    seed = np.random.default_rng(2).standard_normal(y.size)
    feeds = {"x": x, "axes": given, "y_grad": seed}
    got = backpass.InferenceSession(found.SerializeToString()).run(None, feeds)[1]
    kept = np.square(x).sum(tuple(axes) if axes else None, keepdims=True).shape
    np.testing.assert_allclose(got, 2 * x * seed.reshape(kept), rtol=1e-12)


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("fused", [False, True], ids=["standard", "fused"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_without_any_valid_label(op: str, reduction: str, fused: bool) -> None:
    """The mean is 0 / 0, but all gradients are 0: a batch of nothing but padding does not spoil training."""
    x = np.random.default_rng(1).standard_normal((3, 5))
    labels = np.full(3, -100)
    attrs = {"reduction": reduction, "ignore_index": -100}
    value = backpass.InferenceSession(model(op, [x, labels], attrs).SerializeToString()).run(
        None, {"x0": x, "x1": labels}
    )[0]
    wanted = {"mean": np.array(np.nan), "sum": np.zeros(()), "none": np.zeros(3)}
    np.testing.assert_array_equal(value, wanted[reduction])
    np.testing.assert_array_equal(gradients(op, [x, labels], attrs, fused)[0], np.zeros_like(x))


def test_loss_gradient_by_the_fused_operator() -> None:
    """As ONNX Runtime's training graphs have it: the forward node gains the log probabilities."""
    found = backpass.grad(
        model("SoftmaxCrossEntropyLoss", [np.zeros((3, 5)), np.zeros(3, np.int64)], {}), ["x0"], standard_only=False
    )
    nodes = {n.op_type: n for n in found.graph.node}
    assert len(nodes["SoftmaxCrossEntropyLoss"].output) == 2
    grad = nodes["SoftmaxCrossEntropyLossGrad"]
    assert grad.domain == "com.microsoft"
    assert list(grad.input)[1:] == [nodes["SoftmaxCrossEntropyLoss"].output[1], "x1"]


@pytest.mark.parametrize(
    ("op", "name"),
    [("Relu", "ReluGrad"), ("Sigmoid", "SigmoidGrad"), ("Tanh", "TanhGrad"), ("LeakyRelu", "LeakyReluGrad"),
     ("Gelu", "GeluGrad"), ("Softmax", "SoftmaxGrad_13"), ("LogSoftmax", "LogSoftmaxGrad_13")],
)  # fmt: skip
def test_names_of_fused_gradients(op: str, name: str) -> None:
    found = backpass.grad(model(op, [np.zeros((3, 5))], {}), ["x0"], standard_only=False)
    assert name in [n.op_type for n in found.graph.node if n.domain == "com.microsoft"]
    standard = backpass.grad(model(op, [np.zeros((3, 5))], {}), ["x0"])
    assert {n.domain for n in standard.graph.node} == {""}


@pytest.mark.parametrize("op", ["Ceil", "Floor", "Round", "Sign", "Hardmax"])
def test_piecewise_constant(op: str) -> None:
    np.testing.assert_array_equal(gradients(op, [np.array([[0.3, 1.7, -2.0]])])[0], np.zeros((1, 3)))


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_mean_over_no_label_is_no_number_and_has_gradient_zero(op: str, weighted: bool) -> None:
    """Every label is ignored: the standard's evaluator, onnxruntime and torch divide 0 by 0; torch's gradient is 0."""
    inputs = "x, t, w" if weighted else "x, t"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (double[3,4] x, int64[3] t, double[4] w) => (double y)'
        f"{{ y = {op}<ignore_index = 1>({inputs}) }}"
    )
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((3, 4)), "t": np.full(3, 1), "w": rng.uniform(1, 2, 4)}
    used = {k: v for k, v in feeds.items() if weighted or k != "w"}
    for standard_only in (True, False):
        found = backpass.grad(model, ["x"], standard_only=standard_only)
        value, gradient = backpass.InferenceSession(found.SerializeToString()).run(None, feeds)
        assert np.isnan(value)
        assert not gradient.any()
    with np.errstate(invalid="ignore"):
        assert np.isnan(onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0])
    x = torch.tensor(feeds["x"], requires_grad=True)
    log_prob = torch.log_softmax(x, 1) if op.startswith("Softmax") else x
    wanted = torch.nn.functional.nll_loss(
        log_prob, torch.tensor(feeds["t"]), torch.tensor(used["w"]) if weighted else None, ignore_index=1
    )
    wanted.backward()
    assert torch.isnan(wanted)
    assert x.grad is not None
    assert not x.grad.any()


def test_a_mean_over_no_label_in_training_graphs_is_zero_as_onnxruntime_has_it() -> None:
    node = helper.make_node(
        "SoftmaxCrossEntropyLossInternal", ["x", "t", "", "i"], ["y", "p"], domain="com.microsoft", reduction="mean"
    )
    inputs = [helper.make_tensor_value_info("x", 1, [3, 4]), helper.make_tensor_value_info("t", 7, [3])]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info("y", 1, [])], [helper.make_tensor("i", 7, [], [1])]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.ones((3, 4), np.float32), "t": np.full(3, 1)}
    assert backpass.InferenceSession(model.SerializeToString()).run(None, feeds)[0] == 0


def test_bits_taken_for_another_type_have_no_slope() -> None:
    x = np.ones(3, np.float16)
    found = model("BitCast", [x], {"to": onnx.TensorProto.BFLOAT16})
    with pytest.raises(backpass.Unsupported, match=r"float16 taken for bfloat16.*Cast"):
        backpass.grad(found, ["x0"])
    assert gradients("BitCast", [np.array([1.5, -2.0])], {"to": onnx.TensorProto.DOUBLE})[0].tolist() == [1, 1]


def test_the_scale_of_data_without_a_range_is_constant() -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "y", "z"])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, [3])], [helper.make_tensor_value_info("y", 1, [])]
    )
    found = backpass.grad(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), ["x"])
    session = backpass.InferenceSession(found.SerializeToString())
    assert session.run(None, {"x": np.zeros(3, np.float32)})[1].tolist() == [0, 0, 0]
    x = np.array([-2, 3, 1], np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[1], np.array([-1, 1, 0]) / 255, rtol=1e-6)


# The body of the Attention function as exporters inline it: a row without any key has no softmax, and gives zeros.
EXPANDED = """<ir_version: 10, opset_import: ["" : 22]>
g (double[2,4] q, double[3,4] k, double[3,5] v, bool[2,3] mask) => (double[2,5] y)
<double zero = {0.0}, double least = {-1.0}> {
  kt = Transpose <perm = [1, 0]> (k)  scores = MatMul(q, kt)  bias = Where(mask, zero, least)
  masked = Add(scores, bias)  raw = Softmax(masked)  none = IsNaN(raw)  weights = Where(none, zero, raw)
  y = MatMul(weights, v) }"""


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_rows_that_see_nothing_pass_nothing_back(op: str, dtype: type, fused: bool) -> None:
    text = EXPANDED.replace("= Softmax", f"= {op}")
    if dtype is np.float32:
        text = text.replace("double", "float")
    m = onnx.parser.parse_model(text)
    for constant in m.graph.initializer:
        if constant.name == "least":
            constant.CopyFrom(onnx.numpy_helper.from_array(np.array(-INF, dtype), "least"))
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal(s).astype(dtype) for n, s in (("q", (2, 4)), ("k", (3, 4)), ("v", (3, 5)))}
    feeds["mask"] = np.array([[True, True, True], [False, False, False]])
    g = backpass.grad(m, ["q", "k", "v"], standard_only=not fused)
    dq, dk, dv = backpass.InferenceSession(g).run(["q_grad", "k_grad", "v_grad"], feeds)
    assert all(np.isfinite(d).all() for d in (dq, dk, dv))
    assert not dq[1].any()
    alone = {**feeds, "q": feeds["q"][:1], "mask": feeds["mask"][:1]}
    q, k, v = (torch.tensor(alone[n], requires_grad=True) for n in "qkv")
    p = (torch.softmax if op == "Softmax" else torch.log_softmax)(q @ k.mT, -1)
    (p @ v).sum().backward()
    for got, want in ((dq[:1], q.grad), (dk, k.grad), (dv, v.grad)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_softmax_of_nothing_is_still_no_number_where_it_is_used() -> None:
    (dx,) = gradients("Softmax", [np.full((2, 3), -INF)])
    assert np.isnan(dx).all()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_ratio_of_dropout(training: bool, fused: bool) -> None:
    text = """<ir_version: 10, opset_import: ["" : 22]>
        g (double[40,5] x, double ratio, bool training) => (double[40,5] y) { y = Dropout(x, ratio, training) }"""
    g = backpass.grad(onnx.parser.parse_model(text), ["ratio"], seeds=True, standard_only=not fused)
    rng = np.random.default_rng(2)
    x, seed = rng.standard_normal((2, 40, 5))
    feeds = {"x": x, "ratio": np.array(0.3), "training": np.array(training), "y_grad": seed}
    y, slope = backpass.InferenceSession(g).run(["y", "ratio_grad"], feeds)
    np.testing.assert_allclose(slope, (seed * y).sum() / 0.7 if training else 0.0)


def test_normalising_what_does_not_vary() -> None:
    (dx,) = gradients("MeanVarianceNormalization", [np.full((1, 2, 3, 3), 0.7)])
    np.testing.assert_array_equal(dx, np.zeros((1, 2, 3, 3)))


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.5, -0.5), (-0.5, 0.5)])
def test_bounds_of_clip_that_meet_or_cross(low: float, high: float) -> None:
    x = np.array([-1.0, -0.2, 0.3, 2.0])
    dx, d_low, d_high = gradients("Clip", [x, np.array(low), np.array(high)])
    assert float(dx.sum() + d_low + d_high) == x.size  # moving all three moves every element
    if high <= low:
        assert (float(d_low), float(d_high)) == (0, x.size)
