"""Models that run somehow and are not what the ONNX standard says: onnx's checker refuses each of them."""

from __future__ import annotations

from hostile.case import Case, bad

CONV = "(float[1,1,8,8] x, float[1,1,3,3] w) => (y) { [conv] y = Conv %s (x, w) }"
OLD = '<ir_version: 8, opset_import: ["" : 12]> g '
FUNCTION = """<ir_version: 9, opset_import: ["" : 20, "my" : 1]> g (float[2] x) => (float[2] y) { y = my.f(x) }
<domain: "my", opset_import: ["" : 20]> f (a) => (b) { [inner] b = LeakyRelu <alfa = 0.5> (a) }"""
BRANCH = """(bool c, float[2] x) => (float[2] y) { y = If(c) <
    then_branch = t () => (float[2] a) { [inner] a = Elu <alfa = 0.5> (x) },
    else_branch = e () => (float[2] b) { b = Neg(x) }> }"""

CASES: list[Case] = [
    bad("attribute-misspelt", CONV % "<strids = [2, 2]>", "[Conv 'conv']", "attribute 'strids'", "strides"),
    bad("attribute-of-newer-opset",
        f"{OLD} (float[2,2] x) => (float[2,2] y) {{ [cast] y = Cast <to = 1, saturate = 1> (x) }}",
        "[Cast 'cast']", "attribute 'saturate'", "Cast-9"),
    bad("attribute-of-older-opset", "(float[2,2] x) => (y) { [add] y = Add <broadcast = 1> (x, x) }",
        "[Add 'add']", "attribute 'broadcast'", "expected none"),
    bad("attribute-kind", "(float[2,2] x) => (y) { [soft] y = Softmax <axis = 1.5> (x) }",
        "[Softmax 'soft']", "attribute 'axis': got a float, expected an int"),
    bad("attribute-list-for-one", "(float[2,2] x) => (y) { [soft] y = Softmax <axis = [1]> (x) }",
        "[Softmax 'soft']", "attribute 'axis': got ints, expected an int"),
    bad("attribute-missing", "(float[2,2] x) => (y) { [cast] y = Cast (x) }",
        "[Cast 'cast']", "attribute 'to': got none, expected an int"),
    bad("operator-newer-than-opset", f"{OLD} (float[2,2] x) => (float[2,2] y) {{ [gelu] y = Gelu (x) }}",
        "[Gelu 'gelu']", "got 12, expected 20 or newer"),
    bad("operator-withdrawn", "(float[1,1,2,2] x, float[4] s) => (y) { [up] y = Upsample (x, s) }",
        "[Upsample 'up']", "got 20, expected less than 10"),
    bad("inside-of-a-function", FUNCTION, "[LeakyRelu 'inner']", "'alfa'"),
    bad("inside-of-a-branch", BRANCH, "[Elu 'inner']", "'alfa'"),
    bad("output-of-another-type", "(float[2] x) => (int64[2] y) { [relu] y = Relu(x) }",
        "[Relu 'relu']", "'y'", "got float32, expected the declared int64"),
    bad("inner-value-of-another-type",
        "(float[2] x) => (float[2] y) <double[2] a> { [relu] a = Relu(x) [neg] y = Neg(a) }",
        "[Relu 'relu']", "'a'", "got float32, expected the declared float64"),
    bad("constant-of-another-type", "() => (int64[2] y) { [one] y = Constant <value = float[2] {1, 2}> () }",
        "[Constant 'one']", "'y'", "got float32, expected the declared int64"),
    bad("domain-without-opset", f"{OLD} (float[2] x) => (float[2] y) {{ [mine] y = com.microsoft.BiasGelu(x, x) }}",
        "[BiasGelu 'mine']", "com.microsoft"),
    bad("split-into-how-many", "(float[2] x) => (y, z) { [split] y, z = Split(x) }", "[Split 'split']", "num_outputs"),
]  # fmt: skip
