"""The stand-in for onnxruntime: errors by their names, bound memory, fixed dimensions, runs in the background."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import _ort
from backpass._ort.capi import _pybind_state, onnxruntime_inference_collection, onnxruntime_pybind11_state
from onnx import TensorProto, numpy_helper, parser

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y) { y = MatMul(x, w) }'
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def model(text: str = MODEL) -> onnx.ModelProto:
    made = parser.parse_model(text)
    made.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    return made


def session(options: _ort.SessionOptions | None = None) -> _ort.InferenceSession:
    return _ort.InferenceSession(model().SerializeToString(), options)


# ---- Errors: kind of Backpass, names of onnxruntime, what raises it.
def missing_file(folder: Path) -> None:
    _ort.InferenceSession(str(folder / "absent.onnx"))


def damaged_file(folder: Path) -> None:
    _ort.InferenceSession(model().SerializeToString()[:-5])


def illegal_model(folder: Path) -> None:
    text = MODEL.replace("MatMul(x, w)", "Add(x, nowhere)")
    _ort.InferenceSession(model(text).SerializeToString())


def unknown_operator(folder: Path) -> None:
    _ort.InferenceSession(model(MODEL.replace("MatMul", "Frobnicate")).SerializeToString())


def missing_feed(folder: Path) -> None:
    session().run(None, {})


def feed_of_another_type(folder: Path) -> None:
    session().run(None, {"x": X.astype(np.float64)})


def unknown_output(folder: Path) -> None:
    session().run(["z"], {"x": X})


def failing_node(folder: Path) -> None:
    text = MODEL.replace("float[N, 4] x", "float[N, 4] x, int64[1] i").replace(
        "y = MatMul(x, w)", "[gather] v = Gather(x, i) y = MatMul(v, w)"
    )
    _ort.InferenceSession(model(text).SerializeToString()).run(None, {"x": X, "i": np.array([9])})


ERRORS = [
    (missing_file, backpass.InvalidInput, ["NoSuchFile"]),
    (damaged_file, backpass.InvalidInput, ["InvalidProtobuf"]),
    (illegal_model, backpass.InvalidInput, ["InvalidGraph", "Fail"]),
    (unknown_operator, backpass.Unsupported, ["NotImplemented", "Fail"]),
    (missing_feed, backpass.InvalidInput, ["InvalidArgument"]),
    (feed_of_another_type, backpass.InvalidInput, ["InvalidArgument"]),
    (unknown_output, backpass.InvalidInput, ["InvalidArgument"]),
    (failing_node, backpass.InvalidInput, ["RuntimeException", "InvalidArgument"]),
]


@pytest.mark.parametrize(("cause", "kind", "names"), ERRORS, ids=[e[0].__name__ for e in ERRORS])
def test_errors_are_caught_by_the_names_scripts_know(cause: Any, kind: type, names: list[str], tmp_path: Path) -> None:
    for name in names:
        with pytest.raises(getattr(onnxruntime_pybind11_state, name)) as caught:
            cause(tmp_path)
        assert isinstance(caught.value, kind)
    others = {"NoSuchFile", "InvalidProtobuf", "InvalidGraph", "NotImplemented"} - set(names)
    assert not any(isinstance(caught.value, getattr(_ort, other)) for other in others)


def test_a_missing_feed_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="'x'"):
        session().run(None, {})


def test_c_level_names() -> None:
    assert _pybind_state.get_available_providers() == ["CPUExecutionProvider"]
    assert onnxruntime_pybind11_state.InferenceSession is onnxruntime_inference_collection.Session
    assert onnxruntime_inference_collection.get_ort_device_type("cpu") == 0


# ---- Devices and bound memory.
def test_devices() -> None:
    device = _ort.OrtDevice.make("cpu", 0)
    assert (device.device_type(), device.device_id()) == (_ort.OrtDevice.cpu(), 0)
    assert repr(device) == "OrtDevice('cpu', 0)"
    assert _ort.OrtDevice(_ort.OrtDevice.cpu(), _ort.OrtDevice.default_memory(), 0).device_type() == 0
    for make in (lambda: _ort.OrtDevice.make("cuda", 0), lambda: _ort.OrtDevice(1, 0, 0)):
        with pytest.raises(backpass.Unsupported, match="expected"):
            make()


@pytest.mark.parametrize("element_type", [np.float32, TensorProto.FLOAT])
def test_memory_is_bound_by_address(element_type: Any) -> None:
    opened = session()
    binding = opened.io_binding()
    x, y = X.copy(), np.zeros((2, 3), np.float32)
    binding.bind_input("x", "cpu", 0, element_type, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, element_type, y.shape, y.ctypes.data)
    binding.synchronize_inputs()
    opened.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(y, X @ np.ones((4, 3)))
    x *= 2  # read where it is, when it runs
    opened.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, 2 * X @ np.ones((4, 3)))
    assert binding.get_outputs()[0].data_ptr() == y.ctypes.data
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], y)
    assert repr(binding) == "IOBinding(inputs=['x'], outputs=['y'])"
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    with pytest.raises(_ort.InvalidArgument, match="no outputs"):
        opened.run_with_iobinding(binding)


@pytest.mark.parametrize(("shape", "address"), [((2, -4), 64), ((2, 4), 0), ((2, 4), None)])
def test_memory_that_is_none_is_refused(shape: Any, address: Any) -> None:
    with pytest.raises(_ort.InvalidArgument, match="expected memory"):
        session().io_binding().bind_input("x", "cpu", 0, np.float32, shape, address)


def test_values_that_are_made() -> None:
    made = _ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, "cpu", 0)
    assert (made.shape(), made.data_type(), made.tensor_size_in_bytes()) == ([2, 3], "tensor(float)", 24)
    assert repr(made) == "OrtValue(tensor(float), shape=[2, 3])"
    half = _ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80], np.uint16), TensorProto.BFLOAT16)
    assert half.element_type() == TensorProto.BFLOAT16
    assert float(half.numpy()[0]) == 1
    assert _ort.OrtValue.ortvalue_from_numpy(np.array(["a"], object)).element_type() == TensorProto.STRING
    with pytest.raises(backpass.InvalidInput, match="got 99"):
        _ort.OrtValue.ortvalue_from_shape_and_type([1], 99)


# ---- Options.
def test_free_dimensions_are_fixed() -> None:
    options = _ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    opened = session(options)
    assert opened.get_inputs()[0].shape == [2, 4]
    assert opened.get_outputs()[0].shape == [2, 3]
    with pytest.raises(_ort.InvalidArgument, match=r"\[3,4\]"):
        opened.run(None, {"x": np.zeros((3, 4), np.float32)})
    with pytest.raises(backpass.InvalidInput, match="'N': got -1"):
        options.add_free_dimension_override_by_name("N", -1)


def test_dimensions_are_fixed_by_what_they_denote() -> None:
    made = model()
    made.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = _ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 5)
    assert _ort.InferenceSession(made.SerializeToString(), options).get_inputs()[0].shape == [5, 4]


def test_initializers_are_replaced() -> None:
    options = _ort.SessionOptions()
    options.add_initializer("w", _ort.OrtValue.ortvalue_from_numpy(np.full((4, 3), 2, np.float32)))
    np.testing.assert_array_equal(session(options).run(None, {"x": X})[0], 2 * X @ np.ones((4, 3)))
    options.add_initializer("v", _ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    with pytest.raises(_ort.InvalidGraph, match="'v', expected an initializer"):
        session(options)


def test_options_show_what_is_set() -> None:
    options = _ort.SessionOptions()
    options.intra_op_num_threads = 3
    assert "intra_op_num_threads=3" in repr(options)


# ---- Runs.
def test_runs_in_the_background_tell_their_results() -> None:
    done = threading.Event()
    told: list[Any] = []

    def callback(results: list[Any], data: Any, error: str) -> None:
        told.append((results, data, error))
        done.set()

    for feed in ({"x": X}, {"z": X}):
        done.clear()
        session().run_async(["y"], feed, callback, "mine")
        assert done.wait(60)
    (results, data, error), (nothing, _, why) = told
    np.testing.assert_array_equal(results[0], X @ np.ones((4, 3)))
    assert (data, error, nothing) == ("mine", "", [])
    assert "'z'" in why


def test_values_are_fetched_into_a_list() -> None:
    fetched = _ort.OrtValueVector()
    value = _ort.OrtValue.ortvalue_from_numpy(X)
    session().run_with_ortvaluevector(None, ["x"], [value], ["y"], fetched, None)
    np.testing.assert_array_equal(fetched[0].numpy(), X @ np.ones((4, 3)))


def test_sessions_are_shown_and_pickled() -> None:
    opened = session()
    assert repr(opened) == "InferenceSession(inputs=[x: tensor(float)[N,4]], outputs=[y: tensor(float)[N,3]])"
    again = pickle.loads(pickle.dumps(opened))
    np.testing.assert_array_equal(again.run(None, {"x": X})[0], opened.run(None, {"x": X})[0])


def test_other_providers_are_noted() -> None:
    with pytest.warns(UserWarning, match="CUDAExecutionProvider; ignored"):
        _ort.InferenceSession(model().SerializeToString(), providers=[("CUDAExecutionProvider", {"device_id": 0})])
