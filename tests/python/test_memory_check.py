"""What check and sessions say of memory before anything runs."""

from __future__ import annotations

import backpass
import numpy as np
import onnx
import onnx.helper as oh
import pytest


def mlp(batch: str | int = "batch", width: int = 32) -> bytes:
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w1", (16, width)), ("w2", (width, 4)))
    ]
    nodes = [
        oh.make_node("MatMul", ["x", "w1"], ["h"]),
        oh.make_node("Softmax", ["h"], ["p"]),
        oh.make_node("MatMul", ["p", "w2"], ["y"]),
        oh.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    graph = oh.make_graph(
        nodes,
        "mlp",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 16])],
        [oh.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])],
        weights,
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)]).SerializeToString()


def evaluated(expression: str, **sizes: int) -> int:
    return eval(expression, {"max": max, "min": min}, sizes)


def test_expression_and_number_agree_with_the_plan() -> None:
    memory = backpass.check(mlp(), sizes={"batch": 64}).memory
    planned = backpass.InferenceSession(mlp()).plan({"x": (64, 16)})
    assert memory.inference.bytes == planned.peak_bytes
    assert memory.inference.unknown == []
    assert "batch" in memory.inference.expression
    values = evaluated(memory.inference.expression, batch=64)
    assert 0.5 * planned.peak_bytes <= values <= planned.peak_bytes
    assert memory.training is None
    assert memory.gradient_bytes == 0


def test_training_counts_gradients_and_moments() -> None:
    memory = backpass.check(mlp(), trainable=["w1", "w2"], sizes={"batch": 64}).memory
    assert memory.gradient_bytes == 4 * (16 * 32 + 32 * 4)
    assert memory.optimizer_bytes == 2 * memory.gradient_bytes
    assert memory.constant_bytes >= memory.gradient_bytes
    assert memory.training.bytes > 0
    assert evaluated(memory.training.expression, batch=640) > evaluated(memory.training.expression, batch=64)
    assert "training in all" in repr(memory)


def test_without_sizes_there_is_no_number() -> None:
    memory = backpass.check(mlp()).memory
    assert memory.inference.bytes is None
    assert "bytes planned" not in repr(memory)
    assert backpass.check(mlp(batch=8)).memory.inference.bytes is not None, "nothing is left open"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"bach": 4}, "bach' is of no input"),
        ({"batch": -1}, "got -1, expected 0 or more"),
        ({"batch": 4, "rows": 2}, "rows' is of no input"),
    ],
)
def test_wrong_sizes_are_named(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(backpass.InvalidInput, match=message):
        backpass.check(mlp(), sizes=sizes).memory  # noqa: B018


def test_no_memory_of_a_model_with_problems() -> None:
    report = backpass.check(mlp(), trainable=["nothing"])
    assert not report
    with pytest.raises(ValueError, match="cannot run"):
        report.memory  # noqa: B018


def test_no_number_where_data_decide_without_a_bound() -> None:
    nodes = [
        oh.make_node("SequenceConstruct", ["x", "x"], ["q"]),
        oh.make_node("ConcatFromSequence", ["q"], ["c"], axis=0),
        oh.make_node("Softmax", ["c"], ["y"]),
    ]
    graph = oh.make_graph(
        nodes,
        "sequence",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)]).SerializeToString()
    assert backpass.check(model, sizes={"n": 1000}).memory.inference.bytes is None
