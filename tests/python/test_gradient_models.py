"""Gradients that a row of op_rows/ cannot show: of some outputs only, of random operators, of bodies that capture."""

from __future__ import annotations

from typing import Any

import backpass
import gradient_check
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser

RNG = np.random.default_rng(5)
Arrays = dict[str, np.ndarray]


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g {text}')


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def gradients(
    m: onnx.ModelProto, feeds: Arrays, wrt: list[str], seeds: Arrays, fused: bool = False, run: Any = None
) -> list[np.ndarray]:
    g = backpass.grad(m, wrt, outputs=list(seeds), seeds=True, standard_only=not fused)
    session = run(g.SerializeToString()) if run else backpass.InferenceSession(g.SerializeToString())
    used = {i.name for i in g.graph.input}
    every = {**feeds, **{f"{name}_grad": value for name, value in seeds.items()}}
    found: list[np.ndarray] = session.run([f"{n}_grad" for n in wrt], {k: v for k, v in every.items() if k in used})
    return found


def assert_right(text: str, feeds: Arrays, wrt: list[str], outputs: list[str], in_ort: bool = False) -> None:
    """Both forms against finite differences; `in_ort`: onnxruntime gives the same."""
    m = model(text)
    session = backpass.InferenceSession(m.SerializeToString())
    seeds = {k: normal(*y.shape).astype(y.dtype) for k, y in zip(outputs, session.run(outputs, feeds), strict=True)}
    for fused in (False, True):
        got = gradients(m, feeds, wrt, seeds, fused)
        problem = gradient_check.finite_differences(
            lambda f: session.run(outputs, f), feeds, wrt, list(seeds.values()), got
        )
        assert not problem, ("fused: " if fused else "") + problem
    if in_ort:
        for a, b in zip(gradients(m, feeds, wrt, seeds), gradients(m, feeds, wrt, seeds, run=plain_ort), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def plain_ort(content: bytes) -> Any:
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("shape", ["3,4", "N,4"])
@pytest.mark.parametrize("outputs", [["y"], ["m"], ["r"], ["y", "m", "r"]])
def test_statistics_of_layer_normalization_take_part(shape: str, outputs: list[str]) -> None:
    text = (
        f"(double[{shape}] x, double[4] w, double[4] b) => (double[{shape}] y, double[M,1] m, double[M,1] r)"
        "{ y, m, r = LayerNormalization<axis = -1, stash_type = 11>(x, w, b) }"
    )
    assert_right(text, {"x": normal(3, 4), "w": normal(4), "b": normal(4)}, ["x", "w", "b"], outputs)


@pytest.mark.parametrize("seeds", [False, True])
def test_outputs_come_in_the_order_they_are_asked_for(seeds: bool) -> None:
    m = model("(double[3] x) => (double[3] a, double[3] b) { a = Exp(x) b = Mul(x, x) }")
    made = backpass.grad(m, ["x"], ["b", "a"], seeds=seeds).graph
    assert [o.name for o in made.output] == ["b", "a", "x_grad"]
    assert [i.name for i in made.input] == (["x", "b_grad", "a_grad"] if seeds else ["x"])


def test_layer_normalization_with_a_scale_shorter_than_its_rows() -> None:
    text = "(double[2,3,4] x, double[4] w) => (double[2,3,4] y) { y = LayerNormalization<axis = -2>(x, w) }"
    assert_right(text, {"x": normal(2, 3, 4), "w": normal(4)}, ["x", "w"], ["y"])


@pytest.mark.parametrize("outputs", [["y"], ["r"], ["y", "r"]])
def test_statistic_of_simplified_layer_normalization_takes_part(outputs: list[str]) -> None:
    text = (
        "(double[3,4] x, double[4] w) => (double[3,4] y, double[3,1] r)"
        "{ y, r = com.microsoft.SimplifiedLayerNormalization<axis = -1, stash_type = 11>(x, w) }"
    )
    assert_right(text, {"x": normal(3, 4), "w": normal(4)}, ["x", "w"], outputs)


@pytest.mark.parametrize("outputs", ["y", "y, new_m, new_v"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 2, 2)])
def test_batch_normalization_in_training(shape: tuple[int, ...], outputs: str) -> None:
    extents = ",".join(map(str, shape))
    text = (
        f"(double[{extents}] x, double[3] w, double[3] b, double[3] m, double[3] v) => (double[{extents}] y)"
        f"{{ {outputs} = BatchNormalization<training_mode = 1>(x, w, b, m, v) }}"
    )
    feeds = {"x": normal(*shape), "w": normal(3), "b": normal(3), "m": normal(3), "v": normal(3) ** 2}
    assert_right(text, feeds, ["x", "w", "b"], ["y"])
    x, w, b = (torch.tensor(feeds[k], requires_grad=True) for k in "xwb")
    y = torch.nn.functional.batch_norm(x, None, None, w, b, True, eps=float(np.float32(1e-5)))
    seed = normal(*shape)
    y.backward(torch.tensor(seed))
    for got, want in zip(gradients(model(text), feeds, ["x", "w", "b"], {"y": seed}), (x, w, b), strict=True):
        np.testing.assert_allclose(got, want.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mask", ["", ", mask"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("ratio", "training"), [(0.3, True), (0.0, True), (0.3, False)])
@pytest.mark.parametrize("constant", [False, True])
def test_dropout_drops_the_same_elements(mask: str, fused: bool, ratio: float, training: bool, constant: bool) -> None:
    given = "" if constant else ", float ratio, bool training"
    stored = f"<float ratio = {{{ratio}}}, bool training = {{{int(training)}}}>" if constant else ""
    m = model(f"(float[N,7] x{given}) => (float[N,7] y) {stored} {{ y{mask} = Dropout(x, ratio, training) }}")
    feeds = {"x": normal(40, 7).astype("f"), "y_grad": normal(40, 7).astype("f")}
    if not constant:
        feeds |= {"ratio": np.array(ratio, "f"), "training": np.array(training)}
    g = backpass.grad(m, ["x"], seeds=True, standard_only=not fused)
    used = {i.name for i in g.graph.input}
    feeds = {k: v for k, v in feeds.items() if k in used}
    sessions = [backpass.InferenceSession(g.SerializeToString())]
    if not fused:
        sessions.append(plain_ort(g.SerializeToString()))
    for session in sessions:
        y, dx = session.run(["y", "x_grad"], feeds)
        scale = 1 / (1 - ratio) if training else 1
        np.testing.assert_allclose(dx, np.where(y != 0, feeds["y_grad"] * np.float32(scale), 0), rtol=1e-6)
        assert (y == 0).any() == (training and ratio > 0)


SCAN = """(double[2] s0, double[T,2] x, double[2,2] w) => (double[2] s, double[2,T] y, double[T,2] z) {
  s, y, z = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1, 0],
    scan_output_directions = [1, 0],
    body = b (double[2] a, double[2] u) => (double[2] d, double[2] e, double[2] f) {
      p = MatMul(w, a)  q = Add(p, u)  d = Tanh(q)  e = Mul(d, u)  f = Identity(a) }>(s0, x) }"""


@pytest.mark.parametrize("outputs", [["s"], ["y"], ["s", "y", "z"]])
@pytest.mark.parametrize("steps", [1, 3])
def test_scan_with_captured_weights(outputs: list[str], steps: int) -> None:
    feeds = {"s0": normal(2), "x": normal(steps, 2), "w": normal(2, 2)}
    assert_right(SCAN, feeds, ["s0", "x", "w"], outputs, in_ort=True)


def test_gradient_of_a_scan_without_steps() -> None:
    feeds = {"s0": normal(2), "x": normal(0, 2), "w": normal(2, 2)}
    seed = {"s": normal(2)}
    s0, x, w = gradients(model(SCAN), feeds, ["s0", "x", "w"], seed)
    np.testing.assert_array_equal(s0, seed["s"])
    assert x.shape == (0, 2)
    np.testing.assert_array_equal(w, np.zeros((2, 2)))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_recurrent_layer_of_an_empty_batch(op: str, fused: bool) -> None:
    width = 3 * {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    m = model(
        f"(double[T,B,2] x, double[1,{width},2] w, double[1,{width},3] r) => (double[T,1,B,3] y)"
        f"{{ y = {op}<hidden_size = 3>(x, w, r) }}"
    )
    feeds = {"x": normal(4, 0, 2), "w": normal(1, width, 2), "r": normal(1, width, 3)}
    dx, dw, dr = gradients(m, feeds, ["x", "w", "r"], {"y": normal(4, 1, 0, 3)}, fused)
    assert dx.shape == (4, 0, 2)
    assert not dw.any()
    assert not dr.any()


def test_determinant_of_a_singular_matrix() -> None:
    x = np.array([[1.0, 2, 3], [4, 5, 6], [5, 7, 9]])
    assert_right("(double[3,3] x) => (double y) { y = Det(x) }", {"x": x}, ["x"], ["y"])
    m = model("(double[3,3] x) => (double y) { y = Det(x) }")
    cofactors = [[3, -6, 3], [3, -6, 3], [-3, 6, -3]]
    np.testing.assert_allclose(gradients(m, {"x": x}, ["x"], {"y": np.float64(1)})[0], cofactors, atol=1e-12)


FLEX = """<ir_version: 10, opset_import: ["": 24, "ai.onnx.preview": 1]>
g (double[B,H,L,D] q, double[B,J,S,D] k, double[B,J,S,E] v, double[S] bias, double c) => (double[B,H,L,E] y) {
  y = ai.onnx.preview.FlexAttention <
    score_mod = m (double[B,H,L,S] s) => (double[B,H,L,S] t) { u = Add(s, bias)  t = Tanh(u) },
    prob_mod = n (double[B,H,L,S] p) => (double[B,H,L,S] r) { r = Mul(p, c) }>(q, k, v) }"""


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_flex_attention_with_bodies_that_capture(heads: tuple[int, int]) -> None:
    m = parser.parse_model(FLEX)
    q_heads, kv_heads = heads
    shapes = {"q": (2, q_heads, 3, 2), "k": (2, kv_heads, 4, 2), "v": (2, kv_heads, 4, 5), "bias": (4,), "c": ()}
    feeds = {name: normal(*shape) for name, shape in shapes.items()}
    seed = normal(2, q_heads, 3, 5)
    got = gradients(m, feeds, list(feeds), {"y": seed})
    q, k, v, bias, c = (torch.tensor(feeds[name], requires_grad=True) for name in feeds)
    keys, values = (t.repeat_interleave(q_heads // kv_heads, 1) for t in (k, v))
    p = torch.softmax(torch.tanh(q @ keys.mT / 2**0.5 + bias), -1) * c
    (p @ values).backward(torch.tensor(seed))
    for one, want in zip(got, (q, k, v, bias, c), strict=True):
        np.testing.assert_allclose(one, want.grad, rtol=1e-9, atol=1e-12)


ATTENTION = [
    ({}, None, (2, 4, 2, 130, 300, 5)),
    ({"is_causal": 1}, None, (1, 2, 1, 150, 150, 4)),
    ({"softcap": 2.0, "scale": 0.3}, None, (1, 2, 2, 70, 33, 3)),
    ({"left_window_size": 20, "right_window_size": 3}, None, (1, 3, 1, 200, 190, 3)),
    ({"softcap": 1.5}, "double", (2, 2, 1, 70, 40, 3)),
    ({"is_causal": 1}, "bool", (2, 2, 1, 70, 40, 3)),
    ({}, None, (1, 2, 2, 0, 4, 2)),
    ({}, None, (1, 2, 2, 3, 0, 2)),
]


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(("attributes", "mask", "extents"), ATTENTION)
def test_attention_in_blocks(attributes: Any, mask: str | None, extents: tuple[int, ...], is_packed: bool) -> None:
    """AttentionGrad goes through blocks of queries; the standard operators have all scores at once."""
    batch, q_heads, kv_heads, queries, keys, size = extents
    shapes = {"q": (q_heads, queries), "k": (kv_heads, keys), "v": (kv_heads, keys)}
    feeds: Arrays = {}
    for name, (heads, length) in shapes.items():
        feeds[name] = normal(batch, *((length, heads * size) if is_packed else (heads, length, size)))
    if mask:
        feeds["mask"] = normal(batch, 1, queries, keys)
        feeds["mask"][:, :, 3] = -np.inf
        if mask == "bool":
            feeds["mask"] = feeds["mask"] > 0
    if is_packed:
        attributes = {**attributes, "q_num_heads": q_heads, "kv_num_heads": kv_heads}
    node = onnx.helper.make_node("Attention", list(feeds), ["y"], **attributes)
    inputs = [onnx.helper.make_tensor_value_info(k, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
              for k, v in feeds.items()]  # fmt: skip
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, feeds["q"].shape)
    graph = onnx.helper.make_graph([node], "g", inputs, [y])
    m = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=11)
    seed = {"y": normal(*feeds["q"].shape)}
    standard = gradients(m, feeds, ["q", "k", "v"], seed)
    g = backpass.grad(m, ["q", "k", "v"], seeds=True, standard_only=False)
    assert "AttentionGrad" in [n.op_type for n in g.graph.node]
    for a, b in zip(gradients(m, feeds, ["q", "k", "v"], seed, fused=True), standard, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
