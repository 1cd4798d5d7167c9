"""Checkpoint files: nested dicts in HDF5, the user_dict in JSON."""

from __future__ import annotations

import pickle
import subprocess
import sys

import h5py
import ml_dtypes
import numpy as np
import pytest
import torch
from backpass.training import _checkpoint_layout
from backpass.training import _checkpoint_storage as storage

TREE = {
    "int": 1,
    "ints": [1, 2, 3, 5, 6],
    "inside": {"array": np.arange(100), "deeper": {"three": 3, "four": 4}, "text": "some text"},
    "bool": True,
    "float": 2.345,
    "floats": np.array([1.234, 2.345]),
    "cube": np.arange(8).reshape(2, 2, 2),
}


def same(found, expected):
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(same(found[name], expected[name]) for name in expected)
    return bool(np.all(np.asarray(found) == np.asarray(expected)))


@pytest.mark.parametrize(
    "key", [None, "int", "inside", "inside/", "inside/deeper", "inside/deeper/four", "inside/text", "bool", "floats"]
)
def test_what_was_saved_is_loaded(tmp_path, key):
    path = tmp_path / "checkpoint.ortcp"
    storage.save(TREE, path)
    expected = TREE
    for part in (key or "").strip("/").split("/") if key else ():
        expected = expected[part]
    assert same(storage.load(path, key=key), expected)
    assert isinstance(storage.load(path, "bool"), np.bool_)
    assert isinstance(storage.load(path, "inside/text"), str)


@pytest.mark.parametrize("empty", [{}, {"a": {}}, {"a": {"b": {}}}])
def test_empty_dicts(tmp_path, empty):
    storage.save(empty, tmp_path / "c")
    assert storage.load(tmp_path / "c") == empty


@pytest.mark.parametrize("kind", ["int64", "int32", "int16", "int8", "uint8", "float64", "float32", "float16", "bool"])
def test_tensors(tmp_path, kind):
    tensor = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, kind))
    storage.save({"x": tensor, "scalar": tensor[0, 0, 1]}, tmp_path / "c")
    found = storage.load(tmp_path / "c")
    assert found["x"].dtype == np.dtype(kind)
    assert np.array_equal(found["x"], tensor.numpy())
    assert found["scalar"].dtype == np.dtype(kind)


def test_bfloat16_and_parameters(tmp_path):
    values = torch.randn(5, dtype=torch.bfloat16)
    storage.save({"x": values, "w": torch.nn.Parameter(torch.ones(2))}, tmp_path / "c")
    found = storage.load(tmp_path / "c")
    assert found["x"].dtype == ml_dtypes.bfloat16
    assert np.array_equal(found["x"].astype(np.float32), values.float().numpy())


@pytest.mark.parametrize("name", ["/fc1/weight", "a/b", "100%", "%2F", ".", "..", "%2E", "ä"])
def test_names_that_hdf5_keeps_for_itself(tmp_path, name):
    storage.save({"model": {name: np.arange(3), "other": np.arange(2)}}, tmp_path / "c")
    assert sorted(storage.load(tmp_path / "c")["model"]) == sorted([name, "other"])


@pytest.mark.parametrize("bad", [{"x": {1, 2}}, {"x": object()}, {"x": ["a", "b"]}, {"x": None}, {"": 1}, [1, 2], 2.5])
def test_what_cannot_be_saved_leaves_no_file(tmp_path, bad):
    with pytest.raises(ValueError, match="expected"):
        storage.save(bad, tmp_path / "c")
    assert not list(tmp_path.iterdir())


def test_files_that_are_there_and_files_that_are_not(tmp_path):
    storage.save({"x": 1}, tmp_path / "c")
    with pytest.raises(FileExistsError, match="exists already"):
        storage.save({"x": 2}, tmp_path / "c")
    assert storage.load(tmp_path / "c") == {"x": 1}
    with pytest.raises(FileNotFoundError):
        storage.load(tmp_path / "none")
    with pytest.raises(ValueError, match="has no 'y/z'"):
        storage.load(tmp_path / "c", key="y/z")
    (tmp_path / "text").write_text("this is not HDF5")
    with pytest.raises(ValueError, match="not HDF5"):
        storage.load(tmp_path / "text")


def test_every_wrong_bit_is_found(tmp_path):
    storage.save(TREE, tmp_path / "c")
    content = (tmp_path / "c").read_bytes()
    for place in range(0, len(content), 61):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged' is no checkpoint that can be read"):
            storage.load(tmp_path / "damaged", "int")


def test_folders_that_are_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"its folder does not exist; make it first: .*/none/c'"):
        storage.save({"x": 1}, tmp_path / "none" / "c")


KINDS = ["float32", "float16", "bool", "complex64", ">f4", "uint8", "bfloat16"]


def drawn(kind, count):
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    return np.arange(count).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_that_are_not_copied(tmp_path, kind):
    """Below the size from which on they are not, at it, and above; in an order of memory that is not the file's."""
    size = drawn(kind, 0).itemsize
    edge = _checkpoint_layout._LARGE // size
    columns = drawn(kind, 3 * edge).reshape(edge, 3)
    tree = {
        "sizes": {str(count): drawn(kind, count) for count in (0, 1, edge - 1, edge, edge + 1, 5 * edge + 3)},
        "a/b": {"turned": columns.T, "every other": columns[::-2], "none": np.zeros((edge, 0), np.float32)},
        "number": 3,
    }
    storage.save(tree, tmp_path / "c")
    found = storage.load(tmp_path / "c")
    assert same(found, tree)
    for part in ("sizes", "a/b"):
        assert all(found[part][n].dtype == v.dtype and found[part][n].shape == v.shape for n, v in tree[part].items())


MEASURED = """
import resource, sys
import h5py
import numpy as np
from backpass.training import _checkpoint_storage as storage

weights = {str(i): np.full(1 << 22, i, np.float32) for i in range(8)}
storage.save({"few": np.ones(9)}, sys.argv[1] + "/few")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
storage.save({"model": weights}, sys.argv[1] + "/many")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_saving_takes_no_memory_for_the_arrays(tmp_path):
    """Of 128 MB, less than a tenth."""
    run = subprocess.run([sys.executable, "-c", MEASURED, tmp_path], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 12_000
    assert storage.load(tmp_path / "many", "model/7").sum() == 7 << 22


def test_others_read_what_was_saved(tmp_path):
    """As the original does: by h5py alone, which passes over the checksum."""
    storage.save(TREE, tmp_path / "c")
    with h5py.File(tmp_path / "c", "r") as file:
        assert file["inside/text"][()] == b"some text"
        assert np.array_equal(file["cube"], TREE["cube"])


def test_damaged_files_of_the_original_are_named(tmp_path):
    """They have no checksum: what HDF5 and h5py find is told in one way."""
    with h5py.File(tmp_path / "c", "w") as file:
        file.create_group("inside").create_dataset("array", data=np.arange(100))
    content, told = (tmp_path / "c").read_bytes(), []
    for place in range(0, len(content), 11):
        (tmp_path / "damaged").write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        try:
            storage.load(tmp_path / "damaged")
        except ValueError as error:
            told.append(str(error))
    assert len(told) > 5
    assert all(f"{tmp_path / 'damaged'}' is no" in text for text in told)


def test_files_of_the_original(tmp_path):
    """Written as its code does: a group per dict, a dataset per value, text as HDF5's own."""
    with h5py.File(tmp_path / "c", "w-") as file:
        weights = file.create_group("model").create_group("full_precision")
        weights.create_dataset("fc.weight", data=np.ones((2, 2), np.float32))
        file.create_group("trainer_options").create_dataset("optimizer_name", data="AdamOptimizer")
    found = storage.load(tmp_path / "c")
    assert found["trainer_options"] == {"optimizer_name": "AdamOptimizer"}
    assert found["model"]["full_precision"]["fc.weight"].shape == (2, 2)


# ---- user_dict
USER = {
    "epoch": 3,
    "loss": 0.25,
    "best": float("-inf"),
    "note": "ä",
    "nothing": None,
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "scalar": np.float32(1.5),
    "tensor": torch.randn(3, 2),
    "narrow": torch.randn(4).bfloat16(),
    "empty": torch.zeros(0, 3),
    "list": [1, [2, "x"]],
    "tuple": (1, (2, 3)),
    "set": {1, 2},
    "bytes": b"\x80\x00",
    "by number": {1: "a", (2, 3): "b"},
    "kind": {"__kind__": "tuple"},
}


def test_user_dict_comes_back():
    found = storage.from_serialized_hex(storage.to_serialized_hex(USER))
    assert list(found) == list(USER)
    for name, value in USER.items():
        assert type(found[name]) is type(value), name
        if isinstance(value, (np.ndarray, np.generic)):
            assert found[name].dtype == value.dtype
            assert np.array_equal(found[name], value)
        elif isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
        else:
            assert found[name] == value
    found["array"][0] = 7  # may be written
    assert storage.to_serialized_hex({"x": np.arange(4)}) == storage.to_serialized_hex({"x": np.arange(4)})


def test_user_dict_with_objects_is_refused():
    class Mine:
        pass

    with pytest.raises(TypeError, match=r"user_dict\['a'\]\[1\]: got Mine"):
        storage.to_serialized_hex({"a": [0, Mine()]})


class Harmful:
    def __reduce__(self):
        return (print, ("this was run",))


def test_pickles_are_not_read_unasked(capsys):
    text = pickle.dumps({"x": Harmful()}).hex()
    with pytest.raises(ValueError, match="allow_pickle=True"):
        storage.from_serialized_hex(text)
    assert capsys.readouterr().out == ""
    assert storage.from_serialized_hex(pickle.dumps({"epoch": 3}).hex().encode(), allow_pickle=True) == {"epoch": 3}
