"""The Python face: feeds, results, reports, profile."""

from __future__ import annotations

import json
import threading

import backpass
import numpy as np
import pytest
import torch
from onnx import TensorProto, helper


def model(nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()


def floats(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.fixture
def affine():
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], np.arange(6, dtype=np.float32))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
    ]
    return model(nodes, [floats("x", ["n", 3])], [floats("y", ["n", 2])], [weight])


def expected(x):
    return np.maximum(x @ np.arange(6, dtype=np.float32).reshape(3, 2), 0)


def test_names_types_and_shapes_are_those_of_onnxruntime(affine):
    session = backpass.InferenceSession(affine)
    (x,) = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["n", 3])
    (y,) = session.get_outputs()
    assert (y.name, y.type, y.shape) == ("y", "tensor(float)", ["n", 2])


def test_numpy_in_numpy_out_for_changing_shapes(affine):
    session = backpass.InferenceSession(affine)
    for n in (1, 4, 0, 4, 7):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        np.testing.assert_allclose(session.run(["y"], {"x": x})[0], expected(x), rtol=1e-6)


def test_non_contiguous_and_big_endian_feeds_are_converted(affine):
    session = backpass.InferenceSession(affine)
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32).T
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(x), rtol=1e-6)
    np.testing.assert_allclose(session.run(None, {"x": x.astype(">f4")})[0], expected(x), rtol=1e-6)


def test_torch_tensors_go_in_and_out_through_dlpack(affine):
    session = backpass.InferenceSession(affine)
    x = torch.randn(4, 3)
    (tensor,) = session.run_tensors(None, {"x": x})
    np.testing.assert_allclose(torch.from_dlpack(tensor).numpy(), expected(x.numpy()), rtol=1e-6)


def test_results_do_not_share_memory_with_feeds_or_later_runs():
    session = backpass.InferenceSession(
        model([helper.make_node("Identity", ["x"], ["y"])], [floats("x", [2])], [floats("y", [2])])
    )
    x = np.array([1, 2], np.float32)
    (first,) = session.run(None, {"x": x})
    x[:] = 7
    session.run(None, {"x": x})
    np.testing.assert_array_equal(first, [1, 2])


def test_equal_names_must_get_equal_extents():
    session = backpass.InferenceSession(
        model(
            [helper.make_node("Concat", ["a", "b"], ["y"], axis=1)],
            [floats("a", ["n", 1]), floats("b", ["n", 1])],
            [floats("y", ["n", 2])],
        )
    )
    with pytest.raises(backpass.InvalidInput, match="'n' is 2 in another input"):
        session.run(None, {"a": np.ones((2, 1), np.float32), "b": np.ones((3, 1), np.float32)})


def test_every_wrong_feed_is_reported_at_once(affine):
    session = backpass.InferenceSession(affine)
    with pytest.raises(backpass.InvalidInput) as error:
        session.run(None, {"x": np.ones((2, 4)), "extra": np.ones(1, np.float32)})
    assert "input 'x': got float64[2,4], expected float32[n,3]" in str(error.value)
    assert "input 'extra' does not exist" in str(error.value)


def test_check_finds_every_problem():
    bad = model(
        [
            helper.make_node("NoSuchThing", ["x"], ["a"], name="first"),
            helper.make_node("Softmax", ["x"], ["b"], name="second", axis=9),
        ],
        [floats("x", ["n", 3])],
        [floats("a", None), floats("b", None)],
    )
    report = backpass.check(bad)
    assert not report
    assert [p.node for p in report.problems] == ["first", "second"]
    assert "axis: got 9, expected one in [-2, 2)" in str(report)


def test_settings_of_one_session_are_not_those_of_the_next(affine):
    options = backpass.SessionOptions()
    options.profile = True
    backpass.InferenceSession(affine, options, reference=True, num_threads=1)
    assert not options.reference
    assert options.num_threads == backpass.SessionOptions().num_threads
    session = backpass.InferenceSession(affine, options)
    session.run(None, {"x": np.ones((1, 3), np.float32)})
    assert session.take_profile().total_us > 0
    with pytest.raises(TypeError, match="unknown session option 'threads'"):
        backpass.InferenceSession(affine, options, threads=2)


def test_the_plan_names_steps_and_bytes(affine):
    session = backpass.InferenceSession(affine)
    report = session.plan({"x": np.ones((8, 3), np.float32)})
    assert report.steps >= 1
    assert report.lower_bound_bytes <= report.peak_bytes
    assert "arena:" in str(report)


def test_a_plan_needs_shapes_only(affine):
    session = backpass.InferenceSession(affine)
    for n in (1, 8, 1_000_000):
        assert str(session.plan({"x": (n, 3)})) == str(session.plan({"x": np.ones((n, 3), np.float32)}))
    with pytest.raises(backpass.InvalidInput, match=r"shape: got \(-1, 3\), expected numbers of 0 or more"):
        session.plan({"x": (-1, 3)})
    with pytest.raises(backpass.InvalidInput, match="got"):
        session.plan({"x": (2, 4)})


@pytest.mark.parametrize("kind", [int(code) for code in TensorProto.DataType.values() if code])
def test_a_plan_by_shapes_takes_every_element_type(kind):
    x, y = (helper.make_tensor_value_info(name, kind, ["n", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    session = backpass.InferenceSession(helper.make_model(graph, ir_version=13).SerializeToString())
    assert session.plan({"x": (5, 3)}).steps >= 0


@pytest.mark.parametrize("alias", ["Cast", "Sum"])
def test_a_result_under_another_name_survives_what_is_computed_after_it(alias):
    """Cast from float16 and Sum of one tensor are no instructions of their own in a fused program."""
    kind = TensorProto.FLOAT16 if alias == "Cast" else TensorProto.FLOAT
    nodes = [
        helper.make_node("Add", ["x", "y"], ["a"]),
        helper.make_node("Mul", ["a", "z"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node(alias, ["a"], ["d"], **({"to": TensorProto.FLOAT} if alias == "Cast" else {})),
    ]
    inputs = [helper.make_tensor_value_info(name, kind, ["n", 8]) for name in "xyz"]
    outputs = [helper.make_tensor_value_info("c", kind, None), floats("d", None)]
    session = backpass.InferenceSession(model(nodes, inputs, outputs))
    assert any("fused 4 nodes" in line for line in session.rewrites())
    x, y, z = np.random.default_rng(4).integers(-8, 8, (3, 5, 8)).astype(np.float16 if alias == "Cast" else np.float32)
    c, d = session.run(None, {"x": x, "y": y, "z": z})
    np.testing.assert_array_equal(c, np.maximum((x + y) * z, 0))
    np.testing.assert_array_equal(d, x + y)


def test_profile_gives_a_table_and_a_chrome_trace(affine, tmp_path):
    session = backpass.InferenceSession(affine, profile=True)
    session.run(None, {"x": np.ones((8, 3), np.float32)})
    profile = session.take_profile()
    assert profile.steps
    assert "operator" in profile.table()
    profile.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == len(profile.steps)
    assert session.take_profile().steps == []


def test_threads_may_share_a_session(affine):
    session = backpass.InferenceSession(affine)
    failures = []

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(50):
            x = random.standard_normal((int(random.integers(1, 9)), 3)).astype(np.float32)
            if not np.allclose(session.run(None, {"x": x})[0], expected(x), rtol=1e-5, atol=1e-6):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_reference_executor_agrees(affine):
    x = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    planned = backpass.InferenceSession(affine).run(None, {"x": x})[0]
    reference = backpass.InferenceSession(affine, reference=True).run(None, {"x": x})[0]
    np.testing.assert_allclose(planned, reference, rtol=1e-6)


def test_unknown_options_are_refused(affine):
    with pytest.raises(TypeError, match="unknown session option 'threads'"):
        backpass.InferenceSession(affine, threads=2)
