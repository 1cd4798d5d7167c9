"""What onnx's checker refuses is refused here: models with one thing changed (nonconforming.py), problems all at once,
and the table of the standard's operators."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import backpass
import nonconforming
import onnx
import pytest
from onnx import parser

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("BACKPASS_FUZZ_SECONDS", "600"))
sys.path.insert(0, str(HERE.parents[1] / "tools"))

import standard_operators  # noqa: E402


def test_table_is_that_of_the_onnx_package() -> None:
    assert standard_operators.TABLE.read_text() == standard_operators.generate(), "run tools/standard_operators.py"


def test_all_problems_are_told_at_once_in_the_order_of_the_nodes() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,8,8] x, float[1,1,3,3] w) => (int64[1,1,6,6] y) {
            [conv] a = Conv <strids = [2, 2], pad = [1, 1]> (x, w)
            [gelu] b = Gelu (a)
            [cast] c = Cast (b)
            [soft] d = Softmax <axis = 9> (a)
            [relu] y = Relu (a) }""")
    report = backpass.check(model)
    assert [p.node for p in report.problems] == ["conv", "conv", "gelu", "cast", "soft", "relu"], report
    with pytest.raises(backpass.InvalidInput) as caught:
        backpass.InferenceSession(model)
    assert all(p.text in str(caught.value) for p in report.problems)


def test_a_function_called_twice_is_refused_once() -> None:
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20, "my" : 1]>
        g (float[2] x) => (float[2] y) { a = my.f(x) y = my.f(a) }
        <domain: "my", opset_import: ["" : 20]> f (a) => (b) { [inner] b = LeakyRelu <alfa = 0.5> (a) }""")
    assert [p.node for p in backpass.check(model).problems] == ["inner"]


def test_attributes_of_tools_and_of_other_domains_are_let_be() -> None:
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
        g (float[2] x) => (float[2] y) { y = Relu <__note = "of some tool"> (x) }""")
    onnx.checker.check_model(model)
    assert backpass.check(model)


BRANCHES = """<ir_version: 9, opset_import: ["" : 20]> g (bool c, float[2] x) => (float[2] y) {
    [if] y = If (c) <then_branch = t () => (%s a) <%s q> { [neg] q = Neg(x) [same] a = Identity(q) },
                     else_branch = e () => (float[2] b) { b = Abs(x) }> }"""
CONSTANT = """<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) <float[1] c> {
    [const] c = Constant <value_ints = [1]> () d = Cast <to = 1> (c) y = Add(x, d) }"""
UNUSED = """<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) <int64[2] c> {
    [unused] c = Neg(x) y = Abs(x) }"""
DECLARED = {
    "output of a subgraph": (BRANCHES % ("int64[2]", "float[2]"), ["same"]),
    "value in a subgraph": (BRANCHES % ("float[2]", "int64[2]"), ["neg"]),
    "constant": (CONSTANT, ["const"]),
    "value that nothing reads": (UNUSED, ["unused"]),
    "nothing wrong": (BRANCHES % ("float[2]", "float[2]"), []),
}


@pytest.mark.parametrize("what", DECLARED)
def test_declared_types_are_compared_wherever_they_stand(what: str) -> None:
    text, nodes = DECLARED[what]
    assert [p.node for p in backpass.check(parser.parse_model(text)).problems] == nodes


def test_a_subgraph_given_twice_is_refused() -> None:
    model = parser.parse_model(BRANCHES % ("float[2]", "float[2]"))
    model.graph.node[0].attribute.append(model.graph.node[0].attribute[0])
    assert "[If 'if'] attribute 'then_branch' is given twice" in str(backpass.check(model))


def test_what_a_gradient_node_differentiates_is_checked_first() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 13, "ai.onnx.preview.training" : 1]>
        g (float[2] x, float[2] w) => (float[2] y, float[2] d) {
            [mul] y = Mul(x, w, , , , x) d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x) }""")
    assert [p.text for p in backpass.check(model).problems] == ["[Mul 'mul'] number of inputs: got 6, expected 2"]


def test_a_missing_pattern_is_said_once() -> None:
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
        g (string[2] x) => (bool[2] y) { [match] y = RegexFullMatch(x) }""")
    assert str(backpass.check(model)).count("[RegexFullMatch 'match']") == 1


def test_changed_models() -> None:
    wrong = nonconforming.hunt(first=0, count=400, seconds=60, with_onnxruntime=False)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_many_changed_models() -> None:
    """And none is refused that onnx and onnxruntime take."""
    wrong = nonconforming.hunt(first=1000, count=10**9, seconds=SECONDS, with_onnxruntime=True)
    assert not wrong, "\n".join(wrong)
