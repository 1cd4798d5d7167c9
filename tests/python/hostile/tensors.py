"""Tensors whose shape, data or external file is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from hostile.case import Case, bad, parse

READS_W = "(float[2] x) => (y) { [add] y = Add(x, w) }"
FLOAT = TensorProto.FLOAT


def with_tensor(dims: list[int], data_type: int = FLOAT, **fields: Any) -> onnx.ModelProto:
    model = parse(READS_W)
    model.graph.initializer.append(TensorProto(name="w", dims=dims, data_type=data_type, **fields))
    return model


def external(entries: dict[str, object], prepare: Callable[[Path], object] = lambda folder: None) -> Any:
    """A model file whose tensor 'w' (2 floats) lies elsewhere."""

    def make(folder: Path) -> Path:
        inside = folder / "model"
        inside.mkdir()
        prepare(inside)
        model = with_tensor([2], data_location=TensorProto.EXTERNAL)
        for key, value in entries.items():
            model.graph.initializer[0].external_data.add(key=key, value=str(value).format(folder=folder))
        (inside / "model.onnx").write_bytes(model.SerializeToString())
        return inside / "model.onnx"

    return make


def weights(name: str, count: int = 2) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(np.ones(count, np.float32).tobytes())


def link_out(folder: Path) -> None:
    (folder.parent / "secret.bin").write_bytes(bytes(8))
    (folder / "w.bin").symlink_to("../secret.bin")


def link_folder_out(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "w.bin").write_bytes(bytes(8))
    (folder / "data").symlink_to("../elsewhere")


def sparse(indices: list[int]) -> onnx.ModelProto:
    model = parse(READS_W)
    entry = model.graph.sparse_initializer.add(dims=[2])
    entry.values.CopyFrom(onnx.numpy_helper.from_array(np.ones(len(indices), np.float32), "w"))
    entry.indices.CopyFrom(onnx.numpy_helper.from_array(np.array(indices, np.int64), "w_indices"))
    return model


HUGE = 2**40
CASES: list[Case] = [
    bad("negative-extent", with_tensor([-2], raw_data=bytes(8)), "tensor 'w'", "dimension: got -2, expected 0 or more"),
    bad("overflowing-extents", with_tensor([HUGE, HUGE], raw_data=bytes(8)), "tensor 'w'", "shape"),
    bad("overflow-behind-zero", with_tensor([0, HUGE, HUGE], raw_data=b""), "tensor 'w'", "shape"),
    bad("huge-without-data", with_tensor([HUGE], raw_data=bytes(4)), "tensor 'w'", "data length: got 4, expected"),
    bad("too-few-bytes", with_tensor([2], raw_data=bytes(7)), "tensor 'w'", "data length: got 7, expected 8"),
    bad("too-many-bytes", with_tensor([2], raw_data=bytes(12)), "tensor 'w'", "data length: got 12, expected 8"),
    bad("too-few-floats", with_tensor([2], float_data=[1.0]), "tensor 'w'", "float_data: got 1 entries", "expected 2"),
    bad("floats-in-wrong-field", with_tensor([2], int32_data=[1, 2]), "tensor 'w'", "expected float_data"),
    bad("data-in-two-places", with_tensor([1], float_data=[1.0], raw_data=bytes(4)), "'w'", "in more than one place"),
    bad("no-element-type", with_tensor([1], 0, raw_data=bytes(4)), "tensor 'w'", "data_type: got none"),
    bad("unknown-element-type", with_tensor([1], 99, raw_data=bytes(4)), "element type: got number 99"),
    bad("raw-strings", with_tensor([1], TensorProto.STRING, raw_data=b"abcd"), "tensor 'w'", "expected string_data"),
    bad("number-too-large", with_tensor([1], TensorProto.INT8, int32_data=[300]), "tensor 'w'", "does not fit in int8"),
    bad("rank-65", with_tensor([1] * 65, raw_data=bytes(4)), "tensor 'w'", "rank: got 65"),
    bad("sparse-index-beyond", sparse([5]), "'w'", "got 5"),
    bad("sparse-index-negative", sparse([-1]), "'w'", "got -1"),
    bad("external-parent", external({"location": "../secret.bin"}), "tensor 'w'", "../secret.bin", "inside"),
    bad("external-hidden-parent", external({"location": "a/../../secret.bin"}), "tensor 'w'", "inside"),
    bad("external-absolute", external({"location": "{folder}/secret.bin"}), "tensor 'w'", "secret.bin", "absolute"),
    bad("external-missing", external({"location": "gone.bin"}), "tensor 'w'", "gone.bin"),
    bad("external-empty-location", external({"location": ""}), "tensor 'w'", "location"),
    bad("external-no-location", external({"offset": 0}), "tensor 'w'", "location"),
    bad("external-too-short", external({"location": "w.bin"}, weights("w.bin", 1)), "tensor 'w'", "w.bin"),
    bad("external-offset-beyond", external({"location": "w.bin", "offset": 64}, weights("w.bin")), "'w'", "64"),
    bad("external-offset-negative", external({"location": "w.bin", "offset": -8}, weights("w.bin")), "'w'", "-8"),
    bad(
        "external-offset-overflows",
        external({"location": "w.bin", "offset": 2**63 - 1, "length": 8}, weights("w.bin")),
        "tensor 'w'",
        "offset",
    ),
    bad("external-offset-text", external({"location": "w.bin", "offset": "x"}, weights("w.bin")), "'w'", "offset", "x"),
    bad("external-length-wrong", external({"location": "w.bin", "length": 4}, weights("w.bin")), "'w'", "got 4"),
    bad("external-link-out", external({"location": "w.bin"}, link_out), "tensor 'w'", "w.bin", "inside"),
    bad("external-link-folder-out", external({"location": "data/w.bin"}, link_folder_out), "tensor 'w'", "inside"),
    bad(
        "external-is-folder",
        external({"location": "d"}, lambda f: (f / "d").mkdir()),
        "tensor 'w'",
        "not a regular file",
    ),
    bad(
        "external-without-folder",
        lambda folder: external({"location": "w.bin"}, weights("w.bin"))(folder).read_bytes(),
        "tensor 'w'",
        "external",
    ),
]
