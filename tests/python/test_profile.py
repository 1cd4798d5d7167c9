"""What profiles say of the work that steps have to do, and of what the machine could do."""

from __future__ import annotations

import re
import time
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import _core
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
KINDS = {
    np.dtype("float32"): TensorProto.FLOAT,
    np.dtype("int64"): TensorProto.INT64,
    np.dtype("bool"): TensorProto.BOOL,
}


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


def session_of(nodes: list[Any], feeds: dict[str, np.ndarray], outputs: list[str], **symbols: list[Any]) -> Any:
    """The outputs' types are left to the shape rules; `symbols` names extents of inputs that vary."""
    inputs = [
        helper.make_tensor_value_info(name, KINDS[value.dtype], symbols.get(name, value.shape))
        for name, value in feeds.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results)
    opsets = [helper.make_opsetid(*o) for o in (("", 23), ("com.microsoft", 1), ("backpass", 1))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return backpass.InferenceSession(model.SerializeToString(), profile=True, num_threads=1)


def record(
    op: str, *inputs: np.ndarray | None, outputs: int | list[str] = 1, domain: str = "", **attributes: Any
) -> Any:
    """The step of one node. Its inputs are not constants, so that nothing is folded."""
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
    made = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
    node = helper.make_node(op, names, made, "node", domain=domain, **attributes)
    session = session_of([node], feeds, [name for name in made if name])
    session.run(None, feeds)
    steps = session.take_profile().steps
    return max(steps, key=lambda step: step.flops)


# ---- Operations, against formulas written by hand. A multiplication and an addition are two.
def product(m: int, n: int, k: int) -> int:
    return 2 * m * n * k


N, C, H, W = 2, 6, 9, 8  # images
M, K = 12, 3  # kernels
OH, OW = H - K + 1, W - K + 1
IMAGES, DY = zeros(N, C, H, W), zeros(N, M, OH, OW)
CONV = 2 * N * M * OH * OW * C * K * K
B, HEADS, Q, S, D, DV = 2, 4, 5, 7, 8, 16  # attention
ATTENTION = zeros(B, HEADS, Q, D), zeros(B, HEADS, S, D), zeros(B, HEADS, S, DV)
SHARED = zeros(B, Q, HEADS * D), zeros(B, S, 2 * D), zeros(B, S, 2 * D)
T, BATCH, SIZE, HIDDEN = 5, 3, 4, 6  # recurrent
ROWS, WIDTH, CLASSES = 10, 8, 20
LOSS = zeros(ROWS, WIDTH), zeros(WIDTH, CLASSES), zeros(ROWS, dtype="int64")
OURS, MS = {"domain": "backpass"}, {"domain": "com.microsoft"}
HEAD = product(ROWS, CLASSES, WIDTH)

FLOPS: dict[str, tuple[tuple[Any, ...], dict[str, Any], int]] = {
    "MatMul": ((zeros(5, 7), zeros(7, 3)), {}, product(5, 3, 7)),
    "MatMul of many": ((zeros(2, 4, 5, 7), zeros(4, 7, 3)), {}, 8 * product(5, 3, 7)),
    "Gemm": ((zeros(7, 5), zeros(3, 7), zeros(3)), {"transA": 1, "transB": 1}, product(5, 3, 7)),
    "FusedMatMul": ((zeros(7, 5), zeros(3, 7)), {"transA": 1, "transB": 1, **MS}, product(5, 3, 7)),
    "FusedMatMul of many": ((zeros(6, 7, 5), zeros(6, 7, 3)), {"transA": 1, **MS}, 6 * product(5, 3, 7)),
    "Conv": ((IMAGES, zeros(M, C, K, K)), {}, CONV),
    "Conv in groups": ((IMAGES, zeros(M, C // 3, K, K)), {"group": 3}, CONV // 3),
    "Conv with strides": ((IMAGES, zeros(M, C, K, K)), {"strides": [2, 2]}, 2 * N * M * 4 * 3 * C * K * K),
    "ConvTranspose": ((IMAGES, zeros(C, M, K, K)), {}, 2 * N * C * H * W * M * K * K),
    "ConvGrad": ((DY, IMAGES, zeros(M, C, K, K)), {"outputs": 3, **MS}, 2 * CONV),
    "ConvGrad of weights": ((DY, IMAGES, zeros(M, C, K, K)), {"outputs": ["", "dw"], **MS}, CONV),
    "ConvGrad of images": ((DY, IMAGES, zeros(M, C, K, K)), {"outputs": ["dx"], **MS}, CONV),
    "Attention": (ATTENTION, {}, 2 * B * HEADS * Q * S * (D + DV)),
    "Attention, causal": (ATTENTION, {"is_causal": 1}, 2 * B * HEADS * (Q * (Q + 1) // 2) * (D + DV)),
    "Attention with shared keys": (SHARED, {"q_num_heads": HEADS, "kv_num_heads": 2}, 4 * B * HEADS * Q * S * D),
    "AttentionGrad": ((zeros(B, HEADS, Q, DV), *ATTENTION), {"outputs": 3, **OURS},
                      2 * B * HEADS * Q * S * (3 * D + 2 * DV)),
    "LSTM": ((zeros(T, BATCH, SIZE), zeros(1, 4 * HIDDEN, SIZE), zeros(1, 4 * HIDDEN, HIDDEN)),
             {"hidden_size": HIDDEN}, T * product(BATCH, 4 * HIDDEN, SIZE + HIDDEN)),
    "GRU both ways": ((zeros(T, BATCH, SIZE), zeros(2, 3 * HIDDEN, SIZE), zeros(2, 3 * HIDDEN, HIDDEN)),
                      {"hidden_size": HIDDEN, "direction": "bidirectional"},
                      2 * T * product(BATCH, 3 * HIDDEN, SIZE + HIDDEN)),
    "LinearCrossEntropy": (LOSS, OURS, HEAD),
    "LinearCrossEntropy with gradients": (LOSS, {"outputs": 3, **OURS}, 3 * HEAD),
    "LinearCrossEntropy, frozen": (LOSS, {"outputs": 2, **OURS}, 2 * HEAD),
    "Relu": ((zeros(5, 7),), {}, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", FLOPS)
def test_operations_are_those_of_the_formula(case: str) -> None:
    inputs, more, expected = FLOPS[case]
    assert record(re.split("[ ,]", case)[0], *inputs, **more).flops == expected


def test_operations_of_a_training_step_are_three_times_those_of_the_forward_pass() -> None:
    """Two layers: the gradient of the first one's input is not needed."""
    from backpass import ORTModule
    from backpass.ortmodule import RuntimeOptions

    layers = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))
    ours = ORTModule(layers, options=RuntimeOptions(profile=True))
    ours(torch.randn(8, 20)).sum().backward()
    first, second = product(8, 30, 20), product(8, 10, 30)
    profile = ours.take_profile()
    assert sum(step.flops for step in profile.steps) == 2 * first + 3 * second
    assert ours.take_profile().steps == []


def test_nothing_was_recorded() -> None:
    assert "profile=True" in backpass.Profile([]).table()


def test_operations_of_a_trainer() -> None:
    from backpass.trainer.engine import Description, Engine, Settings

    def loss(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(scores, label)

    inputs, outputs = [[Description(name) for name in names] for names in (("x", "label"), ("loss", "scores"))]
    settings = Settings("sgd", {}, session_options=backpass.SessionOptions(profile=True, num_threads=1))
    engine = Engine.from_torch(torch.nn.Linear(20, 10), loss, inputs, outputs, 0, settings)
    assert engine.take_profile().steps == []
    engine.train_step({"x": torch.randn(8, 20), "label": torch.zeros(8, dtype=torch.long)}, 0.1)
    assert sum(step.flops for step in engine.take_profile().steps) == 2 * product(8, 10, 20)
    assert engine.take_profile().steps == []


def test_numbers_follow_the_extents_of_each_run() -> None:
    feeds = {"x": zeros(4, 6), "w": zeros(6, 5)}
    session = session_of([helper.make_node("MatMul", ["x", "w"], ["y"])], feeds, ["y"], x=["n", 6])
    for rows in (4, 9, 4):
        session.run(None, {**feeds, "x": zeros(rows, 6)})
        (step,) = session.take_profile().steps
        assert step.flops == product(rows, 5, 6)
        assert step.bytes == 4 * (rows * 6 + 6 * 5 + rows * 5)


def test_numbers_are_there_where_data_decide_the_size() -> None:
    """What comes after NonZero is bound while running."""
    nodes = [
        helper.make_node("NonZero", ["chosen"], ["found"]),
        helper.make_node("Transpose", ["found"], ["indices"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "indices"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["y"]),
    ]
    feeds = {"chosen": np.array([1, 0, 1, 1, 0], bool), "x": zeros(5, 6), "w": zeros(6, 4)}
    session = session_of(nodes, feeds, ["y"])
    for count in (3, 1):
        session.run(None, {**feeds, "chosen": np.arange(5) < count})
        assert [s.flops for s in session.take_profile().steps if s.flops] == [product(count, 4, 6)]


# ---- Bytes
def test_bytes_are_those_of_operands_and_results() -> None:
    assert record("Add", zeros(8, 5), zeros(5)).bytes == 4 * (8 * 5 + 5 + 8 * 5)
    assert record("MatMul", zeros(5, 7), zeros(7, 3)).bytes == 4 * (35 + 21 + 15)


def test_an_operand_that_is_read_twice_counts_once() -> None:
    feeds = {"x": zeros(5, 5)}
    session = session_of([helper.make_node("MatMul", ["x", "x"], ["y"])], feeds, ["y"])
    session.run(None, feeds)
    (step,) = session.take_profile().steps
    assert step.bytes == 2 * 4 * 25


def test_a_row_of_a_table_is_not_the_table() -> None:
    table, places = zeros(1000, 16), zeros(3, dtype="int64")
    assert record("Gather", table, places).bytes == 4 * 2 * 3 * 16 + 8 * 3
    elements = record("GatherElements", table, zeros(3, 16, dtype="int64"))
    assert elements.bytes == (4 + 4 + 8) * 3 * 16


def test_views_are_no_steps() -> None:
    feeds = {"x": zeros(4, 6)}
    nodes = [helper.make_node("Flatten", ["x"], ["f"], axis=0), helper.make_node("Softmax", ["f"], ["y"])]
    session = session_of(nodes, feeds, ["y"])
    session.run(None, feeds)
    assert [(s.op, s.bytes) for s in session.take_profile().steps] == [("Softmax", 2 * 4 * 24)]


# ---- Limits and the table
@pytest.fixture(scope="module")
def profile() -> backpass.Profile:
    feeds = {"x": zeros(64, 32), "w": zeros(32, 16)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    session = session_of(nodes, feeds, ["y"])
    for _ in range(3):
        session.run(None, feeds)
    found: backpass.Profile = session.take_profile()
    assert [s.op for s in found.steps] == 3 * ["MatMul", "Softmax"]
    assert all(s.threads == 1 for s in found.steps)
    return found


def test_summary_of_a_machine_that_is_told(profile: backpass.Profile) -> None:
    """1 GF/s and 1000 GB/s: the product is arithmetic, the rest memory."""
    found = profile.summary(peak_gflops=1.0, memory_gbs=1000.0)
    rows = {row.op: row for row in found.rows}
    assert rows["MatMul"].limit_us == pytest.approx(3 * product(64, 16, 32) / 1e3)
    assert rows["Softmax"].limit_us == pytest.approx(3 * 2 * 4 * 64 * 16 / 1e6)
    assert rows["Softmax"].arithmetic_us == 0
    assert found.limit_us == pytest.approx(sum(row.limit_us for row in found.rows))
    assert found.duration_us == pytest.approx(profile.total_us)
    assert all(row.calls == 3 for row in found.rows)


def test_table_says_what_limits_each_operator(profile: backpass.Profile) -> None:
    head, *rows, last = profile.table(by="operator", peak_gflops=1.0, memory_gbs=1000.0).splitlines()
    assert head.split() == ["operator", "calls", "ms", "share", "GF/s", "GB/s", "limit", "reached"]
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert cells["MatMul"][0] == cells["Softmax"][0] == "3"
    assert cells["MatMul"][-2] == "arithmetic"
    assert cells["Softmax"][-2] == "memory"
    found = profile.summary(peak_gflops=1.0, memory_gbs=1000.0)
    took = next(row.duration_us for row in found.rows if row.op == "MatMul")
    assert float(cells["MatMul"][1]) == pytest.approx(took / 1e3, abs=1e-3)
    assert float(cells["MatMul"][3]) == pytest.approx(3 * product(64, 16, 32) / took / 1e3, abs=0.06)
    assert last == (
        f"possible: {found.limit_us / 1e3:.3f} ms of {found.duration_us / 1e3:.3f} ms "
        f"({found.limit_us / found.duration_us:.2f}) at 1.0 GF/s, 1000.0 GB/s"
    )


def test_table_by_shapes_is_cut_short(profile: backpass.Profile) -> None:
    lines = profile.table(1, peak_gflops=1.0, memory_gbs=1.0).splitlines()
    assert len(lines) == 4
    assert "float32[64,32], float32[32,16] -> float32[64,16]" in profile.table(peak_gflops=1.0, memory_gbs=1.0)
    assert lines[2] == "... and 1 more"


def test_profiles_of_nothing_and_bad_arguments(profile: backpass.Profile) -> None:
    assert "possible: 0.000 ms" in backpass.Profile([]).table(peak_gflops=1.0, memory_gbs=1.0)
    with pytest.raises(ValueError, match="by: got 'name', expected 'operator' or 'shapes'"):
        profile.table(by="name")


def test_this_machine_is_measured_once() -> None:
    limits = backpass.machine_limits(1)
    assert isinstance(limits, backpass.MachineLimits)
    assert limits.threads == 1
    assert limits.gflops > 0.5
    assert [m.bytes for m in limits.memory] == sorted(m.bytes for m in limits.memory)
    assert all(m.gbs > 0.1 for m in limits.memory)
    began = time.perf_counter()
    assert backpass.machine_limits(1).gflops == limits.gflops
    assert time.perf_counter() - began < 0.01
    only = _core.told_limits(gflops=5.0, threads=1)
    assert (only.gflops, only.gbs(10)) == (5.0, limits.gbs(10))


def test_the_table_of_this_machine_needs_no_numbers(profile: backpass.Profile) -> None:
    assert re.search(r"possible: .* GF/s, [\d.]+ to [\d.]+ GB/s, 1 thread$", str(profile))
    assert "possible: " in profile._repr_html_()
