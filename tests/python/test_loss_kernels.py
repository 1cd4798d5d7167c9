"""Cross entropy in training against torch in float64: its gradient works from the scores, so nothing is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from backpass import _core
from onnx import TensorProto, helper

IGNORED = -100


def session(x: torch.Tensor, weights: torch.Tensor | None, threads: int, more_outputs: bool, reduction: str) -> Any:
    kind = TensorProto.FLOAT if x.dtype == torch.float32 else TensorProto.DOUBLE
    positions = (x.shape[0], *x.shape[2:])
    inputs = [
        helper.make_tensor_value_info("x", kind, x.shape),
        helper.make_tensor_value_info("l", TensorProto.INT64, positions),
    ]
    if weights is not None:
        inputs.append(helper.make_tensor_value_info("w", kind, weights.shape))
    outputs = [helper.make_tensor_value_info("y", kind, positions if reduction == "none" else [])]
    if more_outputs:
        outputs.append(helper.make_tensor_value_info("p", kind, x.shape))
    node = helper.make_node(
        "SoftmaxCrossEntropyLoss",
        [v.name for v in inputs],
        [v.name for v in outputs],
        ignore_index=IGNORED,
        reduction=reduction,
    )
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 23)]
    )
    options = _core.SessionOptions()
    options.num_threads = threads
    return _core.ModuleSession.from_bytes(model.SerializeToString(), ["x"], options)


def run(
    x: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor | None = None,
    reduction: str = "mean",
    threads: int = 1,
    more_outputs: bool = False,
) -> list[np.ndarray]:
    """The loss and the gradient of the scores."""
    s = session(x, weights, threads, more_outputs, reduction)
    results, kept = s.forward([x, labels] + ([] if weights is None else [weights]), True)
    dy = flow(labels, reduction).to(x.dtype)
    seeds = [dy, torch.zeros_like(x)] if more_outputs else [dy]
    return [torch.from_dlpack(t).numpy() for t in (results[0], s.backward(kept, seeds)[0])]


def flow(labels: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction != "none":
        return torch.tensor(1.5, dtype=torch.float64)
    return torch.linspace(-1, 2, labels.numel(), dtype=torch.float64).reshape(labels.shape)


def expected(
    x: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None, reduction: str = "mean"
) -> list[np.ndarray]:
    leaf = x.double().requires_grad_()
    w = None if weights is None else weights.double()
    loss = torch.nn.functional.cross_entropy(leaf, labels, w, ignore_index=IGNORED, reduction=reduction)
    (dx,) = torch.autograd.grad(loss, leaf, flow(labels, reduction))
    return [loss.detach().numpy(), dx.numpy()]


def case(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    x = (torch.randn(*shape, generator=random) * 5).to(dtype)
    labels = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=random)
    labels[torch.rand(labels.shape, generator=random) < 0.3] = IGNORED
    labels.view(-1)[0] = 0
    return x, labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (33, 9), (16, 1000), (3, 9000), (2, 5, 70), (3, 4, 9, 9)], ids=str)
def test_loss_and_gradient(shape: tuple[int, ...], reduction: str, dtype: torch.dtype) -> None:
    x, labels = case(*shape, dtype=dtype)
    weights = torch.linspace(0, 2, shape[1]).to(dtype) + 0.25
    tolerance = 3e-6 if dtype == torch.float32 else 1e-13
    for w in (None, weights):
        for got, want in zip(run(x, labels, w, reduction), expected(x, labels, w, reduction), strict=True):
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1.0, np.abs(want).max()))


def test_probabilities_are_kept_only_for_others() -> None:
    x, labels = case(5, 7)
    alone, asked = (session(x, None, 1, more, "mean").graph_text() for more in (False, True))
    assert "from_scores=1" in alone
    assert "from_scores" not in asked
    for a, b in zip(run(x, labels), run(x, labels, more_outputs=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 33), (2, 5, 70)], ids=str)
def test_what_is_ignored_cannot_do_harm(shape: tuple[int, ...]) -> None:
    x, labels = case(*shape)
    want = run(x, labels)
    x.movedim(1, -1)[labels == IGNORED] = float("nan")
    for got, clean in zip(run(x, labels), want, strict=True):
        np.testing.assert_array_equal(got, clean)
    labels[:] = IGNORED
    _, dx = run(x, labels)  # a mean over nothing
    assert not dx.any()


def test_bad_scores_show() -> None:
    x, labels = case(6, 20)
    labels[:] = 3
    x[2, 5], x[4, 3] = float("nan"), float("inf")
    loss, dx = run(x, labels, reduction="none")
    bad = np.isin(np.arange(6), [2, 4])
    np.testing.assert_array_equal(np.isnan(loss), bad)
    np.testing.assert_array_equal(np.isnan(dx).any(1), bad)


@pytest.mark.parametrize("shape", [(700, 130), (5, 130, 200)], ids=str)
def test_threads_do_not_matter(shape: tuple[int, ...]) -> None:
    x, labels = case(*shape)
    one = run(x, labels)
    for threads in (2, 3):
        for a, b in zip(one, run(x, labels, threads=threads), strict=True):
            assert a.tobytes() == b.tobytes()
