"""Rewriting passes from the outside: what they report, how they are switched off, models simplified as files."""

from __future__ import annotations

import pickle

import backpass
import numpy as np
import onnx
import pytest
from backpass import _core
from onnx import TensorProto, helper, numpy_helper

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def model(*nodes: onnx.NodeProto, opset: int = 18, constants: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """From `x` to `y`."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "m"])],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def chain() -> bytes:
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], name="copy"),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    return model(*nodes).SerializeToString()


def test_reports_tell_pass_node_reason_and_savings() -> None:
    session = backpass.InferenceSession(chain())
    first, second = session.pass_reports()
    assert (first.pass_name, first.node, first.what) == (
        "remove_identities",
        "[Identity 'copy']",
        "bypassed [Identity 'copy']",
    )
    assert first.why
    assert first.operations_saved is None
    assert (second.pass_name, second.bytes_saved) == ("fuse_tiles", "12*n")
    assert session.rewrites() == [first.what, second.what]
    assert "pass_name='fuse_tiles'" in repr(second)
    times = session.pass_times()
    assert {"remove_identities", "fuse_tiles"} <= times.keys()
    assert all(seconds >= 0 for seconds in times.values())


def test_passes_are_switched_off_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    session = backpass.InferenceSession(chain(), disabled_passes=["fuse_tiles"])
    assert [r.pass_name for r in session.pass_reports()] == ["remove_identities"]
    assert [r.pass_name for r in pickle.loads(pickle.dumps(session)).pass_reports()] == ["remove_identities"]
    monkeypatch.setenv("BACKPASS_DISABLE_PASSES", "remove_identities")
    assert not backpass.InferenceSession(chain(), disabled_passes=["fuse_tiles"]).pass_reports()


def test_an_unknown_name_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(backpass.InvalidInput, match=r"disabled_passes: got 'fuse', expected names among .*fuse_tiles"):
        backpass.InferenceSession(chain(), disabled_passes=["fuse"])
    monkeypatch.setenv("BACKPASS_DISABLE_PASSES", "fuse")
    with pytest.raises(backpass.InvalidInput, match="BACKPASS_DISABLE_PASSES: got 'fuse'"):
        backpass.InferenceSession(chain())


def test_results_are_the_same_without_each_pass() -> None:
    """Switching off is only of use if what is left runs."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "v"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Exp", ["r"], ["e"]),
        helper.make_node("Exp", ["r"], ["f"]),
        helper.make_node("Sub", ["e", "half"], ["s"]),
        helper.make_node("Mul", ["s", "f"], ["y"]),
    ]
    constants = {"w": np.ones((3, 5), np.float32), "v": np.arange(5, dtype=np.float32), "half": np.float32(0.5)}
    made = model(*nodes, constants=constants)
    expected = backpass.InferenceSession(made.SerializeToString(), reference=True).run(None, {"x": X})[0]
    for name in backpass.InferenceSession(made.SerializeToString()).pass_times():
        session = backpass.InferenceSession(made.SerializeToString(), disabled_passes=[name])
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-5)


# ---- models that go on as files
def simplified(made: onnx.ModelProto, *passes: str) -> onnx.ModelProto:
    result = onnx.ModelProto.FromString(_core.simplify(made.SerializeToString(), list(passes))[0])
    onnx.checker.check_model(result, full_check=True)
    return result


def test_a_file_stays_in_its_opset() -> None:
    """ReduceSum of opset 11 has its axes in an attribute; the engine's own form would be that of 13."""
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["b"], axes=[1], keepdims=1),
        helper.make_node("ReduceSum", ["x"], ["c"], axes=[1], keepdims=1),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    made = simplified(model(*nodes, opset=11), "remove_identities", "merge_duplicates")
    assert [n.op_type for n in made.graph.node] == ["ReduceSum", "Add"]
    assert [(o.domain, o.version) for o in made.opset_import] == [("", 11)]
    assert list(made.graph.node[0].attribute[0].ints) == [1]


def test_composed_operators_stay_whole() -> None:
    """The engine writes MeanVarianceNormalization as other operators when it plans; a file keeps it."""
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("MeanVarianceNormalization", ["a"], ["y"], axes=[1]),
    ]
    made = simplified(model(*nodes), "remove_identities")
    assert [n.op_type for n in made.graph.node] == ["MeanVarianceNormalization"]


def test_constants_are_folded_in_the_form_of_the_file() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["w"], ["s"], axes=[0], keepdims=0),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32([1, 2, 3]))),
        helper.make_node("Add", ["s", "c"], ["t"]),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    made = simplified(model(*nodes, opset=11, constants={"w": np.ones((2, 3), np.float32)}), "fold_constants")
    assert [n.op_type for n in made.graph.node] == ["Add"]
    (found,) = made.graph.initializer
    assert found.name == "t"
    np.testing.assert_array_equal(numpy_helper.to_array(found), [3, 4, 5])


def test_bodies_and_unknown_operators_survive() -> None:
    def branch(op: str) -> onnx.GraphProto:
        nodes = [helper.make_node("Identity", ["x"], ["i"]), helper.make_node(op, ["i"], ["o"])]
        return helper.make_graph(nodes, op, [], [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("If", ["yes"], ["a"], then_branch=branch("Relu"), else_branch=branch("Exp")),
        helper.make_node("Mine", ["a"], ["y"], domain="custom"),
    ]
    made = model(*nodes, constants={"yes": np.array(True)})
    made.opset_import.append(helper.make_opsetid("custom", 1))
    result = onnx.ModelProto.FromString(_core.simplify(made.SerializeToString(), ["remove_identities"])[0])
    assert [n.op_type for n in result.graph.node] == ["If", "Mine"]
    bodies = {a.name: [n.op_type for n in a.g.node] for a in result.graph.node[0].attribute}
    assert bodies == {"then_branch": ["Relu"], "else_branch": ["Exp"]}


def test_what_plans_get_is_not_for_files() -> None:
    with pytest.raises(backpass.InvalidInput, match=r"passes: got 'fuse_tiles', expected names among .*merge_reshapes"):
        _core.simplify(chain(), ["fuse_tiles"])


def test_what_a_body_captures_for_dead_nodes_is_not_computed() -> None:
    def branch(name: str) -> onnx.GraphProto:
        nodes = [helper.make_node("Exp", ["dear"], [f"{name}_dead"]), helper.make_node(name, ["x"], [f"{name}_y"])]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("Softmax", ["x"], ["dear"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    session = backpass.InferenceSession(model(*nodes).SerializeToString(), verify_passes=True)
    assert "Softmax" not in session.graph_text()
    assert "captures %dear" not in session.graph_text()
    np.testing.assert_array_equal(session.run(None, {"x": X + 1})[0], -(X + 1))
