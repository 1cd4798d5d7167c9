"""Passes leave collective operators alone: each rank talks to the others as the model says, whatever is read of it."""

from __future__ import annotations

import collective_fuzz
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

MS = "com.microsoft"


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_graphs(first: int) -> None:
    problems = [collective_fuzz.problem_of(seed) for seed in range(first, first + 50)]
    assert not any(problems), "\n".join(p for p in problems if p)


def model(*nodes: onnx.NodeProto, outputs: list[str], constants: dict[str, np.ndarray] | None = None) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, onnx.TensorProto.DOUBLE, [6, 4]) for n in ("x", "y")],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def all_reduce(source: str, result: str) -> onnx.NodeProto:
    return helper.make_node("NcclAllReduce", [source], [result], name=result, domain=MS)


def calls(made: bytes) -> list[str]:
    """What one rank asks for in one run; the same as node by node, with equal results."""
    assert not collective_fuzz.difference(made, 2, 0)
    log, _ = collective_fuzz.runs(made, 2, 0)[0]
    return [f"{name} {size}" for name, size, *_ in log[: len(log) // 2]]


def test_equal_sums_are_not_merged() -> None:
    add = helper.make_node("Add", ["a", "b"], ["z"])
    assert calls(model(all_reduce("x", "a"), all_reduce("x", "b"), add, outputs=["z"])) == ["allreduce 24"] * 2


def test_sums_of_constants_are_not_folded() -> None:
    add = helper.make_node("Add", ["a", "x"], ["z"])
    made = model(all_reduce("c", "a"), add, outputs=["z"], constants={"c": np.ones(4)})
    assert calls(made) == ["allreduce 4"]


def test_sums_that_nobody_reads_are_not_dropped() -> None:
    tanh = helper.make_node("Tanh", ["x"], ["z"])
    dead = helper.make_node("Relu", ["a"], ["b"])
    assert calls(model(all_reduce("x", "a"), dead, tanh, outputs=["z"])) == ["allreduce 24"]


def test_a_chain_that_could_be_fused_does_not_turn_sums_around() -> None:
    """x -> t, read by the first sum and by a node behind the second one: t and u as one would come after both."""
    sums = model(
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Slice", ["t", "zero", "two"], ["part"]),
        all_reduce("part", "a"),
        all_reduce("y", "b"),
        helper.make_node("Mul", ["t", "b"], ["u"]),
        outputs=["u", "a"],
        constants={"zero": np.array([0]), "two": np.array([2])},
    )
    assert calls(sums) == ["allreduce 8", "allreduce 24"]


def test_a_sum_in_a_branch_stays() -> None:
    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [onnx.ValueInfoProto(name=node.output[0])])

    choose = helper.make_node(
        "If",
        ["go"],
        ["chosen"],
        then_branch=branch("yes", all_reduce("x", "a")),
        else_branch=branch("no", helper.make_node("Identity", ["x"], ["b"])),
    )
    made = model(choose, helper.make_node("Neg", ["y"], ["z"]), outputs=["z"], constants={"go": np.array(True)})
    assert calls(made) == ["allreduce 24"]
