"""safetensors files: the reference package reads ours, we read its, and damaged ones are refused."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import torch
from backpass._core import CheckpointState, InvalidInput, Tensor, Unsupported, export_parameters, import_parameters
from onnx.helper import np_dtype_to_tensor_dtype
from safetensors.torch import load_file, save_file

DTYPES = ["float16", "bfloat16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32", "int64"]


def state_of(arrays):
    state = CheckpointState()
    for name, array in arrays.items():
        code = np_dtype_to_tensor_dtype(array.dtype)
        bits = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
        state.add_parameter(name, Tensor.from_array(bits, code, list(array.shape)))
    return state


def every_type():
    numpy = {name: ml_dtypes.bfloat16 if name == "bfloat16" else name for name in DTYPES}
    arrays = {name: np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype) for name, dtype in numpy.items()}
    odd = {'a "quoted" \\ name\n\u0001': np.float32(2.5), "größe \U0001f600": np.zeros((0, 4), np.float32)}
    return arrays | {name: np.asarray(value) for name, value in odd.items()}


def test_the_reference_reads_ours(tmp_path):
    arrays = every_type()
    export_parameters(state_of(arrays), tmp_path / "p.safetensors")
    read = load_file(tmp_path / "p.safetensors")
    assert set(read) == set(arrays)
    for name, values in arrays.items():
        assert tuple(read[name].shape) == values.shape
        assert read[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes() == values.tobytes()
        if name in DTYPES:
            assert read[name].dtype == getattr(torch, name)


def test_we_read_the_reference(tmp_path):
    tensors = {name: torch.tensor([1, 0, 1]).to(getattr(torch, name)) for name in DTYPES}
    save_file(tensors, tmp_path / "p.safetensors", metadata={"format": "pt", "note": "ü\n"})
    state = state_of({name: np.zeros_like(values)[0] for name, values in every_type().items() if name in DTYPES})
    view = state.parameter("float32").array()
    import_parameters(state, tmp_path / "p.safetensors")
    assert view.tolist() == [1, 0, 1]
    for name, values in tensors.items():
        assert state.parameter(name).bytes_array().tobytes() == values.view(torch.uint8).numpy().tobytes()


def test_a_nominal_state_is_completed(tmp_path):
    export_parameters(state_of({"w": np.ones((2, 3), np.float32)}), tmp_path / "p")
    state = CheckpointState()
    state.add_nominal("w", 1)
    with pytest.raises(InvalidInput, match="nominal"):
        export_parameters(state, tmp_path / "q")
    import_parameters(state, tmp_path / "p")
    assert state.parameter("w").array().tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(2, np.float32)}, "has no tensor for the parameter 'b'"),
        ({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}, r"'b': got float32\[3\], expected float32\[2\]"),
        ({"a": np.ones(2, np.float32), "b": np.ones(2)}, "got float64"),
        ({n: np.ones(2, np.float32) for n in "abc"}, "'c': the state has no such parameter"),
    ],
    ids=["missing", "shape", "dtype", "unknown"],
)
def test_what_does_not_fit_changes_nothing(tmp_path, arrays, message):
    export_parameters(state_of(arrays), tmp_path / "p")
    state = state_of({name: np.zeros(2, np.float32) for name in "ab"})
    with pytest.raises(InvalidInput, match=message):
        import_parameters(state, tmp_path / "p")
    assert state.parameter("a").array().tolist() == [0, 0]


def file_bytes(header, data=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(begin=0, end=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


HOSTILE = {
    "empty": (b"", "got 0 bytes"),
    "huge header": (
        struct.pack("<Q", 2**63) + b"{}",
        "header: got a length of 9223372036854775808, expected at most 2",
    ),
    "not an object": (file_bytes(b"[]", b""), "expected '{' first"),
    "unfinished": (file_bytes(b'{"a":', b""), "header: got"),
    "behind the end": (file_bytes(b"{} x", b""), "something behind the end"),
    "key twice": (file_bytes(b'{"__metadata__":{"k":"v","k":"v"}}', b""), "two 'k'"),
    "no UTF-8": (file_bytes(b'{"__metadata__":{"\xff":"v"}}', b""), "not UTF-8"),
    "surrogate": (file_bytes(b'{"__metadata__":{"\\ud800":"v"}}', b""), "surrogate"),
    "control": (file_bytes(b'{"__metadata__":{"\n":"v"}}', b""), "control character"),
    "nested": (file_bytes(b'{"__metadata__":{"a":{}}}', b""), "no '\"'"),
    "unknown key": (file_bytes({"w": entry() | {"x": [1]}}), "the unknown key 'x'"),
    "missing key": (file_bytes({"w": {"dtype": "F32", "shape": [2]}}), "not dtype, shape and data_offsets"),
    "three offsets": (file_bytes({"w": entry() | {"data_offsets": [0, 8, 9]}}), "not two data_offsets"),
    "negative": (file_bytes({"w": entry(shape=(-2,))}), "whole number"),
    "fraction": (file_bytes({"w": entry(shape=(2.5,))}), "no ']'"),
    "leading zero": (file_bytes(b'{"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}'), "whole number"),
    "overflow": (file_bytes({"w": entry(shape=(2**62, 2**62))}), "more elements"),
    "wrong size": (file_bytes({"w": entry(shape=(3,))}), r"'w': data_offsets: got \[0,8\], expected 12 bytes"),
    "backwards": (file_bytes({"w": entry(8, 0)}), r"got \[8,0\]"),
    "overlap": (file_bytes({"v": entry(), "w": entry(4, 12)}, b"\0" * 12), "tensors overlap"),
    "gap": (file_bytes({"v": entry(), "w": entry(12, 20)}, b"\0" * 20), "there is a gap"),
    "short data": (file_bytes({"w": entry()}, b"\0" * 7), "got 7 bytes of data, expected 8"),
    "long data": (file_bytes({"w": entry()}, b"\0" * 9), "got 9 bytes of data, expected 8"),
    "bool": (file_bytes({"w": entry(shape=(8,), dtype="BOOL")}, b"\2" * 8), "neither 0 nor 1"),
    "rank": (file_bytes({"w": entry(shape=(1,) * 65)}), "65 dimensions"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(tmp_path, case):
    data, message = HOSTILE[case]
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(InvalidInput, match=message) as caught:
        import_parameters(CheckpointState(), tmp_path / "p")
    assert str(caught.value).startswith(f"[safetensors '{tmp_path}/p'] ")


def test_element_types_without_a_name(tmp_path):
    (tmp_path / "p").write_bytes(file_bytes({"w": entry(dtype="C64", shape=(1,))}))
    with pytest.raises(Unsupported, match="'w': element type 'C64' is not supported"):
        import_parameters(CheckpointState(), tmp_path / "p")
    with pytest.raises(Unsupported, match="safetensors has no element type for complex64"):
        export_parameters(state_of({"w": np.zeros(1, np.complex64)}), tmp_path / "q")


def test_parameters_of_a_training_state(tmp_path):
    from backpass.api import CheckpointState as State
    from backpass.api import export_parameters as export
    from backpass.api import import_parameters as restore

    state = State(state_of({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}))
    export(state, tmp_path / "p.safetensors")
    assert set(load_file(tmp_path / "p.safetensors")) == {"w", "b"}
    state.parameters["w"] = np.zeros((2, 3), np.float32)
    restore(state, tmp_path / "p.safetensors")
    np.testing.assert_array_equal(state.parameters["w"].data, np.arange(6).reshape(2, 3))
