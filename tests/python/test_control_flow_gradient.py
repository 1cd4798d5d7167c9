"""Gradients through If, Loop and Scan: against torch running the same iterations one by one, against finite
differences, by onnxruntime, and differentiated a second time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import backpass
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model('<ir_version: 8, opset_import: ["": 18]>\n' + text)


@dataclass
class Flow:
    """A model (float64), what it is fed, and the same as a function of torch tensors."""

    text: str
    feeds: Mapping[str, Any]
    torch: Callable[..., Any]
    constant: tuple[str, ...] = ()  # inputs that are not differentiated
    in_onnxruntime: bool = True

    @property
    def wrt(self) -> list[str]:
        return [k for k, v in self.feeds.items() if k not in self.constant and np.asarray(v).dtype == np.float64]


BRANCHES = """g (double[N,3] x, double[3] w, bool c) => (double[N,3] y, double[N,3] z) {
  h = Mul(x, w)
  y, z = If (c) <
    then_branch = t () => (double[N,3] a, double[N,3] b) { a = Mul(h, x) b = Tanh(h) },
    else_branch = e () => (double[N,3] p, double[N,3] q) { p = Identity(h) q = Mul(w, h) }> }"""
CAPTURED = """g (double[N] x, bool c) => (double[N] y) {
  y = If (c) <then_branch = t () => (double[N] a) { a = Identity(x) },
              else_branch = e () => (double[1] b) { b = Constant<value = double[1] {2.0}>() }> }"""
SCAN = """g (double[3] s0, double[T,3] x, double[3] w) => (double[3] s, double[T,3] y) {
  s, y = Scan <num_scan_inputs = 1, body = b (double[3] before, double[3] xt) => (double[3] after, double[3] yt) {
    p = Mul(before, w) q = Add(p, xt) after = Tanh(q) yt = Mul(after, xt) }> (s0, x) }"""
BOTH_WAYS = """g (double[3] s0, double[3,T] x, double[T,3] z, double[3] w) => (double[3] s, double[3,T] y) {
  s, y = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
               scan_output_axes = [-1], scan_output_directions = [1],
    body = b (double[3] before, double[3] xt, double[3] zt) => (double[3] after, double[3] yt) {
      p = Mul(before, w) q = Mul(p, xt) after = Add(q, zt) yt = Mul(after, zt) }> (s0, x, z) }"""
COUNTED = """g (int64 n, double[3] s0, double[3] w) => (double[3] s, double[K,3] ys) {
  t = Constant<value = bool {1}>()
  s, ys = Loop (n, t, s0) <body = b (int64 i, bool c, double[3] before) => (bool d, double[3] after, double[3] y) {
    d = Identity(c) f = Cast<to = 11>(i) p = Mul(before, w) q = Add(p, f) after = Sin(q) y = Mul(after, w) }> }"""
WHILE = """g (double[3] s0, double[3] w) => (double[3] s, double[K,3] ys) {
  t = Constant<value = bool {1}>()
  s, ys = Loop (, t, s0) <body = b (int64 i, bool c, double[3] before) => (bool d, double[3] after, double[3] y) {
    after = Mul(before, w) m = ReduceSum<keepdims = 0>(after) limit = Constant<value = double {20.0}>()
    d = Less(m, limit) y = Mul(before, before) }> }"""
# One state passes its gradient to another one iteration later; one is read but never kept.
CROSSED = """g (int64 n, double[3] s0, double[3] v0, double[3] w) => (double[3] v, double[K,3] ys) {
  t = Constant<value = bool {1}>()
  s, v, ys = Loop (n, t, s0, v0) <
    body = b (int64 i, bool c, double[3] sb, double[3] vb) => (bool d, double[3] sa, double[3] va, double[3] y) {
      d = Identity(c) sa = Mul(w, w) va = Mul(sb, w) y = Mul(sb, vb) }> }"""
NESTED = """g (int64 n, double[3] s0, double[T,3] x, double[3] w) => (double[3] s) {
  t = Constant<value = bool {1}>()
  s = Loop (n, t, s0) <body = b (int64 i, bool c, double[3] before) => (bool d, double[3] after) {
    d = Identity(c)
    two = Constant<value = int64 {2}>()
    r = Mod(i, two)
    odd = Cast<to = 9>(r)
    a, ys = Scan <num_scan_inputs = 1, body = b2 (double[3] u, double[3] xt) => (double[3] v, double[3] o) {
      k = Mul(u, w) v = Add(k, xt) o = Identity(v) }> (before, x)
    zero = Constant<value = int64[1] {0}>()
    m = ReduceSum<keepdims = 0>(ys, zero)
    after = If (odd) <then_branch = tb () => (double[3] q) { q = Mul(a, w) },
                      else_branch = eb () => (double[3] q2) { q2 = Mul(m, before) }> }> }"""


def run_branches(x: Any, w: Any, c: bool) -> Any:
    h = x * w
    return (h * x, torch.tanh(h)) if c else (h, w * h)


def run_scan(s0: Any, x: Any, w: Any) -> Any:
    s, ys = s0, [torch.zeros(0, 3, dtype=torch.float64)]
    for xt in x:
        s = torch.tanh(s * w + xt)
        ys.append((s * xt)[None])
    return s, torch.cat(ys)


def run_both_ways(s0: Any, x: Any, z: Any, w: Any) -> Any:
    s, ys = s0, []
    for t in range(len(z)):
        s = s * w * x[:, -1 - t] + z[t]
        ys.insert(0, s * z[t])
    return s, torch.stack(ys, -1)


def run_counted(n: int, s0: Any, w: Any) -> Any:
    s, ys = s0, [torch.zeros(0, 3, dtype=torch.float64)]
    for i in range(n):
        s = torch.sin(s * w + i)
        ys.append((s * w)[None])
    return s, torch.cat(ys)


def run_while(s0: Any, w: Any) -> Any:
    s, ys, go = s0, [], True
    while go:
        ys.append(s * s)
        s = s * w
        go = bool(s.sum() < 20)
    return s, torch.stack(ys)


def run_crossed(n: int, s0: Any, v0: Any, w: Any) -> Any:
    s, v, ys = s0, v0, [torch.zeros(0, 3, dtype=torch.float64)]
    for _ in range(n):
        ys.append((s * v)[None])
        s, v = w * w, s * w
    return v, torch.cat(ys)


def run_nested(n: int, s0: Any, x: Any, w: Any) -> Any:
    s = s0
    for i in range(n):
        a, m = s, torch.zeros(3, dtype=torch.float64)
        for xt in x:
            a = a * w + xt
            m = m + a
        s = a * w if i % 2 else m * s
    return (s,)


rng = np.random.default_rng(5)


def some(*shape: int) -> np.ndarray:
    return rng.uniform(0.3, 0.9, shape)


FLOWS = {
    "If-then": Flow(BRANCHES, {"x": some(2, 3), "w": some(3), "c": np.array(True)}, run_branches),
    "If-else": Flow(BRANCHES, {"x": some(2, 3), "w": some(3), "c": np.array(False)}, run_branches),
    "If-captured": Flow(CAPTURED, {"x": some(4), "c": np.array(True)}, lambda x, c: (x,)),
    "If-constant": Flow(
        CAPTURED, {"x": some(4), "c": np.array(False)}, lambda x, c: (0 * x.sum() + torch.full((1,), 2.0),)
    ),
    "Scan": Flow(SCAN, {"s0": some(3), "x": some(4, 3), "w": some(3)}, run_scan),
    "Scan-inputs": Flow(SCAN, {"s0": some(3), "x": some(4, 3), "w": some(3)}, run_scan, ("s0", "w")),
    "Scan-captured": Flow(SCAN, {"s0": some(3), "x": some(4, 3), "w": some(3)}, run_scan, ("s0", "x")),
    # onnxruntime has no scan of no steps.
    "Scan-none": Flow(SCAN, {"s0": some(3), "x": some(0, 3), "w": some(3)}, run_scan, (), False),
    "Scan-directions": Flow(BOTH_WAYS, {"s0": some(3), "x": some(3, 4), "z": some(4, 3), "w": some(3)}, run_both_ways),
    "Loop": Flow(COUNTED, {"n": np.int64(3), "s0": some(3), "w": some(3)}, run_counted),
    "Loop-none": Flow(COUNTED, {"n": np.int64(0), "s0": some(3), "w": some(3)}, run_counted, (), False),
    "Loop-while": Flow(WHILE, {"s0": 1 + some(3), "w": 1 + some(3)}, run_while),
    "Loop-crossed": Flow(CROSSED, {"n": np.int64(3), "s0": some(3), "v0": some(3), "w": some(3)}, run_crossed),
    "Loop-crossed-none": Flow(
        CROSSED, {"n": np.int64(0), "s0": some(3), "v0": some(3), "w": some(3)}, run_crossed, (), False
    ),
    "nested": Flow(NESTED, {"n": np.int64(4), "s0": some(3), "x": some(3, 3), "w": some(3)}, run_nested),
}


def session(model: onnx.ModelProto) -> backpass.InferenceSession:
    return backpass.InferenceSession(model.SerializeToString())


def evaluate(model: onnx.ModelProto, values: Mapping[str, Any], run: Any = None) -> list[np.ndarray]:
    known = {i.name for i in model.graph.input}
    feeds = {k: np.asarray(v) for k, v in values.items() if k in known}
    return (run or session(model)).run(None, feeds)


def seeds_of(flow: Flow) -> dict[str, np.ndarray]:
    model = parse(flow.text)
    outputs = evaluate(model, flow.feeds)
    draw = np.random.default_rng(7)
    return {f"{o.name}_grad": draw.standard_normal(v.shape) for o, v in zip(model.graph.output, outputs, strict=True)}


def by_torch(flow: Flow, seeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    leaves = {k: torch.tensor(flow.feeds[k], requires_grad=True) for k in flow.wrt}
    given = {k: leaves.get(k, torch.tensor(v) if np.ndim(v) else v) for k, v in flow.feeds.items()}
    outputs = flow.torch(**given)
    total = sum((y * torch.tensor(s)).sum() for y, s in zip(outputs, seeds, strict=True))
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return [np.zeros(x.shape) if g is None else g.numpy() for g, x in zip(found, leaves.values(), strict=True)]


def close(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", list(FLOWS))
def test_first_derivative(name: str) -> None:
    flow = FLOWS[name]
    seeds = seeds_of(flow)
    model = backpass.grad(parse(flow.text), flow.wrt, seeds=True)
    onnx.checker.check_model(model)
    values = {**flow.feeds, **seeds}
    gradients = evaluate(model, values)[-len(flow.wrt) :]
    close(gradients, by_torch(flow, list(seeds.values())))
    fused = backpass.grad(parse(flow.text), flow.wrt, seeds=True, standard_only=False)
    close(evaluate(fused, values)[-len(flow.wrt) :], gradients)
    if flow.in_onnxruntime:
        judge = onnxruntime.InferenceSession(model.SerializeToString())
        close(evaluate(model, values, judge)[-len(flow.wrt) :], gradients)


@pytest.mark.parametrize("name", list(FLOWS))
def test_second_derivative(name: str) -> None:
    flow = FLOWS[name]
    first = backpass.grad(parse(flow.text), flow.wrt, seeds=True)
    names = [o.name for o in first.graph.output][-len(flow.wrt) :]
    second = backpass.grad(first, flow.wrt, outputs=names)
    values = {**flow.feeds, **seeds_of(flow)}
    got = evaluate(second, values)[-len(flow.wrt) :]
    run = session(first)
    step = 1e-5

    def total(changed: Mapping[str, Any]) -> float:
        return float(sum(g.sum() for g in evaluate(first, changed, run)[-len(flow.wrt) :]))

    for key, gradient in zip(flow.wrt, got, strict=True):
        assert gradient.shape == flow.feeds[key].shape
        for at in np.ndindex(gradient.shape):
            shift = np.zeros(gradient.shape)
            shift[at] = step
            ahead, back = ({**values, key: values[key] + s * shift} for s in (1, -1))
            difference = (total(ahead) - total(back)) / (2 * step)
            assert abs(gradient[at] - difference) <= 1e-6 * max(1.0, abs(difference)), (key, at)


REFUSED = {
    "grows": (
        """g (int64 n, double[N] v0) => (double[M] v) {
          t = Constant<value = bool {1}>()
          v = Loop (n, t, v0) <body = b (int64 i, bool c, double[k] before) => (bool d, double[m] after) {
            d = Identity(c) sq = Mul(before, before) after = Concat<axis = 0>(sq, before) }> }""",
        ["v0"],
        "whose shape every iteration keeps",
    ),
    "sequence": (
        """g (double[2, N] x) => (double[1, N] y) {
          parts = SplitToSequence<axis = 0>(x) zero = Constant<value = int64 {0}>() y = SequenceAt(parts, zero) }""",
        ["x"],
        "SplitToSequence",
    ),
    "sequence-inside": (
        """g (bool c, double[2, N] x) => (double[M, N] y) {
          y = If (c) <then_branch = t () => (double[1, N] a) { parts = SplitToSequence<axis = 0>(x)
                        zero = Constant<value = int64 {0}>() a = SequenceAt(parts, zero) },
                      else_branch = e () => (double[2, N] b) { b = Identity(x) }> }""",
        ["x"],
        "SplitToSequence",
    ),
    "random": (
        """g (bool c, float[N] x) => (float[N] y) {
          y = If (c) <then_branch = t () => (float[N] a) { r = RandomNormalLike(x) a = Mul(x, r) },
                      else_branch = e () => (float[N] b) { b = Identity(x) }> }""",
        ["x"],
        "draws random numbers",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_done_is_said(name: str) -> None:
    text, wrt, reason = REFUSED[name]
    model = parse(text)
    with pytest.raises(backpass.Unsupported, match=reason):
        backpass.grad(model, wrt)
    assert reason in str(backpass.check(model, trainable=wrt))
