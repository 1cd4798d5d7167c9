"""Files that are no models, or models that this version does not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hostile.case import Case, bad, edited, parse, unsupported

RELU = "(float[2,3] x) => (float[2,3] y) { [relu] y = Relu(x) }"


def truncated() -> bytes:
    return parse(RELU).SerializeToString()[:-3]


def as_file(content: bytes):
    def make(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(content)
        return path

    return make


# ir_version 8, then the graph (field 7) claiming a length of 2**60 bytes.
LONGER_THAN_THE_FILE = b"\x08\x08\x3a" + b"\x80" * 8 + b"\x10"
# The same claiming 2**32 bytes: nothing, to a reader that counts in 32 bits.
LENGTH_OF_4_GB = b"\x08\x08\x3a\x80\x80\x80\x80\x10"


def named(name: str, replacement: bytes) -> bytes:
    """A model in which one name, of six letters, holds other bytes."""
    text = """<ir_version: 9, opset_import: ["" : 20, "oooooo" : 1]>
        gggggg (float[nnnnnn] xxxxxx) => (float[2] yyyyyy) <float[1] wwwwww = {1}>
        { [dddddd] t = Softmax <axis = 0> (xxxxxx) [eeeeee] yyyyyy = oooooo.pppppp <qqqqqq = 1> (t, wwwwww) }"""
    content = parse(text).SerializeToString()
    assert name.encode() in content
    assert len(replacement) == len(name)
    return content.replace(name.encode(), replacement)


# What names stand for: graph, dimension, input, output, node, operator, domain, attribute, initializer.
NAMES = {"graph": "g", "dimension": "n", "input": "x", "output": "y", "node": "d", "operator": "p", "domain": "o",
         "attribute": "q", "initializer": "w"}  # fmt: skip
NOT_TEXT = {"latin-1": (b"gr\xf6\xdfe!", "gr??e!"), "nul": (b"ab\x00cd!", "ab?cd!"), "cut": (b"abcd\xe2\x82", "abcd??")}

CASES: list[Case] = [
    *[
        bad(f"{what}-named-in-{kind}", named(letter * 6, content), f"got the name '{shown}'", "not UTF-8")
        for what, letter in NAMES.items()
        for kind, (content, shown) in NOT_TEXT.items()
    ],
    bad("empty", b"", "not an ONNX model", "no graph"),
    bad("truncated", truncated(), "truncated or damaged"),
    bad("truncated-file", as_file(truncated()), "[file '", "model.onnx'] truncated or damaged"),
    bad("garbage", np.random.default_rng(0).bytes(4096), "model in memory"),
    bad("text", b"This is a letter, not a model.", "model in memory"),
    bad("zip", b"PK\x03\x04" + bytes(60), "model in memory"),
    bad("length-beyond-the-end", LONGER_THAN_THE_FILE, "truncated or damaged"),
    bad("length-beyond-32-bits", LENGTH_OF_4_GB + parse(RELU).SerializeToString(), "truncated or damaged"),
    bad("missing-file", lambda folder: folder / "absent.onnx", "absent.onnx"),
    bad("folder-instead-of-file", lambda folder: folder, "is not a regular file"),
    unsupported("future-ir", edited(RELU, lambda m: setattr(m, "ir_version", 99)), "ir_version: got 99, expected 3 to"),
    unsupported("ancient-ir", edited(RELU, lambda m: setattr(m, "ir_version", 2)), "ir_version: got 2"),
    unsupported("future-opset", f'<ir_version: 9, opset_import: ["" : 99]> g {RELU}', "opset", "got 99, expected 1 to"),
    unsupported("ancient-opset", f'<ir_version: 9, opset_import: ["" : 0]> g {RELU}', "opset", "got 0, expected 1 to"),
    bad("no-opset", edited(RELU, lambda m: m.ClearField("opset_import")), "[Relu 'relu']", "opset_import"),
    bad(
        "two-opsets",
        f'<ir_version: 9, opset_import: ["" : 17, "" : 18]> g {RELU}',
        "opset_import names domain '' twice: versions 17 and 18",
    ),
]
