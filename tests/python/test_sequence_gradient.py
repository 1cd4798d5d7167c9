"""Gradients through sequences and optionals: against torch doing the same with lists, by onnxruntime, and
differentiated a second time."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import pytest
import torch
from flow_check import Flow, check_first_derivative, check_second_derivative, parse

rng = np.random.default_rng(8)


def some(*shape: int) -> np.ndarray:
    return rng.uniform(0.3, 0.9, shape)


CONSTRUCT = """g (double[2,3] a, double[N] b, double[3] c, int64 i) => (double[2,3] y, double[M] z, double[2,3] u) {
  s = SequenceConstruct(a, b, c)
  zero = Constant<value = int64 {0}>()
  p = SequenceAt(s, zero) q = SequenceAt(s, i) r = SequenceAt(s, zero)
  flat = Constant<value = int64[1] {-1}>() f = Reshape(q, flat)
  pp = Mul(p, p) shape = Shape(a) y = Reshape(pp, shape) z = Sin(f) ar = Mul(a, r) u = Reshape(ar, shape) }"""
EDITED = """g (double[2,3] a, double[4] b, double[2] c, int64 i, int64 j) => (double[N] y, double[M] z) {
  empty = SequenceEmpty<dtype = 11>()
  s1 = SequenceInsert(empty, a) s2 = SequenceInsert(s1, b) s3 = SequenceInsert(s2, c, i)
  s4 = SequenceInsert(s3, b, i)
  s5 = SequenceErase(s4, j) s6 = SequenceErase(s5)
  minus = Constant<value = int64 {-1}>() zero = Constant<value = int64 {0}>()
  last = SequenceAt(s6, minus) first = SequenceAt(s6, zero)
  flat = Constant<value = int64[1] {-1}>() squared = Mul(first, first)
  f = Reshape(last, flat) y = Exp(f) z = Reshape(squared, flat) }"""
SPLIT = """g (double[N,5] x, double[5] w) => (double[N,5] y) {
  parts = SplitToSequence<axis = 1, keepdims = 1>(x)
  zero = Constant<value = int64 {0}>() four = Constant<value = int64 {-1}>()
  a = SequenceAt(parts, zero) b = SequenceAt(parts, four)
  ab = Mul(a, b)
  more = SequenceInsert(parts, ab, zero)
  less = SequenceErase(more, four)
  joined = ConcatFromSequence<axis = -1>(less)
  y = Mul(joined, w) }"""
STACKED = """g (double[N,3] x) => (double[3,N] y) {
  rows = SplitToSequence<axis = 0, keepdims = 0>(x)
  joined = ConcatFromSequence<axis = 1, new_axis = 1>(rows)
  y = Mul(joined, joined) }"""
PIECES = """g (double[2,N] x, int64[3] sizes) => (double[2,M] y, double[2,K] z) {
  parts = SplitToSequence<axis = 1>(x, sizes)
  one = Constant<value = int64 {1}>()
  p = SequenceAt(parts, one)
  q = Exp(p)
  more = SequenceInsert(parts, q)
  y = ConcatFromSequence<axis = 1>(more)
  z = Mul(p, p) }"""
# Parts have extents of their own: one broadcasts against the other.
BROADCAST = """g (double[2,N] x, int64[2] sizes) => (double[2,M] y) {
  parts = SplitToSequence<axis = 1>(x, sizes)
  zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>()
  p = SequenceAt(parts, zero) q = SequenceAt(parts, one)
  y = Mul(p, q) }"""
EQUAL = """g (double[2,N] x) => (double[2,M] y) {
  two = Constant<value = int64 {2}>()
  parts = SplitToSequence<axis = 1>(x, two)
  last = Constant<value = int64 {-1}>()
  p = SequenceAt(parts, last)
  y = Mul(p, p) }"""
MAPPED = """g (double[N,3] x, double[3] w, double[3] v) => (double[N,3] y, double[N,3] z) {
  rows = SplitToSequence<axis = 0, keepdims = 0>(x)
  k = Mul(v, v)
  a, b = SequenceMap(rows, rows, w) <body = m (double[3] r, double[3] s, double[3] u)
    => (double[3] p, double[3] q) { t = Mul(r, u) p = Sin(t) o = Mul(s, s) q = Mul(o, u) }>
  aw = ConcatFromSequence<axis = 0, new_axis = 1>(a)
  bw = ConcatFromSequence<axis = 0, new_axis = 1>(b)
  y = Mul(aw, k) z = Mul(bw, x) }"""
CAPTURING = """g (double[N,3] x, double[3] v) => (double[N,3] y) {
  rows = SplitToSequence<axis = 0, keepdims = 0>(x)
  k = Mul(v, v)
  a = SequenceMap(rows) <body = m (double[3] r) => (double[3] p) { t = Mul(r, k) p = Tanh(t) }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(a) }"""
BRANCH = """g (double[N,3] x, double[3] w, bool c) => (double[M,3] y) {
  rows = SplitToSequence<axis = 0, keepdims = 0>(x)
  chosen = If (c) <
    then_branch = t () => (seq(double[3]) a) { a = SequenceInsert(rows, w) },
    else_branch = e () => (seq(double[3]) b) { b = SequenceErase(rows) }>
  joined = ConcatFromSequence<axis = 0, new_axis = 1>(chosen)
  y = Mul(joined, w) }"""
READ = """g (double[N,3] x, bool c) => (double[3] y) {
  rows = SplitToSequence<axis = 0, keepdims = 0>(x)
  y = If (c) <
    then_branch = t () => (double[3] a) { one = Constant<value = int64 {1}>() r = SequenceAt(rows, one) a = Mul(r, r) },
    else_branch = e () => (double[3] b) { b = Constant<value = double[3] {1.0, 2.0, 3.0}>() }> }"""
OPTIONAL = """g (double[N] x) => (double[N] y) {
  o = Optional(x) p = OptionalGetElement(o) q = OptionalGetElement(o) y = Mul(p, q) }"""
OPTIONAL_SEQUENCE = """g (double[N,3] x) => (double[3] y) {
  s = SplitToSequence<axis = 0, keepdims = 0>(x)
  o = Optional(s) p = OptionalGetElement(o) one = Constant<value = int64 {1}>() q = SequenceAt(p, one) y = Exp(q) }"""
MAYBE = """g (double[3] x, double[3] w, bool c) => (double[3] y) {
  o = If (c) <
    then_branch = t () => (optional(double[3]) a) { k = Mul(x, w) a = Optional(k) },
    else_branch = e () => (optional(double[3]) b) { b = Optional<type = double[3]>() }>
  full = OptionalHasElement(o)
  y = If (full) <
    then_branch = t2 () => (double[3] p) { v = OptionalGetElement(o) p = Mul(v, x) },
    else_branch = e2 () => (double[3] q) { q = Mul(w, w) }> }"""

# A list that iterations append to, as exporters write it; nothing of it is read while going back.
APPENDED = """g (int64 n, double[3] s0, double[3] w) => (double[K,3] y, double[3] s) {
  t = Constant<value = bool {1}>() empty = SequenceEmpty<dtype = 11>()
  s, outs = Loop (n, t, s0, empty) <
    body = b (int64 i, bool c, double[3] before, seq(double[3]) list)
      => (bool d, double[3] after, seq(double[3]) longer) {
        d = Identity(c) p = Mul(before, w) after = Sin(p) longer = SequenceInsert(list, after) }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(outs) }"""
# Each iteration reads what earlier ones appended.
READ_BACK = """g (int64 n, double[3] s0, double[3] w) => (double[K,3] y) {
  t = Constant<value = bool {1}>() begin = SequenceConstruct(s0, w)
  outs = Loop (n, t, begin) <
    body = b (int64 i, bool c, seq(double[3]) list) => (bool d, seq(double[3]) longer) {
      d = Identity(c) one = Constant<value = int64 {-1}>() two = Constant<value = int64 {-2}>()
      p = SequenceAt(list, one) q = SequenceAt(list, two) pq = Mul(p, q) r = Add(pq, w) e = Tanh(r)
      longer = SequenceInsert(list, e) }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(outs) }"""
CONSUMED = """g (int64 n, double[N,3] x, double[3] s0) => (double[3] s, double[M,3] rest) {
  t = Constant<value = bool {1}>() rows = SplitToSequence<axis = 0, keepdims = 0>(x)
  s, left = Loop (n, t, s0, rows) <
    body = b (int64 i, bool c, double[3] before, seq(double[3]) list)
      => (bool d, double[3] after, seq(double[3]) shorter) {
        d = Identity(c) zero = Constant<value = int64 {0}>() r = SequenceAt(list, zero)
        after = Mul(before, r) shorter = SequenceErase(list, zero) }>
  rest = ConcatFromSequence<axis = 0, new_axis = 1>(left) }"""
WALKED = """g (double[N,3] x, double[3] s0, double[3] w) => (double[3] s, double[K,3] ys) {
  t = Constant<value = bool {1}>() rows = SplitToSequence<axis = 0, keepdims = 0>(x) n = SequenceLength(rows)
  s, ys = Loop (n, t, s0) <
    body = b (int64 i, bool c, double[3] before) => (bool d, double[3] after, double[3] y) {
      d = Identity(c) r = SequenceAt(rows, i) p = Mul(before, w) after = Add(p, r) y = Mul(after, r) }> }"""
GROWING = """g (int64 n, double[N] v0) => (double[M] v) {
  t = Constant<value = bool {1}>()
  v = Loop (n, t, v0) <body = b (int64 i, bool c, double[k] before) => (bool d, double[m] after) {
    d = Identity(c) sq = Mul(before, before) after = Concat<axis = 0>(sq, before) }> }"""
HELD = """g (int64 n, double[3] x, double[3] w) => (double[3] y) {
  t = Constant<value = bool {1}>() begin = Optional(x)
  held = Loop (n, t, begin) <
    body = b (int64 i, bool c, optional(double[3]) before) => (bool d, optional(double[3]) after) {
      d = Identity(c) v = OptionalGetElement(before) u = Mul(v, w) m = Sin(u) after = Optional(m) }>
  y = OptionalGetElement(held) }"""
UNTIL = """g (double[3] s0, double[3] w) => (double[K,3] y) {
  t = Constant<value = bool {1}>() begin = SequenceConstruct(s0)
  outs = Loop (, t, begin) <
    body = b (int64 i, bool c, seq(double[3]) list) => (bool d, seq(double[3]) longer) {
      one = Constant<value = int64 {-1}>() p = SequenceAt(list, one) q = Mul(p, w)
      sum = ReduceSum<keepdims = 0>(q) limit = Constant<value = double {20.0}>() d = Less(sum, limit)
      longer = SequenceInsert(list, q) }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(outs) }"""


def run_edited(a: Any, b: Any, c: Any, i: int, j: int) -> Any:
    s = [a, b]
    for v in (c, b):
        s.insert(int(i), v)
    del s[int(j)]
    s.pop()
    return torch.exp(s[-1].flatten()), s[0].flatten() ** 2


def run_split(x: Any, w: Any) -> Any:
    parts = list(x.split(1, 1))
    joined = torch.cat([parts[0] * parts[-1], *parts[:-1]], 1)
    return (joined * w,)


def run_pieces(x: Any, sizes: Any) -> Any:
    parts = list(x.split([int(n) for n in sizes], 1))
    return torch.cat([*parts, torch.exp(parts[1])], 1), parts[1] ** 2


def run_mapped(x: Any, w: Any, v: Any) -> Any:
    return torch.sin(x * w) * v * v, x * x * w * x


def run_appended(n: int, s0: Any, w: Any) -> Any:
    outs = []
    for _ in range(n):
        s0 = torch.sin(s0 * w)
        outs.append(s0)
    return torch.stack(outs), s0


def run_read_back(n: int, s0: Any, w: Any) -> Any:
    outs = [s0, w]
    for _ in range(n):
        outs.append(torch.tanh(outs[-1] * outs[-2] + w))
    return (torch.stack(outs),)


def run_consumed(n: int, x: Any, s0: Any) -> Any:
    return s0 * x[:n].prod(0), x[n:]


def run_walked(x: Any, s0: Any, w: Any) -> Any:
    s, ys = s0, [torch.zeros(0, 3, dtype=torch.float64)]
    for r in x:
        s = s * w + r
        ys.append((s * r)[None])
    return s, torch.cat(ys)


def run_growing(n: int, v0: Any) -> Any:
    for _ in range(n):
        v0 = torch.cat([v0 * v0, v0])
    return (v0,)


def run_held(n: int, x: Any, w: Any) -> Any:
    for _ in range(n):
        x = torch.sin(x * w)
    return (x,)


def run_until(s0: Any, w: Any) -> Any:
    outs = [s0]
    while True:
        outs.append(outs[-1] * w)
        if outs[-1].sum() >= 20:
            return (torch.stack(outs),)


def run_branch(x: Any, w: Any, c: bool) -> Any:
    return ((torch.cat([x, w[None]]) if c else x[:-1]) * w,)


def run_maybe(x: Any, w: Any, c: bool) -> Any:
    return (x * w * x if c else w * w,)


X, W = some(4, 3), some(3)
TRUE, FALSE = np.array(True), np.array(False)
EDIT = {"a": some(2, 3), "b": some(4), "c": some(2)}
FLOWS = {
    "construct": Flow(
        CONSTRUCT,
        {"a": some(2, 3), "b": some(4), "c": some(3), "i": np.int64(1)},
        lambda a, b, c, i: (a * a, torch.sin(b), a * a),
    ),
    "construct-negative": Flow(
        CONSTRUCT,
        {"a": some(2, 3), "b": some(4), "c": some(3), "i": np.int64(-1)},
        lambda a, b, c, i: (a * a, torch.sin(c), a * a),
    ),
    **{
        f"edited-{i}-{j}": Flow(EDITED, {**EDIT, "i": np.int64(i), "j": np.int64(j)}, run_edited)
        for i, j in ((0, 1), (1, -1), (-1, 0), (-2, -3), (2, 3))
    },
    "split": Flow(SPLIT, {"x": some(2, 5), "w": some(5)}, run_split),
    "split-rows": Flow(STACKED, {"x": X}, lambda x: ((x * x).T,)),
    "split-pieces": Flow(PIECES, {"x": some(2, 6), "sizes": np.array([1, 3, 2])}, run_pieces),
    "split-broadcast": Flow(
        BROADCAST, {"x": some(2, 4), "sizes": np.array([3, 1])}, lambda x, sizes: (x[:, :3] * x[:, 3:],)
    ),
    "split-equal": Flow(EQUAL, {"x": some(2, 5)}, lambda x: (x[:, 4:] ** 2,)),
    "mapped": Flow(MAPPED, {"x": X, "w": W, "v": some(3)}, run_mapped),
    "mapped-inputs": Flow(MAPPED, {"x": X, "w": W, "v": some(3)}, run_mapped, ("x",)),
    "mapped-capturing": Flow(CAPTURING, {"x": X, "v": W}, lambda x, v: (torch.tanh(x * v * v),)),
    "branch-longer": Flow(BRANCH, {"x": X, "w": W, "c": TRUE}, run_branch),
    "branch-shorter": Flow(BRANCH, {"x": X, "w": W, "c": FALSE}, run_branch),
    "read-in-branch": Flow(READ, {"x": X, "c": TRUE}, lambda x, c: (x[1] ** 2,)),
    "not-read-in-branch": Flow(READ, {"x": X, "c": FALSE}, lambda x, c: (0 * x.sum() + torch.arange(1.0, 4),)),
    "optional": Flow(OPTIONAL, {"x": some(3)}, lambda x: (x * x,)),
    "optional-sequence": Flow(OPTIONAL_SEQUENCE, {"x": X}, lambda x: (torch.exp(x[1]),)),
    "optional-full": Flow(MAYBE, {"x": some(3), "w": W, "c": TRUE}, run_maybe),
    "optional-empty": Flow(MAYBE, {"x": some(3), "w": W, "c": FALSE}, run_maybe),
    "loop-appended": Flow(APPENDED, {"n": np.int64(3), "s0": some(3), "w": W}, run_appended),
    "loop-read-back": Flow(READ_BACK, {"n": np.int64(3), "s0": some(3), "w": W}, run_read_back),
    "loop-read-back-none": Flow(READ_BACK, {"n": np.int64(0), "s0": some(3), "w": W}, run_read_back),
    "loop-consumed": Flow(CONSUMED, {"n": np.int64(3), "x": X, "s0": some(3)}, run_consumed),
    "loop-walked": Flow(WALKED, {"x": X, "s0": some(3), "w": W}, run_walked),
    "loop-growing": Flow(GROWING, {"n": np.int64(2), "v0": some(2)}, run_growing, twice=False),
    "loop-optional": Flow(HELD, {"n": np.int64(3), "x": some(3), "w": W}, run_held),
    "loop-until": Flow(UNTIL, {"s0": 1 + some(3), "w": 1 + some(3)}, run_until),
}


@pytest.mark.parametrize("name", list(FLOWS))
def test_first_derivative(name: str) -> None:
    check_first_derivative(FLOWS[name])


@pytest.mark.parametrize("name", [name for name, flow in FLOWS.items() if flow.twice])
def test_second_derivative(name: str) -> None:
    check_second_derivative(FLOWS[name])


def test_a_state_of_varying_shape_is_differentiable_once() -> None:
    """The backward Loop carries gradients of other extents in each iteration, which only its run shows."""
    flow = FLOWS["loop-growing"]
    first = backpass.grad(parse(flow.text), flow.wrt, seeds=True)
    second = backpass.grad(first, flow.wrt, outputs=["v0_grad"])
    feeds = {**{k: np.asarray(v) for k, v in flow.feeds.items()}, "v_grad": np.ones(8)}
    with pytest.raises(backpass.InvalidInput, match="parts of different shapes"):
        backpass.InferenceSession(second.SerializeToString()).run(None, feeds)


def gradients(text: str, wrt: list[str], feeds: dict[str, Any], **options: Any) -> list[Any]:
    model = backpass.grad(parse(text), wrt, **options)
    return backpass.InferenceSession(model.SerializeToString()).run(None, feeds)[-len(wrt) :]


def test_parts_of_nothing() -> None:
    """No rows: nothing can be joined, and the gradient is as empty as the tensor."""
    text = """g (double[N,3] x, double[3] w) => (double[M,3] y) {
      rows = SplitToSequence<axis = 0, keepdims = KEEP>(x)
      more = SequenceInsert(rows, w)
      y = ConcatFromSequence<axis = 0, new_axis = 1>(more) }"""
    dx, dw = gradients(text.replace("KEEP", "0"), ["x", "w"], {"x": np.zeros((0, 3)), "w": np.ones(3)})
    assert dx.shape == (0, 3)
    assert dw.tolist() == [1, 1, 1]
    for shape in ("N,3", "0,3"):
        text = f"""g (double[{shape}] x, double[2,3] w) => (double[M,3] y) {{
          rows = SplitToSequence<axis = 0>(x)
          more = SequenceInsert(rows, w)
          y = ConcatFromSequence<axis = 0>(more) }}"""
        dx, dw = gradients(text, ["x", "w"], {"x": np.zeros((0, 3)), "w": np.ones((2, 3))})
        assert dx.shape == (0, 3)
        assert np.array_equal(dw, np.ones((2, 3)))


def test_a_sequence_that_is_fed_has_a_sequence_of_gradients() -> None:
    text = """g (seq(double[N]) s, double[3] w) => (double[3] y, seq(double[M]) z) {
      two = Constant<value = int64 {-2}>()
      p = SequenceAt(s, two) y = Mul(p, w)
      z = SequenceMap(s) <body = b (double[K] e) => (double[K] f) { f = Mul(e, e) }> }"""
    s, w = [some(2), some(3), some(1)], some(3)
    found, dw = gradients(text, ["s", "w"], {"s": s, "w": w}, outputs=["y"])
    assert [g.tolist() for g in found] == [[0, 0], w.tolist(), [0]]
    assert np.array_equal(dw, s[1])
    (found,) = gradients(text, ["s"], {"s": s, "w": w}, outputs=["z"])
    for g, e in zip(found, s, strict=True):
        np.testing.assert_allclose(g, 2 * e, rtol=1e-15)
    seeds = [some(2), some(3), some(1)]
    (found,) = gradients(text, ["s"], {"s": s, "w": w, "z_grad": seeds}, outputs=["z"], seeds=True)
    for g, e, d in zip(found, s, seeds, strict=True):
        np.testing.assert_allclose(g, 2 * e * d, rtol=1e-15)


def test_float32_parts_of_no_extent_go_through_onnxruntime() -> None:
    """Extents of the parts are measured, not assumed: some are 0."""
    text = """g (float[2,N] x, int64[3] sizes) => (float[2,M] y) {
      parts = SplitToSequence<axis = 1>(x, sizes) y = ConcatFromSequence<axis = 1>(parts) }"""
    feeds = {"x": some(2, 5).astype(np.float32), "sizes": np.array([2, 0, 3])}
    (dx,) = gradients(text, ["x"], feeds)
    assert np.array_equal(dx, np.ones((2, 5)))


REFUSED = {
    "a sequence as a whole for each element": (
        """g (double[N,3] x) => (double[N,3] y) {
          rows = SplitToSequence<axis = 0, keepdims = 0>(x)
          a = SequenceMap(rows) <body = m (double[3] r) => (double[3] p) {
            zero = Constant<value = int64 {0}>() f = SequenceAt(rows, zero) p = Mul(r, f) }>
          y = ConcatFromSequence<axis = 0, new_axis = 1>(a) }""",
        "use a Loop over the elements",
    ),
    "random": (
        """g (double[N,3] x) => (double[N,3] y) {
          rows = SplitToSequence<axis = 0, keepdims = 0>(x)
          a = SequenceMap(rows) <body = m (double[3] r) => (double[3] p) { n = RandomNormalLike(r) p = Mul(r, n) }>
          y = ConcatFromSequence<axis = 0, new_axis = 1>(a) }""",
        "draws random numbers",
    ),
    "random-replayed": (
        """g (int64 n, double[3] x) => (double[3] y) {
          t = Constant<value = bool {1}>() begin = SequenceConstruct(x)
          s, l = Loop (n, t, x, begin) <
            body = b (int64 i, bool c, double[3] h, seq(double[3]) list) => (bool d, double[3] k, seq(double[3]) more) {
              d = Identity(c) zero = Constant<value = int64 {0}>() e = SequenceAt(list, zero) k = Mul(h, e)
              r = RandomNormalLike(h) more = SequenceInsert(list, r, zero) }>
          y = Identity(s) }""",
        "draws random numbers",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_done_is_said(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(backpass.Unsupported, match=reason):
        backpass.grad(parse(text), ["x"])
    assert reason in str(backpass.check(parse(text), trainable=["x"]))
