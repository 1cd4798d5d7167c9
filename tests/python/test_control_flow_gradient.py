"""Gradients through If, Loop and Scan: against torch running the same iterations one by one, against finite
differences, by onnxruntime, and differentiated a second time."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import pytest
import torch
from flow_check import Flow, check_first_derivative, check_second_derivative, parse

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


@pytest.mark.parametrize("name", list(FLOWS))
def test_first_derivative(name: str) -> None:
    check_first_derivative(FLOWS[name])


@pytest.mark.parametrize("name", list(FLOWS))
def test_second_derivative(name: str) -> None:
    check_second_derivative(FLOWS[name])


REFUSED = {
    "grows": (
        """g (double[N] v0, double[T] x) => (double[M] v) {
          v = Scan <num_scan_inputs = 1, body = b (double[k] before, double e) => (double[m] after) {
            sq = Mul(before, e) after = Concat<axis = 0>(sq, before) }> (v0, x) }""",
        ["v0"],
        "whose shape every iteration keeps",
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
