"""Collective operators over ranks that are threads of this process, judged by numpy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import backpass
import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
import onnx
import pytest
from backpass import parallel
from onnx import TensorProto, helper
from ranks import Rank, on_ranks

MS = "com.microsoft"
SIZES = (1, 2, 3, 4, 5)
SHAPES = [(3, 4), (1,), (0, 2), (2, 3, 5), (33,)]
TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 2e-2}


def model(
    nodes: Sequence[onnx.NodeProto], fed: dict[str, np.ndarray], outputs: Sequence[str], symbolic: bool = False
) -> bytes:
    def info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
        shape = [f"{name}_{i}" for i in range(value.ndim)] if symbolic else value.shape
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape)

    made = helper.make_graph(
        list(nodes), "g", [info(n, v) for n, v in fed.items()], [onnx.ValueInfoProto(name=n) for n in outputs]
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
    return bytes(helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString())


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name="n", domain=MS, **attrs)


def feeds(seed: int, size: int, shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> list[dict[str, Any]]:
    """What every rank is fed."""
    rng = np.random.default_rng(seed)
    return [{f"x{i}": rng.standard_normal(s).astype(dtype) for i, s in enumerate(shapes)} for _ in range(size)]


def results(size: int, made: bytes, fed: Sequence[dict[str, Any]], groups: Any = None, **options: Any) -> list[Any]:
    return on_ranks(size, lambda c: backpass.InferenceSession(made, **options).run(None, fed[c.rank]), subgroups=groups)


def one_node(op: str, fed: dict[str, Any], symbolic: bool = False, **attrs: Any) -> bytes:
    outputs = [f"y{i}" for i in range(len(fed))]
    return model([node(op, list(fed), outputs, **attrs)], fed, outputs, symbolic)


def assert_close(found: Any, wanted: Any, dtype: str) -> None:
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["NcclAllReduce", "AllReduce"])
def test_sums(op: str, size: int, dtype: str, symbolic: bool) -> None:
    fed = feeds(1, size, SHAPES, dtype)
    found = results(size, one_node(op, fed[0], symbolic), fed)
    for i in range(len(SHAPES)):
        wanted = sum((f[f"x{i}"].astype(np.float64) for f in fed), start=np.zeros(SHAPES[i]))
        for mine in found:
            assert_close(mine[i], wanted, dtype)
            assert mine[i].tobytes() == found[0][i].tobytes()


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
def test_all_gather(size: int, dtype: str, axis: int | None) -> None:
    shapes = [(2, 3, 5), (3, 4), (2, 0), (1, 3)]
    fed = feeds(2, size, shapes)
    fed = [{n: (v > 0 if dtype == "bool" else v * 9).astype(dtype) for n, v in f.items()} for f in fed]
    attrs = {} if axis is None else {"axis": axis}
    found = results(size, one_node("AllGather", fed[0], group_size=size, **attrs), fed)
    for i in range(len(shapes)):
        wanted = np.concatenate([f[f"x{i}"] for f in fed], axis=1 if axis is None else axis)
        for mine in found:
            assert mine[i].dtype == wanted.dtype
            np.testing.assert_array_equal(mine[i], wanted)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("size", [*SIZES, 8])
def test_all_to_all(size: int, dtype: str) -> None:
    shapes = [(size * 2, 3), (size,), (0, 4)]
    fed = feeds(3, size, shapes)
    fed = [{n: (v > 0 if dtype == "bool" else v * 9).astype(dtype) for n, v in f.items()} for f in fed]
    found = results(size, one_node("AllToAll", fed[0], group_size=size), fed)
    for rank, mine in enumerate(found):
        for i in range(len(shapes)):
            parts = [np.array_split(f[f"x{i}"], size)[rank] for f in fed]
            np.testing.assert_array_equal(mine[i], np.concatenate(parts))


def pieces(fed: Sequence[dict[str, Any]]) -> tuple[list[np.ndarray], int]:
    """Everybody's tensors as one vector, padded as the original pads them, and the length of a piece."""
    flat = [np.concatenate([v.reshape(-1) for v in f.values()]) for f in fed]
    alignment = len(fed) * 32
    total = flat[0].size + alignment - flat[0].size % alignment
    return [np.pad(v, (0, total - v.size)) for v in flat], total // len(fed)


def apart(flat: np.ndarray, like: dict[str, Any]) -> list[np.ndarray]:
    ends = np.cumsum([v.size for v in like.values()])
    return [flat[e - v.size : e].reshape(v.shape) for e, v in zip(ends, like.values(), strict=True)]


SHARDED = [[(40,), (32,), (3, 5), (0,), (70, 2)], [(7,)], [(32, 8)]]


@pytest.mark.parametrize("shapes", SHARDED)
@pytest.mark.parametrize("size", SIZES)
def test_pieces_are_gathered(size: int, shapes: list[tuple[int, ...]]) -> None:
    fed = feeds(4, size, shapes)
    found = results(size, one_node("NcclAllGather", fed[0], group_type=1), fed)
    flat, piece = pieces(fed)
    wanted = apart(np.concatenate([flat[r][r * piece : (r + 1) * piece] for r in range(size)]), fed[0])
    for mine in found:
        for a, b in zip(mine, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shapes", SHARDED)
@pytest.mark.parametrize("size", SIZES)
def test_pieces_are_summed(size: int, shapes: list[tuple[int, ...]], dtype: str) -> None:
    fed = feeds(5, size, shapes, dtype)
    found = results(size, one_node("NcclReduceScatter", fed[0]), fed)
    flat, piece = pieces(fed)
    for rank, mine in enumerate(found):
        wanted = flat[rank].copy()
        own = slice(rank * piece, (rank + 1) * piece)
        wanted[own] = sum(f[own].astype(np.float64) for f in flat)
        for a, b in zip(mine, apart(wanted, fed[0]), strict=True):
            assert_close(a, b, dtype)


def adasum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot = float((a * b).sum())
    return a * (1 - dot / (2 * (a * a).sum() or 1)) + b * (1 - dot / (2 * (b * b).sum() or 1))


def adasum_tree(parts: list[np.ndarray]) -> np.ndarray:
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [adasum(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [*SIZES, 6, 7, 8])
def test_adasum(size: int, dtype: str) -> None:
    fed = feeds(6, size, SHAPES, dtype)
    fed[0]["x0"][...] = 0
    found = results(size, one_node("AdasumAllReduce", fed[0], reduce_algo=1), fed)
    for i in range(len(SHAPES)):
        wanted = adasum_tree([f[f"x{i}"].astype(np.float64) for f in fed])
        for mine in found:
            assert mine[i].tobytes() == found[0][i].tobytes()
            np.testing.assert_allclose(mine[i].astype(np.float64), wanted, rtol=5 * TOLERANCE[dtype], atol=1e-2 if
                                       dtype == "float16" else 5 * TOLERANCE[dtype])  # fmt: skip


def test_adasum_of_equal_vectors_is_their_mean_and_of_orthogonal_ones_their_sum() -> None:
    same = [{"x0": np.arange(1, 5, dtype=np.float32)} for _ in range(4)]
    for (mine,) in results(4, one_node("AdasumAllReduce", same[0]), same):
        np.testing.assert_array_equal(mine, same[0]["x0"])
    apart_ = [{"x0": np.eye(4, dtype=np.float32)[r]} for r in range(4)]
    for (mine,) in results(4, one_node("AdasumAllReduce", apart_[0]), apart_):
        np.testing.assert_array_equal(mine, np.ones(4, np.float32))


# ---- Send and Recv.
def sender(fed: dict[str, Any], to: int, tag: int = 3) -> bytes:
    nodes = [
        helper.make_node("Constant", [], ["go"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True])),
        helper.make_node("Constant", [], ["remote"], value_int=to),
        node("Send", ["go", "remote", *fed], ["done"], tag=tag,
             element_types=[helper.np_dtype_to_tensor_dtype(v.dtype) for v in fed.values()]),
    ]  # fmt: skip
    return model(nodes, fed, ["done"])


def receiver(dtypes: Sequence[Any], source: int, tag: int = 3) -> bytes:
    names = [f"y{i}" for i in range(len(dtypes))]
    nodes = [
        helper.make_node("Constant", [], ["remote"], value_int=source),
        node("Recv", ["go", "remote"], ["done", *names], tag=tag,
             element_types=[helper.np_dtype_to_tensor_dtype(np.dtype(d)) for d in dtypes]),
    ]  # fmt: skip
    nodes += [helper.make_node("Identity", [n], [f"{n}_again"]) for n in names]
    return model(nodes, {"go": np.array(True)}, ["done", *[f"{n}_again" for n in names]])


SENT = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array(7, np.int64),
    "c": np.zeros((0, 4), np.float16),
    "d": np.array([True, False]),
    "e": np.array([1.5, -2], "bfloat16"),
}


@pytest.mark.parametrize("reference", [False, True])
def test_what_is_sent_arrives(reference: bool) -> None:
    def work(c: Rank) -> Any:
        if c.rank == 0:
            return backpass.InferenceSession(sender(SENT, 1), reference=reference).run(None, SENT)
        made = receiver([v.dtype for v in SENT.values()], 0)
        return backpass.InferenceSession(made, reference=reference).run(None, {"go": np.array(True)})

    sent, received = on_ranks(2, work)
    assert [bool(v) for v in sent] == [True]
    assert bool(received[0])
    for a, b in zip(received[1:], SENT.values(), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_a_message_of_other_types_is_refused() -> None:
    def work(c: Rank) -> Any:
        if c.rank == 0:
            return backpass.InferenceSession(sender({"a": SENT["a"]}, 1)).run(None, {"a": SENT["a"]})
        return backpass.InferenceSession(receiver([np.int32], 0)).run(None, {"go": np.array(True)})

    with pytest.raises(backpass.InvalidInput, match=r"Recv 'n'\] tensor 0 from rank 0: got float32, expected int32"):
        on_ranks(2, work)


def refusal(made: bytes, fed: dict[str, Any], size: int = 1) -> str:
    with pytest.raises(backpass.Error) as caught:
        on_ranks(size, lambda c: backpass.InferenceSession(made).run(None, fed))
    return str(caught.value)


def test_send_without_others() -> None:
    with pytest.raises(backpass.InvalidInput, match="this process runs alone"):
        backpass.InferenceSession(sender(SENT, 1)).run(None, SENT)
    assert "got rank 5, expected another process than" in refusal(sender(SENT, 5), SENT, 2)
    no = {"go": np.array(False)}
    assert "signal: got false" in refusal(receiver([np.float32], 0), no)


def test_refusals() -> None:
    fed = feeds(7, 1, [(4, 2)])[0]
    assert "group_type: got 6, expected 0 to 5" in refusal(one_node("NcclAllReduce", fed, group_type=6), fed)
    found = refusal(one_node("NcclAllReduce", fed, group_type=4), fed, 2)
    assert "got 4 (horizontal), expected 0 or 1 among 2 processes that form one group" in found
    assert "group_size: got 4, but 2 processes run" in refusal(one_node("AllGather", fed, group_size=4), fed, 2)
    assert "group_size: got 2, but 1 process runs" in refusal(one_node("AllToAll", fed, group_size=2), fed)
    assert "group_size: got 0" in refusal(one_node("AllToAll", fed, group_size=0), fed)
    assert "expected a multiple of group_size 3" in refusal(one_node("AllToAll", fed, group_size=3), fed)
    assert "reduce_algo: got 2" in refusal(one_node("AdasumAllReduce", fed, reduce_algo=2), fed, 2)


def test_groups_of_a_communicator_are_used() -> None:
    """Four ranks in two horizontal groups: 0 and 1, 2 and 3."""
    rows = [parallel.ThreadCommunicator.group(2) for _ in range(2)]

    def groups(rank: int) -> dict[int, Any]:
        return {4: rows[rank // 2][rank % 2]}

    fed = feeds(8, 4, [(3, 2)])
    found = results(4, one_node("NcclAllReduce", fed[0], group_type=4), fed, groups)
    for rank, (mine,) in enumerate(found):
        first = rank // 2 * 2
        np.testing.assert_array_equal(mine, fed[first]["x0"] + fed[first + 1]["x0"])


# ---- Gradients: of the sum of everybody's loss, by what each rank put in.
def gradients(size: int, made: bytes, fed: Sequence[dict[str, Any]], seeds: Sequence[dict[str, Any]], **options: Any):
    asked = backpass.grad(made, wrt=list(fed[0]), seeds=True, standard_only=False).SerializeToString()
    count = len(fed[0])
    both = [{**f, **s} for f, s in zip(fed, seeds, strict=True)]
    return [found[-count:] for found in results(size, asked, both, **options)]


def everybody(size: int, made: bytes, fed: Sequence[dict[str, Any]], seeds: Sequence[dict[str, Any]]) -> float:
    total = 0.0
    for mine, seed in zip(results(size, made, fed), seeds, strict=True):
        total += sum(float((y * s).sum()) for y, s in zip(mine, seed.values(), strict=True))
    return total


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("NcclAllReduce", {}),
        ("AllReduce", {}),
        ("AllGather", {"axis": 0}),
        ("AllGather", {"axis": 1}),
        ("AllGather", {"axis": -1}),
        ("AllToAll", {}),
    ],
)
def test_gradients(op: str, attrs: dict[str, int], size: int) -> None:
    if op in ("AllGather", "AllToAll"):
        attrs = {**attrs, "group_size": size}
    shapes = [(6, 2), (6, 1, 3)]
    fed = feeds(9, size, shapes, "float64")
    made = one_node(op, fed[0], **attrs)
    outputs = results(size, made, fed)[0]
    rng = np.random.default_rng(10)
    seeds = [{f"y{i}_grad": rng.standard_normal(y.shape) for i, y in enumerate(outputs)} for _ in range(size)]
    found = gradients(size, made, fed, seeds)
    for _ in range(3):  # along random directions; the operators are linear
        step = feeds(int(rng.integers(1000)), size, shapes, "float64")
        moved = [{n: f[n] + s[n] for n in f} for f, s in zip(fed, step, strict=True)]
        change = everybody(size, made, moved, seeds) - everybody(size, made, fed, seeds)
        slope = sum(float((g * s).sum()) for mine, d in zip(found, step, strict=True)
                    for g, s in zip(mine, d.values(), strict=True))  # fmt: skip
        assert slope == pytest.approx(change, rel=1e-10)


def megatron_layer(hidden: np.ndarray, first: np.ndarray, second: np.ndarray) -> bytes:
    nodes = [
        helper.make_node("MegatronF", ["x"], ["f"], name="f", domain=MS),
        helper.make_node("MatMul", ["f", "first"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "second"], ["p"]),
        helper.make_node("MegatronG", ["p"], ["y"], name="g", domain=MS, group_type=4),
    ]
    return model(nodes, {"x": hidden, "first": first, "second": second}, ["y"])


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_layer_cut_over_ranks_trains_as_the_whole_one(size: int, reference: bool) -> None:
    rng = np.random.default_rng(11)
    x, w1, w2 = rng.standard_normal((5, 8)), rng.standard_normal((8, 12)), rng.standard_normal((12, 8))
    dy = rng.standard_normal((5, 8))
    t = np.tanh(x @ w1)
    dt = (dy @ w2.T) * (1 - t * t)
    wanted = (t @ w2, dt @ w1.T, x.T @ dt, t.T @ dy)
    cut = [np.split(w1, size, 1), np.split(w2, size, 0)]
    made = megatron_layer(x, cut[0][0], cut[1][0])
    fed = [{"x": x, "first": cut[0][r], "second": cut[1][r]} for r in range(size)]
    rows = parallel.ThreadCommunicator.group(size)
    asked = backpass.grad(made, wrt=["x", "first", "second"], seeds=True, standard_only=False).SerializeToString()

    def groups(rank: int) -> dict[int, Any]:
        return {4: rows[rank]}

    found = results(size, asked, [{**f, "y_grad": dy} for f in fed], groups, reference=reference)
    for y, dx, *_ in found:
        np.testing.assert_allclose(y, wanted[0], rtol=1e-12)
        np.testing.assert_allclose(dx, wanted[1], rtol=1e-12)
    np.testing.assert_allclose(np.concatenate([f[2] for f in found], 1), wanted[2], rtol=1e-12)
    np.testing.assert_allclose(np.concatenate([f[3] for f in found], 0), wanted[3], rtol=1e-12)


def test_gradients_of_megatrons_pair_are_named_as_in_the_original() -> None:
    made = backpass.grad(megatron_layer(*[np.ones((2, 2))] * 3), wrt=["x"], standard_only=False)
    sums = [n for n in made.graph.node if n.op_type == "NcclAllReduce"]
    assert [helper.get_node_attr_value(n, "group_type") for n in sums] == [4]


# ---- Events.
def event(op: str, number: int) -> bytes:
    nodes = [
        helper.make_node("Constant", [], ["event"], value_int=number),
        node(op, ["event", "x"], ["y"]),
    ]
    return model(nodes, {"x": np.zeros(2, np.float32)}, ["y"])


def test_a_wait_ends_when_the_event_is_recorded() -> None:
    x = np.array([1, 2], np.float32)
    waited = []

    def wait() -> None:
        waited.append(backpass.InferenceSession(event("WaitEvent", 71)).run(None, {"x": x})[0])

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.2)
    assert not waited
    (recorded,) = backpass.InferenceSession(event("RecordEvent", 71)).run(None, {"x": x})
    thread.join(30)
    np.testing.assert_array_equal(recorded, x)
    np.testing.assert_array_equal(waited[0], x)
    backpass.InferenceSession(event("WaitEvent", -1)).run(None, {"x": x})


def test_a_wait_for_nothing_can_be_stopped() -> None:
    session = backpass.InferenceSession(event("WaitEvent", 72), time_limit=0.3)
    with pytest.raises(backpass.Cancelled):
        session.run(None, {"x": np.zeros(2, np.float32)})
