"""Feeds, extents and numbers at the edges of what models may hold."""

from __future__ import annotations

import backpass
import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from test_session import floats, model


@pytest.mark.parametrize("reference", [False, True])
def test_results_belong_to_the_caller(reference):
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Add", ["x", "w"], ["y"])]
    outputs = [floats(name, [2]) for name in ("same", "x", "w", "y")]
    session = backpass.InferenceSession(model(nodes, [floats("x", [2])], outputs, [weight]), reference=reference)
    x = np.array([5, 6], np.float32)
    x.flags.writeable = False
    for _ in range(2):
        results = session.run(None, {"x": x})
        for got, wanted in zip(results, ([5, 6], [5, 6], [1, 2], [6, 8]), strict=True):
            np.testing.assert_array_equal(got, wanted)
            got[:] = -1
    np.testing.assert_array_equal(x, [5, 6])


@pytest.mark.parametrize("reference", [False, True])
def test_integers_that_are_no_extents_wrap(reference):
    """As in numpy and onnxruntime, whether they are constants of the model or fed."""
    low, high = -(2**63), 2**63 - 1

    def ints(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.INT64, shape)

    nodes = [
        helper.make_node("Mul", ["high", "six"], ["product"]),
        helper.make_node("Neg", ["low"], ["negated"]),
        helper.make_node("ReduceSum", ["pair"], ["sum"], keepdims=0),
        helper.make_node("Add", ["product", "negated"], ["two"]),
        helper.make_node("Add", ["two", "sum"], ["all"]),
        helper.make_node("Mul", ["x", "high"], ["fed"]),
        helper.make_node("Add", ["x", "product"], ["y"]),
    ]
    values = {"high": [high], "six": [6], "low": [low], "pair": [high, 1]}
    constants = [helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in values.items()]
    outputs = [ints(name, None) for name in ("product", "negated", "sum", "all", "fed", "y")]
    session = backpass.InferenceSession(model(nodes, [ints("x", [1])], outputs, constants), reference=reference)
    got = [int(np.squeeze(v)) for v in session.run(None, {"x": np.array([3], np.int64)})]
    assert got == [-6, low, low, -6, high - 2, -3]


@pytest.mark.parametrize("extent", [2, "h"])
def test_the_only_window_may_reach_over_the_end(extent):
    """With ceil_mode, as in torch and onnxruntime: SqueezeNet does so for small images."""
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["largest"], **window),
        helper.make_node("AveragePool", ["x"], ["mean"], **window),
        helper.make_node("AveragePool", ["x"], ["padded"], count_include_pad=1, **window),
        helper.make_node("LpPool", ["x"], ["norm"], p=1, **window),
    ]
    outputs = [floats(name, None) for name in ("largest", "mean", "padded", "norm")]
    session = backpass.InferenceSession(model(nodes, [floats("x", [1, 1, extent, extent])], outputs))
    results = session.run(None, {"x": np.array([[[[1, 2], [3, 4]]]], np.float32)})
    assert [r.shape for r in results] == [(1, 1, 1, 1)] * 4
    np.testing.assert_allclose(np.ravel(results), [4, 2.5, 2.5, 10])


def test_a_window_longer_than_the_input_is_refused():
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[4, 4], strides=[2, 2], ceil_mode=1)
    report = backpass.check(model([pool], [floats("x", [1, 1, 2, 2])], [floats("y", None)]))
    assert "window of 4 elements is longer than the padded input" in str(report)


def loop_and_scan():
    """Negated states of a Loop and of a Scan, and their sums over the iterations."""
    step = [helper.make_node("Add", ["s", "s"], ["next"]), helper.make_node("Neg", ["s"], ["written"])]
    given = [helper.make_tensor_value_info("i", TensorProto.INT64, [])]
    given += [helper.make_tensor_value_info("go", TensorProto.BOOL, []), floats("s", None)]
    on = [helper.make_tensor_value_info("on", TensorProto.BOOL, []), floats("next", None), floats("written", None)]
    loop = helper.make_graph([helper.make_node("Identity", ["go"], ["on"]), *step], "loop", given, on)
    scan = helper.make_graph(step, "scan", [floats("s", None), floats("e", None)], on[1:])
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["last", "looped"], body=loop),
        helper.make_node("Scan", ["x", "steps"], ["end", "scanned"], body=scan, num_scan_inputs=1),
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [0])
    for name in ("looped", "scanned"):
        nodes.append(helper.make_node("ReduceSum", [name, "axis"], [name + "_sum"], keepdims=0))
        nodes.append(helper.make_node("Add", [name + "_sum", "x"], [name + "_plus"]))
    inputs = [floats("x", ["batch", 4]), floats("steps", ["length", "batch"])]
    inputs.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    outputs = [floats(name, None) for name in ("looped", "scanned", "looped_plus", "scanned_plus")]
    return model(nodes, inputs, outputs, [axis])


@pytest.mark.parametrize("reference", [False, True])
def test_no_iterations_leave_the_other_extents(reference):
    session = backpass.InferenceSession(loop_and_scan(), reference=reference)
    x = np.ones((3, 4), np.float32)
    for count in (2, 0):
        feeds = {"x": x, "steps": np.zeros((count, 3), np.float32), "n": np.array(count, np.int64)}
        looped, scanned, *sums = session.run(None, feeds)
        assert looped.shape == scanned.shape == (count, 3, 4)
        for total in sums:
            np.testing.assert_array_equal(total, x if count == 0 else x - 3)


@pytest.mark.parametrize(("factor", "size"), [(1e-25, 1e25), (1e25, 1e-25)])
def test_factors_that_keep_a_product_in_range_stay_in_front_of_it(factor, size):
    nodes = [
        helper.make_node("Mul", ["a", "factor"], ["left"]),
        helper.make_node("Mul", ["factor", "b"], ["right"]),
        helper.make_node("MatMul", ["left", "right"], ["y"]),
    ]
    constant = helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])
    inputs = [floats("a", ["n", 2]), floats("b", [2, 3])]
    session = backpass.InferenceSession(model(nodes, inputs, [floats("y", None)], [constant]))
    feeds = {"a": np.full((1, 2), size, np.float32), "b": np.full((2, 3), size, np.float32)}
    np.testing.assert_allclose(session.run(None, feeds)[0], np.full((1, 3), 2.0), rtol=1e-5)


def test_activations_behind_products_keep_double_precision():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("HardSwish", ["h"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    weight = helper.make_tensor("w", TensorProto.DOUBLE, [2, 2], [1.0, 0.0, 0.0, 1.0])
    session = backpass.InferenceSession(model(nodes, [x], [y], [weight]))
    given = np.array([[0.7, -1.3], [2.9, 1.1]])
    np.testing.assert_allclose(session.run(None, {"x": given})[0], given * (given / 6 + 0.5), rtol=1e-14)


def test_feeds_may_be_torch_views_that_are_negated_or_conjugated_by_a_mark():
    wave = torch.tensor([1 + 2j, 3 - 4j])
    session = backpass.InferenceSession(
        model([helper.make_node("Identity", ["x"], ["y"])], [floats("x", ["n"])], [floats("y", ["n"])])
    )
    for count in (2, 1):  # one element is contiguous as it is
        marked = wave[:count].conj().imag
        assert marked.is_neg()
        np.testing.assert_array_equal(session.run(None, {"x": marked})[0], [-2, 4][:count])
    x = helper.make_tensor_value_info("x", TensorProto.COMPLEX64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.COMPLEX64, ["n"])
    session = backpass.InferenceSession(model([helper.make_node("Identity", ["x"], ["y"])], [x], [y]))
    np.testing.assert_array_equal(session.run(None, {"x": wave.conj()})[0], [1 - 2j, 3 + 4j])


def test_a_slope_of_unknown_length_is_checked_when_it_is_fed():
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    session = backpass.InferenceSession(
        model([node], [floats("x", ["n", 1]), floats("slope", ["k"])], [floats("y", None)])
    )
    x = np.array([[-2], [3]], np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "slope": np.array([0.5], np.float32)})[0], [[-1], [3]])
    with pytest.raises(backpass.InvalidInput, match="broadcasts to"):
        session.run(None, {"x": x, "slope": np.ones(2, np.float32)})
