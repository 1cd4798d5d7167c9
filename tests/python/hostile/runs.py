"""Models that load, and what they are fed is wrong: by its form, or by what an operator finds in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hostile.case import Case, bad_run, edited

ADD = "(float[batch,3] x, float[batch,3] z) => (y) { [add] y = Add(x, z) }"


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


INT_MIN = np.iinfo(np.int64).min
CASES: list[Case] = [
    # ---- The form of the feeds.
    bad_run("feed-missing", ADD, {"x": ones(2, 3)}, "input 'z'", "is not fed"),
    bad_run("feed-unknown", ADD, {"x": ones(2, 3), "z": ones(2, 3), "w": ones(1)},
            "input 'w' does not exist; the model takes 'x', 'z'"),
    bad_run("feed-type", ADD, {"x": ones(2, 3), "z": ones(2, 3, dtype=np.float64)},
            "input 'z': got float64[2,3], expected float32[batch,3]"),
    bad_run("feed-rank", ADD, {"x": ones(3), "z": ones(2, 3)}, "input 'x': got float32[3], expected float32[batch,3]"),
    bad_run("feed-extent", ADD, {"x": ones(2, 4), "z": ones(2, 3)}, "input 'x': got float32[2,4], expected"),
    bad_run("feed-symbol-twice", ADD, {"x": ones(2, 3), "z": ones(5, 3)}, "batch", "2", "5"),
    bad_run("feed-all-wrong", ADD, {"x": ones(3), "q": ones(1)}, "'x'", "'z'", "'q'"),
    bad_run("feed-list", ADD, {"x": [ones(2, 3)], "z": ones(2, 3)},
            "input 'x': got a sequence, expected float32[batch,3]"),
    bad_run("feed-none", ADD, {"x": None, "z": ones(2, 3)}, "input 'x': got nothing, expected float32[batch,3]"),
    bad_run("feed-complex", ADD, {"x": ones(2, 3, dtype=np.complex64), "z": ones(2, 3)}, "input 'x': got complex64"),
    bad_run("feed-dates", ADD, {"x": np.zeros((2, 3), "datetime64[s]"), "z": ones(2, 3)}, "datetime64"),
    bad_run("feed-tensor-for-sequence", "(seq(float[2]) s) => (y) { y = SequenceLength(s) }", {"s": ones(2)},
            "input 's': got float32[2], expected seq(float32[2])"),
    bad_run("feed-sequence-of-wrong-type", "(seq(float[2]) s) => (y) { y = SequenceLength(s) }",
            {"s": [ones(2, dtype=np.int64)]}, "input 's' element 0: got int64[2], expected float32[2]"),
    # ---- Extents that only meet at run time.
    bad_run("matmul-at-run-time", "(float[a,b] x, float[c,d] w) => (y) { [m] y = MatMul(x, w) }",
            {"x": ones(2, 3), "w": ones(4, 5)}, "input 'w' axis 0: got 4", "3"),
    bad_run("add-at-run-time", "(float[a] x, float[b] z) => (y) { [a] y = Add(x, z) }",
            {"x": ones(2), "z": ones(3)}, "[Add 'a']", "2", "3"),
    bad_run("concat-at-run-time", "(float[a,b] x, float[c,d] z) => (y) { [c] y = Concat <axis = 0> (x, z) }",
            {"x": ones(2, 3), "z": ones(2, 4)}, "input 'z' axis 1: got 4", "3"),
    bad_run("conv-at-run-time", "(float[n,c,h,w] x, float[1,1,5,5] k) => (y) { [c] y = Conv(x, k) }",
            {"x": ones(1, 1, 2, 2), "k": ones(1, 1, 5, 5)}, "[Conv 'c']"),
    bad_run("stft-length-against-window",
            "(float[1,40,1] x, int64 n) => (y) <int64 s = {5}, float[3] w = {1,1,1}> { [f] y = STFT(x, s, w, n) }",
            {"x": ones(1, 40, 1), "n": np.array(4)},
            "[STFT 'f'] frame_length and length of window: got 4 and 3, expected them to be equal"),
    bad_run("reshape-at-run-time", "(float[n] x, int64[2] s) => (y) { [r] y = Reshape(x, s) }",
            {"x": ones(6), "s": ints(4, 2)}, "[Reshape 'r']", "6", "8"),
    bad_run("reshape-to-scalar-at-run-time", "(float[2,3,4] x, int64[k] s) => (y) { [r] y = Reshape(x, s) }",
            {"x": ones(2, 3, 4), "s": ints()}, "[Reshape 'r']", "24", "1"),
    bad_run("reshape-of-fed-data", "(float[n] x) => (y) <int64[2] s = {2,3}> { [r] h = Reshape(x, s) y = Relu(h) }",
            {"x": ones(7)}, "[Reshape 'r'] shape: got [2,3] of 6 elements, expected one of 7 elements"),
    bad_run("expand-by-floats-at-run-time", "(float[4] x, float[1] s) => (y) { [c] t = Cast <to = 7> (s) "
            "[e] y = Expand(x, t) }", {"x": ones(4), "s": ones(1) * 3}, "[Expand 'e']", "4", "3"),
    bad_run("tile-of-unknown-rank", edited("(float[1] x, int64[2] r) => (y) { [t] y = Tile(x, r) }",
                                           lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")),
            {"x": np.float32(1), "r": ints(1, 1)}, "[Tile 't'] repeats: got 2 numbers, expected 0"),
    bad_run("split-at-run-time", "(float[n] x, int64[2] s) => (y, z) { [s] y, z = Split(x, s) }",
            {"x": ones(6), "s": ints(4, 4)}, "[Split 's']", "6", "8"),
    bad_run("squeeze-at-run-time", "(float[n,3] x) => (y) <int64[1] a = {0}> { [s] y = Squeeze(x, a) }",
            {"x": ones(2, 3)}, "[Squeeze 's']", "2"),
    # ---- Contents.
    bad_run("gather-beyond", "(float[4] x, int64[1] i) => (y) { [g] y = Gather(x, i) }",
            {"x": ones(4), "i": ints(4)},
            "[Gather 'g'] index at position 0: got 4, expected one in [-4, 4)"),
    bad_run("gather-before", "(float[4] x, int64[1] i) => (y) { [g] y = Gather(x, i) }",
            {"x": ones(4), "i": ints(-5)}, "[Gather 'g']", "-5", "expected one in [-4, 4)"),
    bad_run("gather-from-nothing", "(float[n] x, int64[1] i) => (y) { [g] y = Gather(x, i) }",
            {"x": ones(0), "i": ints(0)}, "[Gather 'g']", "expected one in [0, 0)"),
    bad_run("gather-elements-beyond", "(float[4] x, int64[1] i) => (y) { [g] y = GatherElements(x, i) }",
            {"x": ones(4), "i": ints(INT_MIN)}, "[GatherElements 'g']", str(INT_MIN)),
    bad_run("gathernd-beyond", "(float[2,2] x, int64[1,2] i) => (y) { [g] y = GatherND(x, i) }",
            {"x": ones(2, 2), "i": np.array([[0, 7]])}, "[GatherND 'g']", "7"),
    bad_run("scatter-beyond", "(float[4] x, int64[1] i, float[1] u) => (y) { [s] y = ScatterElements(x, i, u) }",
            {"x": ones(4), "i": ints(9), "u": ones(1)}, "[ScatterElements 's']", "9"),
    bad_run("scatternd-beyond", "(float[4] x, int64[1,1] i, float[1] u) => (y) { [s] y = ScatterND(x, i, u) }",
            {"x": ones(4), "i": np.array([[-5]]), "u": ones(1)}, "[ScatterND 's']", "-5"),
    bad_run("label-beyond", "(float[2,3] x, int64[2] t) => (y) { [l] y = NegativeLogLikelihoodLoss(x, t) }",
            {"x": ones(2, 3), "t": ints(0, 3)}, "[NegativeLogLikelihoodLoss 'l']", "3"),
    bad_run("label-beyond-cross-entropy",
            "(float[2,3] x, int64[2] t) => (y) { [l] y = SoftmaxCrossEntropyLoss(x, t) }",
            {"x": ones(2, 3), "t": ints(0, -7)}, "[SoftmaxCrossEntropyLoss 'l']", "-7"),
    bad_run("topk-beyond-at-run-time", "(float[3] x, int64[1] k) => (y, i) { [t] y, i = TopK(x, k) }",
            {"x": ones(3), "k": ints(9)}, "[TopK 't']", "9"),
    bad_run("tile-negative", "(float[3] x, int64[1] r) => (y) { [t] y = Tile(x, r) }",
            {"x": ones(3), "r": ints(-1)}, "[Tile 't']", "-1"),
    bad_run("constant-of-huge-shape", "(int64[1] s) => (y) { [c] y = ConstantOfShape(s) }", {"s": ints(2**50)},
            "[ConstantOfShape 'c'] out of memory", str(2**52)),
    bad_run("constant-of-overflowing-shape", "(int64[2] s) => (y) { [c] y = ConstantOfShape(s) }",
            {"s": ints(2**40, 2**40)}, "[ConstantOfShape 'c']", "too many elements"),
    bad_run("expand-huge", "(float[1] x, int64[1] s) => (y) { [e] y = Expand(x, s) }",
            {"x": ones(1), "s": ints(2**50)}, "[Expand 'e'] out of memory", str(2**52)),
    bad_run("arena-huge", "(float[1] x) => (y) <int64[1] s = {17592186044416}> "
            "{ [e] h = Expand(x, s) [s] w = Softmax(h) [r] y = ReduceMax(w) }", {"x": ones(1)},
            "[Expand 'e'] out of memory", str(2**46)),
    bad_run("output-huge", "(float[1] x) => (y) <int64[1] s = {17592186044416}> { [e] y = Expand(x, s) }",
            {"x": ones(1)}, "[Expand 'e'] out of memory", str(2**46)),
    bad_run("pad-huge", "(float[2] x) => (y) <int64[2] p = {0, 1125899906842624}> "
            "{ [p] y = Pad <mode = \"edge\"> (x, p) }", {"x": ones(2)}, "[Pad 'p'] out of memory"),
    bad_run("tile-huge", "(float[3] x, int64[1] r) => (y) { [t] y = Tile(x, r) }",
            {"x": ones(3), "r": ints(2**50)}, "[Tile 't'] out of memory"),
    bad_run("range-huge", "(int64 b) => (y) <int64 a = {0}, int64 d = {1}> { [r] y = Range(a, b, d) }",
            {"b": np.int64(2**60)}, "[Range 'r']", str(2**60)),
    bad_run("range-step-zero-at-run-time",
            "(int64 d) => (y) <int64 a = {0}, int64 b = {5}> { [r] y = Range(a, b, d) }",
            {"d": np.int64(0)}, "[Range 'r']", "0"),
    bad_run("range-to-nan", "(float b) => (y) <float a = {0}, float d = {1}> { [r] y = Range(a, b, d) }",
            {"b": np.float32("nan")}, "[Range 'r']", "nan"),
    bad_run("resize-to-nan",
            "(float[1,1,2,2] x, float[4] s) => (y) { [r] y = Resize <mode = \"nearest\"> (x, \"\", s) }",
            {"x": ones(1, 1, 2, 2), "s": np.full(4, np.nan, np.float32)}, "[Resize 'r']", "scales"),
    bad_run("onehot-negative-depth",
            "(int64[1] i, int64 n) => (y) <float[2] v = {0,1}> { [o] y = OneHot(i, n, v) }",
            {"i": ints(0), "n": np.int64(-3)}, "[OneHot 'o']", "-3"),
    bad_run("cast-of-letters", "(string[1] s) => (y) { [c] y = Cast <to = 1> (s) }",
            {"s": np.array(["abc"], object)}, "[Cast 'c']", "abc"),
    bad_run("slice-step-zero-at-run-time",
            "(float[4] x, int64[1] t) => (y) <int64[1] z = {0}, int64[1] e = {4}> { [s] y = Slice(x, z, e, z, t) }",
            {"x": ones(4), "t": ints(0)}, "[Slice 's']", "step"),
    bad_run("if-without-one-condition",
            "(bool[2] c, float[1] x) => (y) { [if] y = If (c) <then_branch = t () => (u) { u = Relu(x) }, "
            "else_branch = e () => (v) { v = Neg(x) }> }",
            {"c": np.array([True, False]), "x": ones(1)},
            "[If 'if'] condition: got bool[2], expected a bool tensor with one element"),
    # ---- Sequences and optionals.
    bad_run("sequence-at-beyond", "(seq(float[2]) s, int64 i) => (y) { [s] y = SequenceAt(s, i) }",
            {"s": [ones(2)], "i": np.int64(1)}, "[SequenceAt 's']", "got 1, expected [-1, 1)"),
    bad_run("sequence-at-of-empty", "(seq(float[2]) s, int64 i) => (y) { [s] y = SequenceAt(s, i) }",
            {"s": [], "i": np.int64(0)}, "[SequenceAt 's']", "sequence of 0"),
    bad_run("sequence-erase-of-empty", "(seq(float[2]) s) => (n) { [e] t = SequenceErase(s) n = SequenceLength(t) }",
            {"s": []}, "[SequenceErase 'e']", "empty"),
    bad_run("concat-of-empty-sequence", "(seq(float[2]) s) => (y) { [c] y = ConcatFromSequence <axis = 0> (s) }",
            {"s": []},
            "[ConcatFromSequence 'c'] sequence: got an empty one, expected at least one tensor"),
    bad_run("optional-without-content", "(optional(float[2]) o) => (y) { [g] y = OptionalGetElement(o) }",
            {"o": None}, "[OptionalGetElement 'g']", "empty"),
]  # fmt: skip
