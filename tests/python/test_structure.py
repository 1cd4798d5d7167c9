"""Control flow, sequences, strings and recurrent layers beyond their rows: thread counts, odd models, messages."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from onnx import helper, parser


def session(text: str, **options: Any) -> Any:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> {text}')
    return backpass.InferenceSession(model.SerializeToString(), **options)


def one_node(
    op: str, *inputs: np.ndarray | None, outputs: int = 1, opset: int = 25, **attrs: Any
) -> tuple[bytes, dict]:
    names = ["" if v is None else f"x{i}" for i, v in enumerate(inputs)]
    feeds = {n: v for n, v in zip(names, inputs, strict=True) if n}
    infos = []
    for n, v in feeds.items():
        code = onnx.TensorProto.STRING if v.dtype == object else helper.np_dtype_to_tensor_dtype(v.dtype)
        infos.append(helper.make_tensor_value_info(n, code, v.shape))
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, name="node", **attrs)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=r) for r in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return model.SerializeToString(), feeds


RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        (
            "LSTM",
            (floats(40, 9, 17), floats(2, 92, 17), floats(2, 92, 23)),
            {"direction": "bidirectional", "hidden_size": 23},
        ),
        (
            "GRU",
            (floats(40, 33, 17), floats(1, 69, 17), floats(1, 69, 23)),
            {"hidden_size": 23, "linear_before_reset": 1},
        ),
        ("Attention", (floats(2, 3, 300, 16), floats(2, 3, 300, 16), floats(2, 3, 300, 16)), {"is_causal": 1}),
        ("Resize", (floats(3, 5, 41, 37), None, None, np.array([3, 5, 90, 25])), {"mode": "cubic"}),
        ("DFT", (floats(40, 997, 1),), {}),
    ],
)
def test_same_bits_for_any_thread_count(op: str, inputs: tuple, attrs: dict) -> None:
    model, feeds = one_node(op, *inputs, **attrs)
    one, four = (backpass.InferenceSession(model, num_threads=n).run(None, feeds)[0] for n in (1, 4))
    assert one.tobytes() == four.tobytes()


def test_attention_of_nothing_is_zero_not_nan() -> None:
    q = floats(1, 1, 3, 4)
    k = np.full((1, 1, 5, 4), np.inf, np.float32)
    mask = np.zeros((3, 5), bool)
    mask[1, 0] = True
    k[..., 0, :] = 0
    model, feeds = one_node("Attention", q, k, np.ones((1, 1, 5, 2), np.float32), mask)
    y = backpass.InferenceSession(model).run(None, feeds)[0]
    assert np.array_equal(y[0, 0], [[0, 0], [1, 1], [0, 0]])


def test_branches_of_different_rank() -> None:
    run = session(
        """g (bool c, float[n] x) => (int64[m] s)
        { y = If(c) <then_branch = t () => (a) { a = Identity(x) },
                     else_branch = e () => (b) { axes = Constant<value = int64[1] {0}>() b = Unsqueeze(x, axes) }>
          s = Shape(y) }"""
    ).run
    x = np.ones(3, np.float32)
    assert run(None, {"c": np.array(True), "x": x})[0].tolist() == [3]
    assert run(None, {"c": np.array(False), "x": x})[0].tolist() == [1, 3]


def test_a_branch_never_taken_may_be_wrong() -> None:
    run = session(
        """g (float[2] x) => (float[2] y)
        { c = Constant<value = bool {1}>()
          y = If(c) <then_branch = t () => (a) { a = Neg(x) },
                     else_branch = e () => (b) { q = NoSuchOperator(x) b = Identity(q) }> }"""
    ).run
    assert run(None, {"x": np.array([1, -2], np.float32)})[0].tolist() == [-1, 2]


def test_loop_inside_of_scan_sees_outer_values() -> None:
    run = session(
        """g (float[t, n] x, float[n] w) => (float[n] last, float[t, n] all)
        { zero = Constant<value = float[1] {0.0}>()
          start = Mul(w, zero)
          last, all = Scan(start, x) <num_scan_inputs = 1,
            body = b (float[n] s, float[n] v) => (float[n] s2, float[n] out)
            { three = Constant<value = int64 {3}>()
              p = Loop(three, , v) <body = l (int64 i, bool c, float[n] a) => (bool d, float[n] a2)
                                           { d = Identity(c) a2 = Mul(a, w) }>
              s2 = Add(s, p) out = Identity(s2) }> }"""
    ).run
    x = floats(4, 2)
    w = np.array([1.5, -0.5], np.float32)
    last, everything = run(None, {"x": x, "w": w})
    wanted = np.cumsum(x * w**3, axis=0)
    np.testing.assert_allclose(everything, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, wanted[-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("LSTM", (floats(3, 2, 4), floats(1, 8, 5), floats(1, 8, 2)), {"hidden_size": 2}, "W: got 5 and 4"),
        (
            "LSTM",
            (floats(3, 2, 4), floats(1, 8, 4), floats(1, 8, 2), None, np.array([4, 1], np.int32)),
            {"hidden_size": 2},
            r"sequence_lens\[0\]: got 4, expected 0 to 3",
        ),
        (
            "GRU",
            (floats(3, 2, 4), floats(1, 6, 4), floats(1, 6, 2)),
            {"hidden_size": 2, "activations": ["Tan", "Tanh"]},
            "got 'Tan'",
        ),
        ("Attention", (floats(1, 3, 2, 4), floats(1, 2, 2, 4), floats(1, 2, 2, 4)), {}, "heads of Q: got 3"),
        (
            "RotaryEmbedding",
            (floats(1, 1, 2, 4), floats(3, 2), floats(3, 2), np.array([[0, 3]])),
            {},
            "got 3, expected",
        ),
        ("Resize", (floats(1, 1, 2, 2), None, np.array([1, 1, -2, 1], np.float32)), {}, "expected positive numbers"),
        ("RegexFullMatch", (np.array(["a"], object),), {"pattern": "(a"}, r"without '\)'"),
        (
            "StringNormalizer",
            (np.array(["a"], object),),
            {"case_change_action": "TITLE"},
            "expected NONE, LOWER or UPPER",
        ),
        ("STFT", (floats(1, 8, 1), np.array(2), floats(9)), {}, "frame_length: got 9"),
        ("SplitToSequence", (floats(5), np.array([2, 2])), {}, "add up to 4, expected 5"),
    ],
)
def test_messages(op: str, inputs: tuple, attrs: dict, message: str) -> None:
    model, feeds = one_node(op, *inputs, **attrs)
    with pytest.raises(backpass.InvalidInput, match=rf"\[{op} 'node'\].*{message}"):
        backpass.InferenceSession(model).run(None, feeds)


def test_sequence_position_out_of_range() -> None:
    run = session("g (float[2] x, int64 i) => (float[2] y) { s = SequenceConstruct(x, x) y = SequenceAt(s, i) }").run
    with pytest.raises(backpass.InvalidInput, match=r"position: got 2, expected \[-2, 2\)"):
        run(None, {"x": np.zeros(2, np.float32), "i": np.array(2)})
