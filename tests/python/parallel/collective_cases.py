"""Models with collective operators, as every rank of a world runs them, against numpy."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import onnx
from backpass import parallel
from onnx import TensorProto, helper

MS = "com.microsoft"
SHAPES = {"a": (6, 5), "b": (1,), "c": (1001,)}


def everybody(size: int) -> list[dict[str, np.ndarray]]:
    """What each rank is fed: known to all, so that each can tell what must come out."""
    return [
        {name: np.random.default_rng((7, rank, k)).standard_normal(shape).astype(np.float32)
         for k, (name, shape) in enumerate(SHAPES.items())}
        for rank in range(size)
    ]  # fmt: skip


def model(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], outputs: list[str]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def run(op: str, fed: dict[str, np.ndarray], **attrs: Any) -> list[np.ndarray]:
    outputs = [f"{n}_out" for n in fed]
    node = helper.make_node(op, list(fed), outputs, name="n", domain=MS, **attrs)
    return backpass.InferenceSession(model([node], {n: v.shape for n, v in fed.items()}, outputs)).run(None, fed)


def check_collectives(comm: Any) -> None:
    parallel.set_communicator(comm)
    try:
        check_sums(comm)
        check_moves(comm)
        check_messages(comm)
    finally:
        parallel.set_communicator(None)


def check_sums(comm: Any) -> None:
    fed = everybody(comm.size)
    mine = fed[comm.rank]
    for op in ("NcclAllReduce", "AllReduce", "AdasumAllReduce"):
        found = run(op, mine)
        if op != "AdasumAllReduce":
            for name, value in zip(mine, found, strict=True):
                np.testing.assert_allclose(value, sum(f[name] for f in fed), rtol=1e-5, atol=1e-5)
        for value in found:  # the same bits everywhere
            all = np.empty((comm.size, value.size), np.float32)
            comm.allgather(value.reshape(-1).copy(), all)
            assert all.tobytes() == value.tobytes() * comm.size
    (scattered,) = run("NcclReduceScatter", {"c": mine["c"]})
    piece = (1001 // (comm.size * 32) + 1) * 32
    own = slice(comm.rank * piece, (comm.rank + 1) * piece)
    wanted = mine["c"].copy()
    wanted[own] = sum(f["c"] for f in fed)[own]
    np.testing.assert_allclose(scattered, wanted, rtol=1e-5, atol=1e-5)


def check_moves(comm: Any) -> None:
    fed = everybody(comm.size)
    (gathered,) = run("AllGather", {"a": fed[comm.rank]["a"]}, axis=1, group_size=comm.size)
    np.testing.assert_array_equal(gathered, np.concatenate([f["a"] for f in fed], 1))
    rows = [np.repeat(f["a"], comm.size, axis=0) + np.arange(6 * comm.size, dtype=np.float32)[:, None] for f in fed]
    (swapped,) = run("AllToAll", {"a": rows[comm.rank]}, group_size=comm.size)
    np.testing.assert_array_equal(swapped, np.concatenate([np.split(r, comm.size)[comm.rank] for r in rows]))


def check_messages(comm: Any) -> None:
    """Around a ring: even ranks send first."""
    if comm.size == 1:
        return
    fed = everybody(comm.size)
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size

    def number(name: str, value: int) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value_int=value)

    kinds = [TensorProto.FLOAT] * len(SHAPES)
    begin = helper.make_node("Constant", [], ["go"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True]))
    first, second = ("go", "sent") if comm.rank % 2 == 0 else ("came", "go")
    send = helper.make_node("Send", [first, "behind", *SHAPES], ["sent"], domain=MS, tag=5, element_types=kinds)
    come = [f"{n}_come" for n in SHAPES]
    recv = helper.make_node("Recv", [second, "before"], ["came", *come], domain=MS, tag=5, element_types=kinds)
    pair = [send, recv] if comm.rank % 2 == 0 else [recv, send]
    made = model([begin, number("behind", behind), number("before", before), *pair], SHAPES, come)
    found = backpass.InferenceSession(made).run(None, fed[comm.rank])
    for value, wanted in zip(found, fed[before].values(), strict=True):
        np.testing.assert_array_equal(value, wanted)
