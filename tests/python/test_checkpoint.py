"""Training checkpoints: what is kept, what is refused, and that a save happens wholly or not at all."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from backpass._core import CheckpointState, InvalidInput, OptimizerGroup, Tensor, Unsupported
from onnx import TensorProto
from onnx.helper import np_dtype_to_tensor_dtype


def tensor(array):
    array = np.asarray(array, order="C")
    code = np_dtype_to_tensor_dtype(array.dtype)
    bits = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
    return Tensor.from_array(bits, code, list(array.shape))


def small_state():
    state = CheckpointState()
    state.add_parameter("w", tensor(np.arange(60, dtype=np.float32).reshape(5, 12)))
    state.add_parameter("frozen", tensor(np.arange(4, dtype=np.int64)), requires_grad=False)
    state.add_parameter("b", tensor(np.array(0.5, np.float32)))
    state.add_parameter("none", tensor(np.zeros((0, 3), np.float64)))
    group = OptimizerGroup()
    group.step = 7
    group.initial_lr = 0.5
    group.momentums = {
        "w": {f"momentum{i}": tensor(np.full((5, 12), i + 1, np.float32)) for i in range(2)},
        "b": {"momentum0": tensor(np.array(3, np.float32))},
    }
    state.set_group(group)
    state.set_property("epoch", 2**40)
    state.set_property("loss", 0.1)
    state.set_property("note", "grüße")
    return state


def arrays(state):
    return {name: state.parameter(name).array().copy() for name in state.parameter_names}


def assert_same(actual, expected):
    left, right = arrays(actual), arrays(expected)
    assert set(left) == set(right)
    for name, values in right.items():
        assert left[name].dtype == values.dtype
        np.testing.assert_array_equal(left[name], values)
        assert actual.requires_grad(name) == expected.requires_grad(name)
    assert actual.properties == expected.properties


@pytest.mark.parametrize("external", [False, True], ids=["one file", "two files"])
def test_round_trip(tmp_path, external):
    state = small_state()
    state.uses_external_data = external
    state.save(tmp_path / "c", include_optimizer_state=True)
    assert sorted(os.listdir(tmp_path)) == (["c", "c.data"] if external else ["c"])
    loaded = CheckpointState.load(tmp_path / "c")
    assert_same(loaded, state)
    assert loaded.uses_external_data == external
    assert loaded.parameter_names == ["w", "b", "none", "frozen"]  # trained ones first
    assert loaded.properties == {"epoch": 2**40, "loss": np.float32(0.1), "note": "grüße"}
    (group,) = loaded.optimizer_groups
    assert (group.name, group.step, group.initial_lr) == ("group0", 7, 0.5)
    assert {name: sorted(m) for name, m in group.momentums.items()} == {
        "b": ["momentum0"],
        "w": ["momentum0", "momentum1"],
    }
    np.testing.assert_array_equal(group.momentums["w"]["momentum1"].array(), np.full((5, 12), 2, np.float32))
    assert loaded.parameter_count() == 61
    assert loaded.parameter_count(trainable_only=False) == 65


def test_optimizer_state_is_left_out_unless_asked_for(tmp_path):
    small_state().save(tmp_path / "c")
    assert CheckpointState.load(tmp_path / "c").optimizer_groups == []


@pytest.mark.parametrize(
    "dtype",
    [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_],
    ids=lambda t: np.dtype(t).name,
)
def test_element_types(dtype):
    state = CheckpointState()
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    state.add_parameter("p", tensor(values))
    loaded = CheckpointState.load_bytes(state.to_bytes())
    assert loaded.dtype("p") == np_dtype_to_tensor_dtype(values.dtype)
    assert loaded.parameter("p").shape == (2, 3)
    assert loaded.parameter("p").bytes_array().tobytes() == values.tobytes()


def test_arrays_are_views_and_setting_writes_through():
    state = small_state()
    view = state.parameter("w").array()
    state.set_parameter("w", tensor(np.full((5, 12), 9, np.float32)))
    assert (view == 9).all()
    view[0, 0] = -1
    assert state.parameter("w").array()[0, 0] == -1
    np.testing.assert_array_equal(np.from_dlpack(state.parameter("w")), view)


def test_adding_copies():
    source = np.ones(3, np.float32)
    state = CheckpointState()
    state.add_parameter("p", tensor(source))
    state.parameter("p").array()[:] = 5
    assert (source == 1).all()


def test_what_a_run_needs_to_resume(tmp_path):
    state = small_state()
    resume = state.resume
    resume.learning_rate, resume.seed, resume.random_counter = 0.125, -3, 2**64 - 1
    resume.scheduler, resume.scheduler_state = "linear", {"total": 100, "name": "x", "factor": 0.5}
    state.save(tmp_path / "c", include_optimizer_state=True)
    loaded = CheckpointState.load(tmp_path / "c")
    assert loaded.properties == state.properties  # the reserved ones are not the user's
    resume = loaded.resume
    assert (resume.learning_rate, resume.seed, resume.random_counter) == (0.125, -3, 2**64 - 1)
    assert (resume.scheduler, resume.scheduler_state) == ("linear", {"total": 100, "name": "x", "factor": 0.5})
    state.save(tmp_path / "c")  # learning rate and scheduler go with the optimizer
    resume = CheckpointState.load(tmp_path / "c").resume
    assert (resume.learning_rate, resume.seed, resume.scheduler) == (None, -3, "")


def test_nominal_state():
    state = CheckpointState()
    state.add_nominal("w", TensorProto.FLOAT)
    state.add_nominal("i", TensorProto.INT64, requires_grad=False)
    loaded = CheckpointState.load_bytes(state.to_bytes())
    assert loaded.is_nominal
    assert loaded.parameter_names == ["w", "i"]
    assert loaded.dtype("i") == TensorProto.INT64
    for refused in (
        lambda: loaded.parameter("w"),
        lambda: loaded.set_parameter("w", tensor(np.zeros(1, np.float32))),
        loaded.parameter_count,
    ):
        with pytest.raises(InvalidInput, match="nominal"):
            refused()
    with pytest.raises(InvalidInput, match="got 1 tensors, expected one for each of 2"):
        loaded.complete([tensor(np.zeros(1, np.float32))])
    with pytest.raises(InvalidInput, match="'i': got float32, expected int64"):
        loaded.complete([tensor(np.zeros(1, np.float32))] * 2)
    assert loaded.is_nominal
    loaded.complete([tensor(np.zeros(2, np.float32)), tensor(np.zeros(3, np.int64))])
    assert not loaded.is_nominal
    assert loaded.parameter_count(trainable_only=False) == 5


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda s: s.parameter("x"), "no parameter 'x' in the checkpoint; it has 'w', 'frozen'"),
        (lambda s: s.set_parameter("x", tensor([1.0])), "no parameter 'x'"),
        (lambda s: s.set_parameter("w", tensor([1.0])), r"'w': got float64\[1\], expected float32\[5,12\]"),
        (lambda s: s.set_parameter("w", tensor(np.zeros((12, 5), np.float32))), r"got float32\[12,5\], expected"),
        (lambda s: s.add_parameter("w", tensor([1.0])), "has one of this name already"),
        (lambda s: s.add_parameter("", tensor([1.0])), "needs a name"),
        (lambda s: s.add_nominal("n", 1), "holds parameters with data"),
        (lambda s: s.complete([]), "is not nominal"),
        (lambda s: s.property("x"), "no property 'x'"),
        (lambda s: s.remove_property("x"), "no property 'x'"),
        (lambda s: s.set_property("", 1), "needs a name"),
        (lambda s: s.set_property("backpass.x", 1), "reserved"),
        (lambda s: s.save(""), "expected the name of a file"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_use(act, message):
    with pytest.raises(InvalidInput, match=message):
        act(small_state())


def test_strings_cannot_be_trained():
    with pytest.raises(Unsupported, match="'s': strings cannot be trained"):
        CheckpointState().add_parameter("s", Tensor.from_strings(["a"], [1]))


def test_properties_of_other_types_are_refused():
    for value in (None, [1], b"x"):
        with pytest.raises(TypeError):
            small_state().set_property("p", value)
    for value in (2**63, np.uint64(2**63)):
        with pytest.raises(InvalidInput, match="does not fit in 64 bits"):
            small_state().set_property("p", value)


def test_properties_of_numpy_types():
    state = CheckpointState()
    for name, value in {"i": np.int32(-3), "u": np.uint8(4), "f": np.float32(0.5), "d": np.float64(0.25)}.items():
        state.set_property(name, value)
    assert state.properties == {"i": -3, "u": 4, "f": 0.5, "d": 0.25}
    assert isinstance(state.property("i"), int)
    assert isinstance(state.property("d"), float)


@pytest.mark.parametrize(
    ("momentums", "message"),
    [
        ({"x": [1.0]}, "momentums of 'x', which is not a parameter"),
        ({"w": [1.0]}, r"'momentum0' of parameter 'w': got float64\[1\], expected the shape"),
    ],
    ids=["unknown parameter", "shape"],
)
def test_wrong_momentums_are_not_written(tmp_path, momentums, message):
    state = small_state()
    group = OptimizerGroup()
    group.momentums = {name: {"momentum0": tensor(values)} for name, values in momentums.items()}
    state.set_group(group)
    with pytest.raises(InvalidInput, match=message):
        state.save(tmp_path / "c", include_optimizer_state=True)
    assert os.listdir(tmp_path) == []


def test_the_data_file_does_not_grow_and_goes_with_its_checkpoint(tmp_path):
    state = CheckpointState()
    state.add_parameter("p", tensor(np.zeros(1 << 16, np.float32)))
    state.uses_external_data = True
    for i in range(6):
        state.parameter("p").array()[:] = i
        state.save(tmp_path / "c")
        assert (CheckpointState.load(tmp_path / "c").parameter("p").array() == i).all()
        stat = (tmp_path / "c.data").stat()
        assert stat.st_size <= 2 * (1 << 18)
        assert stat.st_blocks * 512 <= (1 << 18) + 8192, "the space of the old tensors was not given back"
    state.uses_external_data = False
    state.save(tmp_path / "c")
    assert os.listdir(tmp_path) == ["c"]


def test_a_data_file_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "c.data").write_text("mine")
    small_state().save(tmp_path / "c")
    assert (tmp_path / "c.data").read_text() == "mine"


LIMITED = """
import resource, sys
import numpy as np
from backpass._core import CheckpointState, InvalidInput, Tensor
state = CheckpointState()
state.add_parameter("p", Tensor.from_array(np.ones(1 << 16, np.float32), 1, [1 << 16]))
state.uses_external_data = sys.argv[2] == "1"
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    state.save(sys.argv[1])
except InvalidInput as error:
    print(error)
"""


@pytest.mark.parametrize("external", [False, True], ids=["one file", "two files"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, external):
    """A limit on file sizes fails a write as a full disk does."""
    old = small_state()
    old.uses_external_data = external
    old.save(tmp_path / "c")
    before = {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)}
    command = [sys.executable, "-c", LIMITED, tmp_path / "c", str(int(external))]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cannot write: File too large" in run.stdout
    assert {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)} == before
