"""Graphs whose names, order, functions or nesting are wrong."""

from __future__ import annotations

from onnx import helper

from hostile.case import OPSET, Case, bad, edited, parse, unsupported

HEADER = f'<ir_version: 9, opset_import: ["" : {OPSET}, "my" : 1]>'
FUNCTION = f'<domain: "my", opset_import: ["" : {OPSET}, "my" : 1]>'
RELU = "(float[1] x) => (y) { y = Relu(x) }"
CALL = "g (float[2] x) => (float[2] y) { [call] y = my.f(x) }"


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field. The protobuf package itself refuses to nest as deep as a hostile file may."""
    length, size = b"", len(content)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def nested_branches(depth: int) -> bytes:
    """An If in a branch of an If in a branch of ..."""
    graph = b""
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"  # name, g, type = GRAPH
        graph = field(1, field(1, b"c") + field(4, b"If") + field(5, attribute))  # node: input, op_type, attribute
    return parse(RELU).SerializeToString() + field(7, graph)


def nested_types(depth: int) -> bytes:
    """A sequence of sequences of ..."""
    kind = b""
    for _ in range(depth):
        kind = field(4, field(1, kind))  # sequence_type, elem_type
    return parse(RELU).SerializeToString() + field(7, field(11, field(1, b"s") + field(2, kind)))  # graph, input, type


def exponential_functions(levels: int) -> str:
    """Each function calls the next ten times: ten to the power of `levels` nodes in a few kilobytes."""

    def body(target: str) -> str:
        calls = "".join(f" a{i + 1} = {target}(a{i})" for i in range(10))
        return f"(a0) => (a10) {{{calls} }}"

    functions = "".join(f"{FUNCTION} f{i} {body(f'my.f{i + 1}')}" for i in range(levels))
    return f"{HEADER} g (float[2] x) => (float[2] y) {{ y = my.f0(x) }} {functions} {FUNCTION} f{levels} {body('Relu')}"


CASES: list[Case] = [
    bad("cycle", "(float[2] x) => (c) { [first] a = Add(x, c) [second] b = Relu(a) [third] c = Neg(b) }",
        "cycle", "first", "second", "third"),
    bad("reads-itself", "(float[2] x) => (a) { [self] a = Add(x, a) }", "cycle", "self"),
    bad("value-defined-twice", "(float[2] x) => (y) { [one] y = Relu(x) [two] y = Neg(x) }",
        "[Neg 'two']", "output 'y' is already defined"),
    bad("node-redefines-input", "(float[2] x) => (x) { [n] x = Relu(x) }", "[Relu 'n']", "'x' is already defined"),
    bad("node-redefines-initializer", "(float[2] x) => (w) <float[2] w = {1,2}> { [n] w = Relu(x) }",
        "[Relu 'n']", "'w' is already defined"),
    bad("initializer-twice", "(float[1] x) => (y) <float[1] w = {1}, float[1] w = {2}> { y = Add(x, w) }",
        "initializer 'w' is defined twice"),
    bad("input-twice", "(float[1] x, float[1] x) => (y) { y = Relu(x) }", "graph input 'x' is declared twice"),
    bad("undefined-input", "(float[2] x) => (y) { [add] y = Add(x, nowhere) }",
        "[Add 'add'] input 'nowhere' is not defined"),
    bad("undefined-output", "(float[2] x) => (z) { y = Relu(x) }", "output 'z' is not defined"),
    bad("undefined-in-branch",
        "(bool c) => (y) { [if] y = If (c) <then_branch = t () => (u) { [in] u = Relu(gone) }, "
        "else_branch = e () => (v) { v = Constant <value_float = 1.0> () }> }",
        "[Relu 'in'] input 'gone' is not defined"),
    bad("name-of-branch-seen-outside",
        "(bool c, float[1] x) => (z) { y = If (c) <then_branch = t () => (u) { u = Relu(x) }, "
        "else_branch = e () => (v) { v = Neg(x) }> [out] z = Relu(u) }",
        "[Relu 'out'] input 'u' is not defined"),
    unsupported("unknown-operator", "(float[2] x) => (y) { [f] y = Frobnicate(x) }",
                "[Frobnicate 'f']", "does not have"),
    unsupported("unknown-operator-of-domain", "(float[2] x) => (y) { [f] y = my.Frobnicate(x) }",
                "[my.Frobnicate 'f']", "does not have"),
    bad("domain-not-imported", "(float[2] x) => (y) { [f] y = other.Frobnicate(x) }",
        "[Frobnicate 'f']", "domain 'other'", "opset_import"),
    bad("function-calls-itself", f"{HEADER} {CALL} {FUNCTION} f (a) => (b) {{ b = my.f(a) }}", "my.f", "calls itself"),
    bad("functions-call-each-other",
        f"{HEADER} {CALL} {FUNCTION} f (a) => (b) {{ b = my.h(a) }} {FUNCTION} h (a) => (b) {{ b = my.f(a) }}",
        "calls itself"),
    bad("function-twice",
        f"{HEADER} {CALL} {FUNCTION} f (a) => (b) {{ b = Relu(a) }} {FUNCTION} f (a) => (b) {{ b = Neg(a) }}",
        "function 'my.f' is defined twice"),
    bad("function-without-its-output", f"{HEADER} {CALL} {FUNCTION} f (a) => (b) {{ c = Relu(a) }}",
        "function 'f' never defines its output 'b'"),
    bad("function-reads-outer-name",
        f"{HEADER} g (float[2] x) => (y) {{ y = my.f(x) }} {FUNCTION} f (a) => (b) {{ [in] b = Add(a, x) }}",
        "[Add 'in'] input 'x' is not defined"),
    bad("exponential-functions", exponential_functions(9), "nodes once functions are inlined"),
    bad("deep-branches", nested_branches(100), "nest"),
    bad("deep-types", nested_types(100), "nest"),
    bad("attribute-twice",
        edited("(float[2,2] x) => (y) { [s] y = Softmax <axis = 1> (x) }",
               lambda m: m.graph.node[0].attribute.append(helper.make_attribute("axis", 0))),
        "[Softmax 's'] attribute 'axis' is given twice"),
    bad("too-many-inputs", "(float[2] x) => (y) { [r] y = Relu(x, x, x) }",
        "[Relu 'r'] number of inputs: got 3, expected 1"),
    bad("too-few-inputs", "(float[2] x) => (y) { [a] y = Add(x) }", "[Add 'a']", "got 1, expected 2"),
    bad("required-input-omitted", '(float[2] x) => (y) { [a] y = Add("", x) }',
        "[Add 'a'] input 0: got none, expected a value"),
    bad("too-many-outputs", "(float[2] x) => (y, z) { [r] y, z = Relu(x) }",
        "[Relu 'r'] number of outputs: got 2, expected 1"),
    bad("loop-without-body", "(int64 n, bool c) => (y) { [loop] y = Loop(n, c) }", "[Loop 'loop']", "body"),
    bad("if-without-else",
        "(bool c, float[1] x) => (y) { [if] y = If (c) <then_branch = t () => (u) { u = Relu(x) }> }",
        "[If 'if']", "else_branch"),
    bad("branches-differ-in-outputs",
        "(bool c, float[1] x) => (y) { [if] y = If (c) <then_branch = t () => (u) { u = Relu(x) }, "
        "else_branch = e () => (v, w) { v = Neg(x) w = Abs(x) }> }",
        "[If 'if']", "else_branch", "got 2, expected 1"),
    bad("branches-differ-in-type",
        "(bool c, float[1] x) => (y) { [if] y = If (c) <then_branch = t () => (u) { u = Relu(x) }, "
        "else_branch = e () => (v) { v = Cast <to = 7> (x) }> }",
        "[If 'if']", "float32", "int64"),
]  # fmt: skip
