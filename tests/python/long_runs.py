"""Models that run as long as one likes, for tests of stopping them."""

from __future__ import annotations

import onnx
from onnx import parser

FOREVER = 10**12

# As many additions as `count` says, one after the other.
LOOP = """<ir_version: 8, opset_import: ["": 17]>
g (int64 count, float[4] x) => (float[4] y) {
  y = Loop<body = b (int64 i, bool go, float[4] s) => (bool go_on, float[4] next)
    { go_on = Identity(go) next = Add(s, x) }>(count, , x)
}"""

# The same with a body that computes nothing.
IDLE = """<ir_version: 8, opset_import: ["": 17]>
g (int64 count, float[4] x) => (float[4] y) {
  y = Loop<body = b (int64 i, bool go, float[4] s) => (bool go, float[4] s) { }>(count, , x)
}"""

# A cell over a sequence as long as the input.
SCAN = """<ir_version: 8, opset_import: ["": 17]>
g (float[4] x, float[n,4] steps) => (float[4] y) {
  y = Scan<num_scan_inputs = 1, body = b (float[4] s, float[4] step) => (float[4] next)
    { t = Add(s, step) next = Sin(t) }>(x, steps)
}"""


def model(text: str, node: str = "slow") -> bytes:
    """The model's first node gets a name."""
    made: onnx.ModelProto = parser.parse_model(text)
    made.graph.node[0].name = node
    return made.SerializeToString()


def products(count: int) -> bytes:
    """Matrix products, one after the other: 1 to 2 ms each at 512."""
    lines = "".join(f"v{i + 1} = MatMul(v{i}, x)\n" for i in range(count))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,n] x) => (float[n,n] y) {{
      v0 = Identity(x)\n{lines} y = Identity(v{count}) }}"""
    return parser.parse_model(text).SerializeToString()
