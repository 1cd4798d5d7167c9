"""Known defects of ONNX Runtime Training 1.19.2 and its later sources, one test each: Backpass does what was meant.

Each test names the defect in its docstring. `python -m pytest -v tests/python/test_original_defects.py` is the table.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import sys
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import _core, artifacts, onnxblock
from backpass.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from onnx import numpy_helper, parser

RATES = [0.0, 0.05, *(0.1 * (10 - t) / 8 for t in range(2, 11)), 0.0]  # warm-up 2, total 10, from 0.1


def model(body: str = "y = MatMul(x, w)", outputs: str = "float[N, 3] y") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => ({outputs}) {{ {body} }}'
    made = parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return made


def generate(folder: Path, **options: Any) -> None:
    settings: dict[str, Any] = {"loss": artifacts.LossType.MSELoss, "optimizer": artifacts.OptimType.AdamW}
    artifacts.generate_artifacts(model(), requires_grad=["w"], artifact_directory=folder, **(settings | options))


def load(folder: Path, checkpoint: str = "checkpoint") -> tuple[CheckpointState, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


BATCH = (np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32))


# ---- Schedules and checkpoints.
def test_linear_schedule_takes_warm_up_and_total_in_that_order(tmp_path: Path) -> None:
    """The Python scheduler swapped them: warm-up 2 of 10 gave 0, 0.01, 0.02 … 0.09, 0, 0."""
    generate(tmp_path)
    _, module, optimizer = load(tmp_path)
    scheduler = LinearLRScheduler(optimizer, warmup_step_count=2, total_step_count=10, initial_lr=0.1)
    rates = [optimizer.get_learning_rate()]
    for _ in range(11):
        module(*BATCH)
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    np.testing.assert_allclose(rates, RATES, atol=1e-7)


def test_registering_a_schedule_in_c_sets_the_first_rate(tmp_path: Path) -> None:
    """The C function stepped the scheduler before it knew the initial rate: no warm-up for the first step."""
    generate(tmp_path)
    library = ctypes.CDLL(str(Path(_core.__file__).parent / "lib/libbackpass.so"))
    library.bp_last_error.restype = ctypes.c_char_p
    state, session, rate = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()

    def call(name: str, *arguments: Any) -> None:
        assert getattr(library, name)(*arguments) == 0, library.bp_last_error()

    call("bp_load_checkpoint", os.fsencode(tmp_path / "checkpoint"), ctypes.byref(state))
    files = [os.fsencode(tmp_path / f"{kind}_model.onnx") for kind in ("training", "eval", "optimizer")]
    call("bp_create_training_session", state, *files, None, ctypes.byref(session))
    call("bp_set_learning_rate", session, ctypes.c_float(0.7))
    call("bp_register_linear_lr_scheduler", session, ctypes.c_int64(2), ctypes.c_int64(10), ctypes.c_float(0.1))
    call("bp_get_learning_rate", session, ctypes.byref(rate))
    assert rate.value == 0.0
    library.bp_release_training_session(session)
    library.bp_release_checkpoint(state)


def test_the_learning_rate_survives_a_checkpoint(tmp_path: Path) -> None:
    """Only the initial rate and the step were stored: after loading the rate was 0.001."""
    generate(tmp_path)
    state, module, optimizer = load(tmp_path)
    optimizer.set_learning_rate(0.03125)
    module(*BATCH)
    optimizer.step()
    CheckpointState.save_checkpoint(state, tmp_path / "later", include_optimizer_state=True)
    assert load(tmp_path, "later")[2].get_learning_rate() == 0.03125


# ---- Crashes.
def test_parameters_can_be_set_before_there_is_a_module(tmp_path: Path) -> None:
    """An uninitialised pointer: segmentation fault."""
    generate(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    state.parameters["w"] = np.full((4, 3), 7, np.float32)
    np.testing.assert_array_equal(state.parameters["w"].data, 7)


def test_evaluating_without_an_eval_model_is_an_error(tmp_path: Path) -> None:
    """A segmentation fault."""
    generate(tmp_path)
    module = Module(tmp_path / "training_model.onnx", CheckpointState.load_checkpoint(tmp_path / "checkpoint"))
    with pytest.raises(backpass.InvalidInput, match="without an eval model; give it one"):
        module.eval()(*BATCH)


LABELLED = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 3] x, int64[N] labels) => (loss) { loss = SoftmaxCrossEntropyLoss<ignore_index = -1>(x, labels) }"""


@pytest.mark.parametrize("count", [0, 4])
def test_no_label_that_counts(count: int) -> None:
    """Of no labels the process died of a division by zero; of ignored ones only, the loss was 0 for torch's NaN."""
    x, labels = np.ones((count, 3), np.float32), np.full(count, -1)
    (loss,) = backpass.InferenceSession(parser.parse_model(LABELLED)).run(None, {"x": x, "labels": labels})
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(x), torch.from_numpy(labels), ignore_index=-1)
    np.testing.assert_array_equal(loss, expected.numpy())


# ---- Small Python mistakes.
def test_parameters_and_properties_have_a_repr(tmp_path: Path) -> None:
    """TypeError: they returned lists."""
    generate(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    state.properties["epoch"] = 3
    assert repr(state.parameters) == "Parameters(['w'])"
    assert repr(state.properties) == "Properties({'epoch': 3})"


def loss_of(block: onnxblock.Block, feeds: dict[str, np.ndarray]) -> np.ndarray:
    with onnxblock.base(model()) as accessor:
        name = block("y")
        proto = accessor.model
    del proto.graph.output[:]
    proto.graph.output.add(name=name)
    result: np.ndarray = backpass.InferenceSession(proto).run([name], feeds)[0]
    return result


@pytest.mark.parametrize(
    ("kind", "torch_kind"),
    [
        (onnxblock.loss.MSELoss, torch.nn.MSELoss),
        (onnxblock.loss.L1Loss, torch.nn.L1Loss),
        (onnxblock.loss.BCEWithLogitsLoss, torch.nn.BCEWithLogitsLoss),
    ],
)
def test_losses_without_reduction(kind: Any, torch_kind: Any) -> None:
    """reduction="none" raised TypeError when the block was made."""
    rng = np.random.default_rng(1)
    x, target = rng.standard_normal((5, 4)).astype(np.float32), rng.random((5, 3)).astype(np.float32)
    y = x @ numpy_helper.to_array(model().graph.initializer[0])
    expected = torch_kind(reduction="none")(torch.from_numpy(y), torch.from_numpy(target)).numpy()
    np.testing.assert_allclose(loss_of(kind(reduction="none"), {"x": x, "target": target}), expected, rtol=1e-4)


def test_cross_entropy_with_class_weights() -> None:
    """More than one weight: ValueError, the truth value of an array."""
    rng = np.random.default_rng(1)
    x, labels = rng.standard_normal((5, 4)).astype(np.float32), rng.integers(0, 3, 5)
    weight = np.array([0.2, 1.0, 3.0], np.float32)
    y = x @ numpy_helper.to_array(model().graph.initializer[0])
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(y), torch.from_numpy(labels), torch.from_numpy(weight)
    ).numpy()
    got = loss_of(onnxblock.loss.CrossEntropyLoss(weight=weight), {"x": x, "labels": labels})
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_blocks_whose_class_does_not_call_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting such a block printed an ignored AttributeError from __del__."""

    class Doubled(onnxblock.Block):
        def __init__(self) -> None:
            self.loss = onnxblock.loss.MSELoss()
            self.add = onnxblock.blocks.Add()

        def build(self, name: str) -> str:
            loss = self.loss(name)
            return str(self.add(loss, loss))

    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        block = Doubled()
        generate(tmp_path, loss=block)
        del block
        gc.collect()
    assert (ignored, printed.getvalue()) == ([], "")
    _, module, _ = load(tmp_path)
    y = BATCH[0] @ numpy_helper.to_array(model().graph.initializer[0])
    assert float(module(*BATCH)) == pytest.approx(2 * float((y**2).mean()), rel=1e-5)


def test_blocks_outside_of_a_base_say_what_to_do() -> None:
    """An AttributeError about None."""
    with pytest.raises(RuntimeError, match=r"onnxblock\.base"):
        onnxblock.blocks.Neg()("y")


def test_a_wrong_optimizer_is_refused_before_any_file_is_written(tmp_path: Path) -> None:
    """Training model, eval model and checkpoint were there when the TypeError came."""
    with pytest.raises(TypeError, match="optimizer: got"):
        generate(tmp_path, optimizer="AdamW")
    assert os.listdir(tmp_path) == []


def test_eval_models_of_batch_normalisation_load(tmp_path: Path) -> None:
    """The eval model kept the outputs that only training has, and the session refused its own artifact."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y)
    <float[3] w = {1, 2, 3}, float[3] b = {0, 0, 1}, float[3] mean = {0, 1, 2}, float[3] var = {1, 4, 9}>
    { y, m, v = BatchNormalization<training_mode = 1>(x, w, b, mean, var) }"""
    artifacts.generate_artifacts(
        parser.parse_model(text),
        requires_grad=["w", "b"],
        frozen_params=["mean", "var"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    onnx.checker.check_model(onnx.load(tmp_path / "eval_model.onnx"), full_check=True)
    _, module, _ = load(tmp_path)
    x = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)
    y = (x - [0, 1, 2]) / np.sqrt(np.array([1, 4, 9]) + 1e-5) * [1, 2, 3] + [0, 0, 1]
    assert float(module.eval()(x, np.zeros_like(x))) == pytest.approx(float((y**2).mean()), rel=1e-4)


# ---- Gradients.
def gradient(body: str, feeds: dict[str, np.ndarray], shapes: str, wrt: list[str]) -> list[np.ndarray]:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g ({shapes}) => (y) {{ {body} }}')
    differentiated = backpass.grad(proto, wrt)
    session = backpass.InferenceSession(differentiated)
    names = [o.name for o in session.get_outputs()][-len(wrt) :]
    feeds = feeds | {i.name: np.ones((), np.float32) for i in session.get_inputs() if i.name not in feeds}
    return session.run(names, feeds)


def test_where_reduces_the_gradients_of_operands_it_broadcast() -> None:
    """They came back with the shape of the result."""
    rng = np.random.default_rng(0)
    condition = rng.random((4, 1, 5)) < 0.5
    a, b = rng.standard_normal((3, 1)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    got = gradient(
        "z = Where(c, a, b) s = Mul(z, z) y = ReduceSum<keepdims = 0>(s)",
        {"c": condition, "a": a, "b": b},
        "bool[4, 1, 5] c, float[3, 1] a, float[5] b",
        ["a", "b"],
    )
    leaves = [torch.from_numpy(v).requires_grad_() for v in (a, b)]
    (torch.where(torch.from_numpy(condition), *leaves) ** 2).sum().backward()
    for ours, theirs in zip(got, leaves, strict=True):
        np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    "op",
    [
        "GlobalMaxPool(x)",
        "MaxPool<kernel_shape = [2, 2]>(x)",
        "ReduceMax<axes = [2, 3]>(x)",
        "ReduceMin<axes = [2, 3]>(x)",
    ],
)
def test_ties_share_a_gradient_and_do_not_multiply_it(op: str) -> None:
    """GlobalMaxPool gave the whole gradient to every tied maximum."""
    x = np.zeros((1, 2, 2, 2), np.float32)
    x[0, 1, 0, 0] = -1 if "Min" in op else 1  # the second channel has one winner
    (got,) = gradient(f"z = {op} y = ReduceSum<keepdims = 0>(z)", {"x": x}, "float[1, 2, 2, 2] x", ["x"])
    np.testing.assert_allclose(got.sum((2, 3)), [[1, 1]])
    np.testing.assert_array_equal(got[0, 1], [[1, 0], [0, 0]])


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_tied_operands_share_a_gradient(op: str) -> None:
    """As the original does: an equal part to each."""
    a = np.array([1.0, 2.0, 3.0], np.float32)
    b = np.array([1.0, 3.0, 2.0], np.float32)
    got = gradient(
        f"z = {op}(a, b) y = ReduceSum<keepdims = 0>(z)", {"a": a, "b": b}, "float[3] a, float[3] b", ["a", "b"]
    )
    np.testing.assert_allclose(got[0] + got[1], 1)
    np.testing.assert_allclose(got[0][0], 0.5)


@pytest.mark.parametrize("embedding", ["0", "1"])
@pytest.mark.parametrize("label", ["0", "1"])
def test_few_labels_count_whatever_the_switches_say(
    label: str, embedding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch for sparse labels had no effect, the one for embeddings decided; set to 0, it broke the label hook."""
    monkeypatch.setenv("ORTMODULE_ENABLE_LABEL_SPARSE_OPTIMIZER", label)
    monkeypatch.setenv("ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER", embedding)
    generate(tmp_path, loss=onnxblock.loss.CrossEntropyLoss(ignore_index=-100))
    state, module, _ = load(tmp_path)
    x = np.random.default_rng(2).standard_normal((30, 4)).astype(np.float32)
    labels = np.full(30, -100)
    labels[[3, 20]] = 1, 2
    weight = torch.from_numpy(np.array(state.parameters["w"].data)).requires_grad_()
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(x) @ weight, torch.from_numpy(labels))
    expected.backward()
    assert float(module(x, labels)) == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(state.parameters["w"].grad, weight.grad.numpy(), rtol=1e-4, atol=1e-6)


# ---- Rewriting and memory.
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("cut", ["one part", "two parts", "across"])
def test_slices_of_concatenations(count: int, cut: str) -> None:
    """The rewriting of Concat and Slice was right for three inputs, and changed the graph before counting them."""
    starts, ends = {"one part": (0, 2), "two parts": (0, 4), "across": (1, 2 * count - 1)}[cut]
    names = [f"a{i}" for i in range(count)]
    shapes = ", ".join(f"float[2, 3] {name}" for name in names)
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g ({shapes}) => (y, z)
    <int64[1] from = {{{starts}}}, int64[1] to = {{{ends}}}, int64[1] axis = {{0}}, int64[1] two = {{2}}>
    {{ c = Concat<axis = 0>({", ".join(names)}) s = Slice(c, from, to, axis) r = Relu(s) y = Neg(r)
       t = Slice(c, from, two, axis) z = Neg(t) }}""")
    feeds = {name: np.random.default_rng(i).standard_normal((2, 3)).astype(np.float32) for i, name in enumerate(names)}
    y, z = backpass.InferenceSession(proto).run(None, feeds)
    whole = np.concatenate([feeds[name] for name in names])
    np.testing.assert_array_equal(y, -np.maximum(whole[starts:ends], 0))
    np.testing.assert_array_equal(z, -whole[starts:2])


def planned(text: str) -> Any:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[64, 64] x) => (y) {text}')
    return backpass.InferenceSession(proto).plan({"x": np.zeros((64, 64), np.float32)})


def test_planned_memory_counts_every_output_of_a_node() -> None:
    """The saving of recomputing a node with several outputs was that of the last one."""
    body = "p0, p1, p2, p3 = Split<axis = 0>(x, sizes) m0 = Add(p0, p1) m1 = Add(p2, p3) y = Concat<axis = 0>(m0, m1)"
    report = planned(f"<int64[4] sizes = {{16, 16, 16, 16}}> {{ {body} }}")
    assert report.lower_bound_bytes >= 4 * 16 * 64 * 4


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_occurrence_is_counted(count: int) -> None:
    """A kind of subgraph was counted when it was first seen, and never again."""
    body = "h0 = Identity(x) " + "".join(f"h{i + 1} = Softmax(h{i}) " for i in range(count))
    kept = ", ".join(f"h{i + 1}" for i in range(count))
    report = planned(f"{{ {body} y = Concat<axis = 0>({kept}) }}")
    assert str(report).count("[Softmax ") == count
    assert report.lower_bound_bytes == count * 64 * 64 * 4
