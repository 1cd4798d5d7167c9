"""Losses of onnxblock against torch: values and gradients, for every reduction and weighting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from backpass import onnxblock
from backpass._ort import InferenceSession
from backpass.onnxblock import loss
from onnx import helper
from torch.nn import functional

RNG = np.random.default_rng(3)
REDUCTIONS = ("mean", "sum", "none")
# Elements at and far from where functions bend; 1000 is beyond what exp can take.
LOGITS = np.array([[0.0, 1.0, -1.0], [30.0, -30.0, 0.5], [1000.0, -1000.0, 88.0], [-0.25, 2.0, 3.0]])


@dataclass(frozen=True)
class Case:
    """One loss: how Backpass and torch are asked for it, and on what."""

    name: str
    make: Callable[[str], onnxblock.Block]
    torch_loss: Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]
    scores: np.ndarray
    target: np.ndarray

    def __str__(self) -> str:
        return self.name


def labels(count: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, count, shape)


def binary(name: str, scores: np.ndarray, target: np.ndarray, **weights: Any) -> Case:
    tensors = {k: torch.tensor(v) for k, v in weights.items()}
    return Case(
        name,
        lambda reduction: loss.BCEWithLogitsLoss(reduction=reduction, **weights),
        lambda x, t, reduction: functional.binary_cross_entropy_with_logits(
            x, t, reduction=reduction, **{k: v.to(x.dtype) for k, v in tensors.items()}
        ),
        scores,
        target,
    )


def classes(name: str, scores: np.ndarray, target: np.ndarray, weight: Any = None, ignore: int | None = None) -> Case:
    tensor = torch.tensor(np.ones(scores.shape[1]) if weight is None else weight)
    return Case(
        name,
        lambda reduction: loss.CrossEntropyLoss(weight, reduction, ignore),
        lambda x, t, reduction: functional.cross_entropy(
            x, t, tensor.to(x.dtype), reduction=reduction, ignore_index=-100 if ignore is None else ignore
        ),
        scores,
        target,
    )


PLAIN = RNG.standard_normal((4, 3))
SOFT = RNG.random((4, 3))
WEIGHTS = np.array([0.5, 2.0, 1.25])
CASES = [
    Case("mse", loss.MSELoss, lambda x, t, r: functional.mse_loss(x, t, reduction=r), PLAIN, SOFT),
    Case("l1", loss.L1Loss, lambda x, t, r: functional.l1_loss(x, t, reduction=r), PLAIN, SOFT),
    Case("l1 tied", loss.L1Loss, lambda x, t, r: functional.l1_loss(x, t, reduction=r), PLAIN, PLAIN.round()),
    Case("mse 1d", loss.MSELoss, lambda x, t, r: functional.mse_loss(x, t, reduction=r), PLAIN[0], SOFT[0]),
    binary("bce", PLAIN, SOFT),
    binary("bce far", LOGITS, SOFT.round()),
    binary("bce weight", LOGITS, SOFT, weight=WEIGHTS),
    binary("bce pos_weight", PLAIN, SOFT, pos_weight=WEIGHTS),
    binary("bce both", LOGITS, SOFT, weight=SOFT, pos_weight=np.array(3.0)),
    classes("ce", PLAIN, labels(3, 4)),
    classes("ce far", LOGITS, labels(3, 4)),
    classes("ce weights", PLAIN, labels(3, 4), WEIGHTS),
    classes("ce ignore", PLAIN, np.array([1, 2, 0, 2]), None, 2),
    classes("ce ignore -1", PLAIN, np.array([1, -1, 0, -1]), None, -1),
    classes("ce weights ignore", PLAIN, np.array([1, 2, 0, 2]), WEIGHTS, 2),
    classes("ce image", RNG.standard_normal((2, 5, 3, 7)), labels(5, 2, 3, 7), RNG.random(5) + 0.5),
    classes("ce one", RNG.standard_normal((1, 1)), labels(1, 1)),
]


def scaled_model(scores: np.ndarray) -> onnx.ModelProto:
    """y = x * w: fed with ones and the scores, the gradient of w is that of the scores."""
    code = helper.np_dtype_to_tensor_dtype(scores.dtype)
    shape = [f"d{i}" for i in range(scores.ndim - 1)]
    shape.insert(min(1, scores.ndim - 1), scores.shape[min(1, scores.ndim - 1)])
    weight = onnx.numpy_helper.from_array(scores, "w")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"], "scale")],
        "g",
        [helper.make_tensor_value_info("x", code, shape)],
        [helper.make_tensor_value_info("y", code, shape)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def target_name(case: Case) -> str:
    return "labels" if case.target.dtype == np.int64 else "target"


def tolerance(dtype: Any) -> dict[str, float]:
    return {"rtol": 2e-5, "atol": 1e-6} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-14}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case: Case, reduction: str, dtype: Any) -> None:
    scores = case.scores.astype(dtype)
    target = case.target if target_name(case) == "labels" else case.target.astype(dtype)
    with onnxblock.base(scaled_model(scores)) as accessor:
        name = case.make(reduction)("y")
    model = accessor.model
    model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name=name))
    session = InferenceSession(model.SerializeToString())
    (value,) = session.run(None, {"x": np.ones_like(scores), target_name(case): target})
    wanted = case.torch_loss(torch.tensor(scores), torch.tensor(target), reduction).numpy()
    assert value.dtype == dtype
    assert value.shape == wanted.shape
    np.testing.assert_allclose(value, wanted, **tolerance(dtype))


class Training(onnxblock.TrainingBlock):
    def __init__(self, block: onnxblock.Block, reduction: str) -> None:
        super().__init__()
        self.block, self.reduction = block, reduction
        self.requires_grad("w")

    def build(self, name: str) -> Any:
        value = self.block(name)
        return onnxblock.blocks.ReduceSum(keepdims=False)(value) if self.reduction == "none" else value


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(case: Case, reduction: str, dtype: Any) -> None:
    scores = case.scores.astype(dtype)
    target = case.target if target_name(case) == "labels" else case.target.astype(dtype)
    block = Training(case.make(reduction), reduction)
    with onnxblock.base(scaled_model(scores)):
        block("y")
    training, evaluation = block.to_model_proto()
    for model in (training, evaluation):
        onnx.checker.check_model(model, full_check=True)
    buffer = np.full_like(scores, 7.0)
    feeds = {"x": np.ones_like(scores), target_name(case): target, "w": scores}
    state = {"w_grad.accumulation.buffer": buffer, "lazy_reset_grad": np.array([True])}
    value = InferenceSession(training.SerializeToString()).run(None, feeds | state)[0]

    leaf = torch.tensor(scores, requires_grad=True)
    wanted = case.torch_loss(leaf, torch.tensor(target), reduction).sum()
    wanted.backward()
    np.testing.assert_allclose(value, wanted.detach(), **tolerance(dtype))
    np.testing.assert_allclose(buffer, leaf.grad, **tolerance(dtype))
    np.testing.assert_array_equal(InferenceSession(evaluation.SerializeToString()).run(None, feeds)[0], value)


@pytest.mark.parametrize("kind", [loss.MSELoss, loss.L1Loss, loss.BCEWithLogitsLoss, loss.CrossEntropyLoss])
def test_a_loss_without_reduction_is_no_loss_to_train(kind: Any) -> None:
    block = Training(kind(reduction="none"), "kept")
    with onnxblock.base(scaled_model(PLAIN)), pytest.raises(RuntimeError, match="expected a scalar"):
        block("y")
