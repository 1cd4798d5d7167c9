"""Losses against class labels."""

from typing import Any

import numpy as np
import torch
from op_case import FLOATS, Row, case, const, data
from op_oracle import from_torch
from torch.nn import functional


def labels(*shape: int, classes: int = 5, dtype: str = "int64") -> Any:
    return data(*shape, dtype=dtype, low=0, high=classes)


SETS = [
    case((6, 5), labels(6)),
    case((4, 5, 3), labels(4, 3, dtype="int32")),
    case((2, 5, 3, 2), labels(2, 3, 2), data(5, low=0.1, high=2)),
    case((3, 5), labels(3), data(5, low=0.1, high=2), ignore_index=2),
    case((2, 5, 70), labels(2, 70), ignore_index=-1),
    case((9, 1500), labels(9, classes=1500)),
    case((1, 5), labels(1)),
]
REALS = ("float32", "float64")
REDUCTIONS = [{}, {"reduction": "sum"}, {"reduction": "none"}]


def cross_entropy(x: Any, y: Any, w: Any = None, reduction: str = "mean", ignore_index: int = -100) -> list[Any]:
    loss = functional.cross_entropy(x, y.long(), w, reduction=reduction, ignore_index=ignore_index)
    return [loss, torch.log_softmax(x, 1)]


def nll(x: Any, y: Any, w: Any = None, reduction: str = "mean", ignore_index: int = -100) -> Any:
    return functional.nll_loss(x, y.long(), w, reduction=reduction, ignore_index=ignore_index)


def weighted(x: Any, y: Any, w: Any = None, reduction: str = "mean", ignore_index: int = -100) -> Any:
    """nll_loss, whose weights have a derivative too."""
    y = y.long()
    counts = y != ignore_index
    known = torch.where(counts, y, 0)
    weights = counts.to(x.dtype) * (1 if w is None else w[known])
    losses = -x.gather(1, known.unsqueeze(1)).squeeze(1) * weights
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / weights.sum()}[reduction]


def weighted_cross_entropy(x: Any, *others: Any, **attributes: Any) -> list[Any]:
    log_prob = torch.log_softmax(x, 1)
    return [weighted(log_prob, *others, **attributes), log_prob]


def cross_entropy_grad(dy: Any, log_prob: Any, y: Any, w: Any = None, reduction: str = "mean") -> Any:
    x = log_prob.clone().requires_grad_()
    return torch.autograd.grad(functional.cross_entropy(x, y, w, reduction=reduction), x, dy)[0]


def last_axis(x: Any, y: Any, w: Any = None, reduction: str = "mean") -> list[Any]:
    loss = functional.cross_entropy(x.flatten(0, -2), y.flatten(), reduction="none")
    w = torch.ones_like(loss) if w is None else w.flatten()
    return [(loss * w).sum() / (w.sum() if reduction == "mean" else 1), torch.log_softmax(x, -1)]


def last_axis_grad(dy: Any, log_prob: Any, y: Any, w: Any = None, reduction: str = "mean") -> Any:
    x = log_prob.clone().requires_grad_()
    return torch.autograd.grad(last_axis(x, y, w, reduction)[0], x, dy)[0]


def dense(x: Any, y: Any, reduction: str = "mean") -> list[Any]:
    log_prob = torch.log_softmax(x, -1)
    return [-(log_prob * y).sum() / (x[..., 0].numel() if reduction == "mean" else 1), log_prob]


INTERNAL = [
    case((6, 5), labels(6)),
    case((4, 5, 3), labels(4, 3), None, const(2)),
    case((3, 5), labels(3), data(5, low=0.1, high=2), const(2)),
]


def with_ignored_input(function: Any) -> Any:
    def apply(x: Any, y: Any, w: Any = None, ignored: Any = None, **attributes: Any) -> Any:
        return function(x, y, w, ignore_index=-100 if ignored is None else int(ignored), **attributes)

    return apply


def measured_apart(function: Any) -> Any:
    """Without the attribute that says how much is done at once."""
    return lambda *inputs, rows_at_once=0, **attributes: function(*inputs, **attributes)


def linear_cross_entropy(x: Any, w: Any, y: Any, b: Any = None, c: Any = None, **attributes: Any) -> Any:
    """With label smoothing as torch has it, whose weights have a derivative too."""
    smoothing = attributes.pop("label_smoothing", 0.0)
    scores = x @ (w.T if attributes.pop("transB", 0) else w) + (0 if b is None else b)
    log_prob = torch.log_softmax(scores, 1)
    hard = weighted(log_prob, y, c, **attributes)
    counts = (y != attributes.get("ignore_index", -100)).to(x.dtype)
    soft = -(log_prob if c is None else log_prob * c).mean(1) * counts
    if (reduction := attributes.get("reduction", "mean")) != "none":
        mass = (counts if c is None else counts * c[torch.where(counts > 0, y.long(), 0)]).sum()
        soft = soft.sum() / (mass if reduction == "mean" else 1)
    return (1 - smoothing) * hard + smoothing * soft


def linear_cross_entropy_grad(flow: Any, x: Any, w: Any, *others: Any, **attributes: Any) -> list[Any]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    losses = linear_cross_entropy(x, w, *others, reduction="none", **attributes)
    return list(torch.autograd.grad(losses, [x, w], flow))


def linear_heads() -> list[Any]:
    return [
        case((6, 3), (3, 5), labels(6), (5,)),
        case((9, 4), (5, 4), labels(9, dtype="int32"), transB=1, ignore_index=2),
        case((7, 3), (3, 5), labels(7), None, data(5, low=0.1, high=2), ignore_index=-1),
        case((4, 2), (5, 2), labels(4), (5,), data(5, low=0.1, high=2), transB=1),
        case((330, 3), (700, 3), labels(330, classes=700), (700,), transB=1, ignore_index=3),
        case((1, 1), (1, 1), labels(1, classes=1)),
        case((7, 3), (3, 5), labels(7), (5,), data(5, low=0.1, high=2), ignore_index=1, label_smoothing=0.3),
        case((37, 3), (700, 3), labels(37, classes=700), None, transB=1, label_smoothing=0.1, rows_at_once=16),
    ]


LOG_PROB = np.log(np.random.default_rng(5).dirichlet(np.ones(5), 6)).astype(np.float32)


ROWS = [
    Row(
        "SoftmaxCrossEntropyLoss",
        SETS,
        attrs=REDUCTIONS,
        dtypes=FLOATS,
        outputs=2,
        oracle=from_torch(cross_entropy),
        opset=(28, 12),
        grad=[0, 2],
        torch=weighted_cross_entropy,
        bench=((512, 30522), labels(512, classes=30522)),
    ),
    Row(
        "NegativeLogLikelihoodLoss",
        SETS,
        attrs=REDUCTIONS,
        dtypes=FLOATS,
        oracle=from_torch(nll),
        opset=(28, 12),
        grad=[0, 2],
        torch=weighted,
    ),
    # One output only: the log probabilities are not wanted by anyone but the gradient.
    Row(
        "SoftmaxCrossEntropyLoss",
        SETS[:4],
        attrs=REDUCTIONS,
        oracle=from_torch(lambda *x, **a: cross_entropy(*x, **a)[0]),
        grad=[0, 2],
        torch=lambda *x, **a: weighted_cross_entropy(*x, **a)[0],
        name="SoftmaxCrossEntropyLoss-loss-only",
    ),
    *[
        Row(
            name,
            INTERNAL,
            attrs=REDUCTIONS,
            domain="com.microsoft",
            outputs=outputs,
            grad=[0, 2],
            oracle=from_torch(with_ignored_input(oracle)),
            torch=with_ignored_input(function),
        )
        for name, outputs, oracle, function in (
            ("SoftmaxCrossEntropyLossInternal", 2, cross_entropy, weighted_cross_entropy),
            ("NegativeLogLikelihoodLossInternal", 1, nll, weighted),
        )
    ],
    Row(
        "SoftmaxCrossEntropyLossGrad",
        [
            case((), LOG_PROB, labels(6)),
            case((), LOG_PROB, labels(6), data(5, low=0.1, high=2)),
            case((6,), LOG_PROB, labels(6), reduction="none"),
        ],
        domain="com.microsoft",
        oracle=from_torch(cross_entropy_grad),
        grad=[0, 1, 3],
        torch=False,
    ),
    Row(
        "LinearCrossEntropy",
        linear_heads(),
        attrs=REDUCTIONS,
        domain="backpass",
        dtypes=REALS,
        oracle=from_torch(measured_apart(linear_cross_entropy)),
        grad=[0, 1, 3, 4],
        bench=case((512, 384), (30522, 384), labels(512, classes=30522), transB=1),
    ),
    Row(
        "LinearCrossEntropyGrad",
        [
            case((6,), (6, 3), (3, 5), labels(6), (5,)),
            case((9,), (9, 4), (5, 4), labels(9), None, data(5, low=0.1, high=2), transB=1, ignore_index=2),
            case((37,), (37, 3), (700, 3), labels(37, classes=700), transB=1, label_smoothing=0.1, rows_at_once=16),
            case((0,), (0, 3), (3, 5), labels(0)),
        ],
        domain="backpass",
        outputs=2,
        dtypes=REALS,
        oracle=from_torch(measured_apart(linear_cross_entropy_grad)),
    ),
    Row(
        "ScaleGradient",
        [case((3, 4), ()), case((70000,), ()), case((0,), ()), case((5,), const(1, "row"))],
        domain="backpass",
        dtypes=FLOATS,
        oracle=from_torch(lambda x, factor: x * factor),
    ),
    Row(
        "SparseSoftmaxCrossEntropy",
        [case((2, 3, 5), labels(2, 3)), case((4, 5), labels(4), data(4, low=0.1, high=2))],
        attrs=REDUCTIONS[:2],
        outputs=2,
        oracle=from_torch(last_axis),
        grad=[0, 2],
    ),
    Row(
        "SparseSoftmaxCrossEntropyGrad",
        [case((), LOG_PROB, labels(6)), case((), LOG_PROB, labels(6), data(6, low=0.1, high=2))],
        attrs=REDUCTIONS[:2],
        oracle=from_torch(last_axis_grad),
        grad=[0, 1, 3],
        torch=False,
    ),
    Row(
        "SoftmaxCrossEntropy",
        [case((2, 3, 5), data(2, 3, 5, low=0, high=1))],
        attrs=REDUCTIONS[:2],
        domain="com.microsoft",
        outputs=2,
        oracle=from_torch(dense),
        grad=[0, 1],
    ),
]
