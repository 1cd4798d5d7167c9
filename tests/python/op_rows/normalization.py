"""Softmax family and normalisation, and their named gradients."""

from typing import Any

import numpy as np
import torch
from op_case import FLOATS, Row, case, data
from op_oracle import from_torch
from torch.nn import functional

SOFTMAX_SETS = [(2, 3, 5), (7, 33), (4, 9, 70), (1,), (2, 0, 3), (3, 1), (5, 1100), (2, 3, 4, 5)]
EPSILON = 1e-5  # attributes are float32, so oracles round it
AXES = [{}, {"axis": 0}, {"axis": -1}]


def rows_of(n: int, *lead: int) -> Any:
    return case((*lead, n), (n,), (n,))


LAYER = [
    rows_of(5, 2, 3),
    rows_of(33, 7),
    rows_of(768, 3),
    rows_of(1, 4),
    rows_of(1100, 2),
    rows_of(8, 0),
    case((2, 3, 4), (3, 4), (3, 4), axis=1),
    case((2, 3, 4), (4,), None, axis=-2),
    case((2, 3, 4), (2, 1, 4), (1, 1), axis=1),
    case((2, 3, 4), (), (3, 1), axis=0, epsilon=1e-2),
]
RMS = [case(c.inputs[0], c.inputs[1], **c.attrs) for c in LAYER]
CHANNELS = [
    case((2, 4, 5), (4,), (4,)),
    case((3, 4), (4,), (4,)),
    case((2, 4, 3, 7), (4,), (4,)),
    case((0, 4, 3), (4,), (4,)),
    case((1, 4, 33, 9), (4,), (4,)),
]


def batch(*shape: int) -> Any:
    c = shape[1]
    return case(shape, (c,), (c,), (c,), data(c, low=0.5, high=2))


BATCH = [batch(2, 3, 5), batch(4, 3), batch(2, 5, 3, 4), batch(3, 4, 2, 3, 2), batch(0, 3, 2), batch(2, 3, 40, 33)]


def hardmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    y = np.zeros_like(x)
    if x.size:
        np.put_along_axis(y, np.expand_dims(np.argmax(x, axis), axis), 1, axis)
    return y


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return torch.softmax(torch.from_numpy(x), axis).numpy()


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(x), axis).numpy()


def flat(function: Any) -> Any:
    """The meaning until opset 12: columns of the matrix are all axes from `axis` on."""

    def oracle(x: np.ndarray, axis: int = 1) -> np.ndarray:
        return function(x.reshape(int(np.prod(x.shape[:axis])), -1)).reshape(x.shape)

    return oracle


def group_norm(x: torch.Tensor, scale: Any, bias: Any, num_groups: int, epsilon: float = EPSILON) -> torch.Tensor:
    if x.shape[0] == 0:
        return x
    if len(scale) != x.shape[1]:  # one per group, until opset 20
        scale, bias = (p.repeat_interleave(x.shape[1] // num_groups) for p in (scale, bias))
    return functional.group_norm(x, num_groups, scale, bias, float(np.float32(epsilon)))


def instance_norm(x: torch.Tensor, scale: Any, bias: Any, epsilon: float = EPSILON) -> torch.Tensor:
    return group_norm(x, scale, bias, x.shape[1], epsilon)


def mean_variance(x: np.ndarray, axes: tuple[int, ...] = (0, 2, 3)) -> np.ndarray:
    wide = x.astype(np.float64)
    centered = wide - wide.mean(tuple(axes), keepdims=True)
    return (centered / (wide.std(tuple(axes), keepdims=True) + 1e-9)).astype(x.dtype)


def lp_norm(x: np.ndarray, axis: int = -1, p: int = 2) -> np.ndarray:
    norm = np.linalg.norm(x, p, axis=axis, keepdims=True)
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype)


def lrn(x: torch.Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> torch.Tensor:
    return functional.local_response_norm(x, size, float(np.float32(alpha)), beta, bias)


def simplified(x: torch.Tensor, scale: torch.Tensor, axis: int = -1, epsilon: float = EPSILON) -> list[torch.Tensor]:
    square = (x**2).mean(tuple(range(axis % x.ndim, x.ndim)), keepdim=True)
    inverse = torch.rsqrt(square + float(np.float32(epsilon)))
    return [x * inverse * scale, inverse.float()]


def layer_norm(x: torch.Tensor, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = EPSILON) -> torch.Tensor:
    y = functional.layer_norm(x, x.shape[axis:], eps=float(np.float32(epsilon))) * scale
    return y if bias is None else y + bias


def rms_norm(x: torch.Tensor, scale: torch.Tensor, axis: int = -1, epsilon: float = EPSILON) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[axis:], eps=float(np.float32(epsilon))) * scale


def batch_norm(
    x: torch.Tensor, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float = EPSILON
) -> torch.Tensor:
    shape = [-1] + [1] * (x.ndim - 2)  # torch takes no derivative by given statistics
    scale, bias, mean, variance = (p.reshape(shape) for p in (scale, bias, mean, variance))
    return (x - mean) * torch.rsqrt(variance + float(np.float32(epsilon))) * scale + bias


def layer_norm_grad(dy: Any, x: Any, scale: Any, mean: Any, inverse: Any, axis: int = -1) -> list[torch.Tensor]:
    x, scale = x.clone().requires_grad_(), scale.clone().requires_grad_()
    bias = torch.zeros_like(scale, requires_grad=True)
    m = x.mean(-1, keepdim=True)
    y = (x - m) * torch.rsqrt(((x - m) ** 2).mean(-1, keepdim=True) + 1e-5) * scale + bias
    return list(torch.autograd.grad(y, [x, scale, bias], dy))


def softmax_grad(function: Any) -> Any:
    def oracle(dy: torch.Tensor, y: torch.Tensor, axis: int = -1) -> torch.Tensor:
        if function is functional.log_softmax:
            return dy - torch.exp(y) * dy.sum(axis, keepdim=True)
        return y * (dy - (dy * y).sum(axis, keepdim=True))

    return from_torch(oracle)


X = np.random.default_rng(3).standard_normal((3, 4, 6)).astype(np.float32)
STATISTICS = (X.mean(-1, keepdims=True), 1 / np.sqrt(X.var(-1, keepdims=True) + 1e-5))

RNG = np.random.default_rng(11)
IMAGE = RNG.standard_normal((4, 3, 5)).astype(np.float32)
CHANNEL = [(3,), (3,), (3,), data(3, low=0.5, high=2)]
ROUNDED = float(np.float32(EPSILON))


def batch_norm_internal(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, momentum: float, **_: Any
) -> list[Any]:
    m, v = x.mean((0, 2)), x.var((0, 2))
    inverse = 1 / np.sqrt(v + ROUNDED)
    y = (x - m[:, None]) * inverse[:, None] * scale[:, None] + bias[:, None]
    running = [old * momentum + new * (1 - momentum) for old, new in ((mean, m), (variance, v))]
    return [r.astype(np.float32) for r in (y, *running, m, inverse)]


def batch_norm_grad(dy: Any, x: Any, scale: Any, mean: Any, inverse: Any) -> list[Any]:
    x, scale = x.clone().requires_grad_(), scale.clone().requires_grad_()
    bias = torch.zeros_like(scale, requires_grad=True)
    y = torch.nn.functional.batch_norm(x, None, None, scale, bias, True, 0.1, ROUNDED)
    return list(torch.autograd.grad(y, [x, scale, bias], dy))


def simplified_grad(dy: Any, x: Any, scale: Any, inverse: Any, axis: int = -1) -> list[Any]:
    x, scale = x.clone().requires_grad_(), scale.clone().requires_grad_()
    y = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + ROUNDED) * scale
    return list(torch.autograd.grad(y, [x, scale], dy))


def invertible_grad(dy: Any, y: Any, scale: Any, bias: Any, inverse: Any, axis: int = -1) -> list[Any]:
    z, g = (y - bias) / scale, dy * scale
    dx = (g - g.mean(-1, keepdims=True) - z * (g * z).mean(-1, keepdims=True)) * inverse
    lead = tuple(range(dy.ndim - 1))
    return [r.astype(np.float32) for r in (dx, (dy * z).sum(lead), dy.sum(lead))]


FEATURES = RNG.standard_normal((3, 4, 6)).astype(np.float32)
INVERSE_ROOT = 1 / np.sqrt((FEATURES**2).mean(-1, keepdims=True) + ROUNDED)
INVERSE_DEVIATION = 1 / np.sqrt(FEATURES.var(-1, keepdims=True) + ROUNDED)


def batch_norm_factors(scale: Any, bias: Any, mean: Any, inverse: Any, rank: int) -> list[Any]:
    """Shaped to be broadcast against [batch, channels, ...]."""
    shape = (-1 if scale.size else 0, *[1] * (rank - 2))
    return [v.reshape(shape) for v in (scale * inverse, bias - mean * scale * inverse)]


ROWS = [
    Row(
        "Softmax",
        SOFTMAX_SETS,
        attrs=AXES,
        dtypes=FLOATS,
        oracle=softmax,
        opset=(28, 13),
        grad=[0],
        bench=(12, 128, 128),
    ),
    Row("LogSoftmax", SOFTMAX_SETS, attrs=AXES, dtypes=FLOATS, oracle=log_softmax, opset=(28, 13), grad=[0]),
    Row("Hardmax", SOFTMAX_SETS, attrs=AXES, dtypes=FLOATS, oracle=hardmax, opset=(28, 13)),
    *[
        Row(
            name,
            [(2, 3, 5), (3, 4), (2, 3, 2, 2)],
            attrs=[{}, {"axis": 0}, {"axis": 1}],
            oracle=flat(function),
            opset=(11, 7),
            grad=None if name == "Hardmax" else [0],
            torch=False,
            name=f"{name}-flat",
        )
        for name, function in (("Softmax", softmax), ("LogSoftmax", log_softmax), ("Hardmax", hardmax))
    ],
    Row(
        "LayerNormalization",
        LAYER,
        dtypes=FLOATS,
        opset=(28, 17),
        grad=[0, 1, 2],
        grad_inputs=[*LAYER[:7], *LAYER[8:]],  # onnxruntime crashes on LAYER[7]
        torch=layer_norm,
        bench=((128, 768), (768,), (768,)),
    ),
    Row("LayerNormalization", LAYER, outputs=3, name="LayerNormalization-statistics"),
    Row(
        "SimplifiedLayerNormalization",
        RMS,
        dtypes=FLOATS,
        oracle=from_torch(simplified),
        outputs=2,
        opset=17,
        grad=[0, 1],
    ),
    Row("RMSNormalization", RMS, dtypes=FLOATS, opset=(28, 23), grad=[0, 1], torch=rms_norm),
    Row(
        "GroupNormalization",
        CHANNELS,
        attrs=[{"num_groups": 2}, {"num_groups": 4, "epsilon": 1e-2}],
        dtypes=FLOATS,
        oracle=from_torch(group_norm),
        opset=(28, 21),
        grad=[0, 1, 2],
    ),
    Row(
        "GroupNormalization",
        [case((2, 6, 5), (3,), (3,)), case((1, 3, 2, 2), (3,), (3,))],
        attrs={"num_groups": 3},
        oracle=from_torch(group_norm),
        opset=(18, 20),
        name="GroupNormalization-per-group",
    ),
    Row(
        "InstanceNormalization",
        [CHANNELS[0], *CHANNELS[2:]],
        dtypes=FLOATS,
        oracle=from_torch(instance_norm),
        opset=(28, 7),
        grad=[0, 1, 2],
    ),
    Row(
        "BatchNormalization",
        BATCH,
        attrs=[{}, {"epsilon": 1e-2}],
        dtypes=FLOATS,
        opset=(28, 14),
        grad=[0, 1, 2, 3, 4],
        torch=batch_norm,
    ),
    Row(
        "BatchNormalization",
        BATCH[:4],
        attrs={"training_mode": 1, "momentum": 0.7},
        dtypes=FLOATS,
        outputs=3,
        opset=(28, 14),
        grad=[0, 1, 2, 3, 4],
        torch=False,
        name="BatchNormalization-training",
    ),
    # The reference takes the presence of momentum for training.
    Row("BatchNormalization", BATCH[:4], oracle="ort", opset=(9, 7), name="BatchNormalization-old"),
    Row(
        "MeanVarianceNormalization",
        # of equal elements only epsilon remains to divide by, which float16 cannot hold
        [(2, 3, 4, 5), data(2, 3, 2, 1, low=1, high=1), (1, 2, 3, 3)],
        attrs=[{}, {"axes": [1, 2]}],
        dtypes=FLOATS,
        oracle=mean_variance,
        tol=1e-4,
        opset=(28, 9),
        grad=[0],
        grad_inputs=[(2, 3, 4, 5), (1, 2, 3, 3)],
    ),
    Row(
        "LpNormalization",
        [(2, 3, 5), (7, 33), data(2, 3, low=0, high=0.0)],
        attrs=[{}, {"p": 1, "axis": 0}, {"axis": 1}],
        dtypes=FLOATS,
        oracle=lp_norm,
        opset=(28, 7),
        grad=[0],
        grad_inputs=[(2, 3, 5), (7, 33)],
    ),
    Row(
        "LRN",
        [(2, 7, 3, 4), (1, 2, 3, 3), (2, 5, 6), (2, 3, 2, 2, 2)],
        attrs=[{"size": 3}, {"size": 5, "alpha": 0.1, "bias": 2.0}],
        dtypes=FLOATS,
        oracle=from_torch(lrn),
        opset=(28, 7),
        grad=[0],
    ),
    # ---- ONNX Runtime's own
    Row(
        "SoftmaxGrad_13",
        [((2, 3, 5), (2, 3, 5)), ((7, 33), (7, 33))],
        attrs=AXES,
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=softmax_grad(functional.softmax),
    ),
    Row(
        "LogSoftmaxGrad_13",
        [((2, 3, 5), (2, 3, 5)), ((7, 33), (7, 33))],
        attrs=AXES,
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=softmax_grad(functional.log_softmax),
    ),
    Row(
        "LayerNormalizationGrad",
        [case((3, 4, 6), X, (6,), *STATISTICS)],
        domain="com.microsoft",
        outputs=3,
        oracle=from_torch(layer_norm_grad),
    ),
    Row(
        "SkipLayerNormalization",
        [case((2, 3, 8), (2, 3, 8), (8,), (8,), (8,)), case((2, 8), (2, 8), (8,))],
        domain="com.microsoft",
        oracle=from_torch(
            lambda x, s, w, b=None, k=None: functional.layer_norm(x + s + (0 if k is None else k), (8,), w, b, 1e-12)
        ),
        grad=[0, 1, 2, 3, 4],
    ),
    Row(
        "BiasSoftmax",
        [((2, 3, 4, 5), (2, 1, 1, 5))],
        attrs={"axis": 3, "is_inner_broadcast": 1},
        domain="com.microsoft",
        oracle=from_torch(lambda x, b, **_: torch.softmax(x + b, -1)),
        grad=[0, 1],
    ),
    Row(
        "BatchNormInternal",
        [case((4, 3, 5), *CHANNEL)],
        attrs={"momentum": 0.8},
        domain="com.microsoft",
        outputs=5,
        oracle=batch_norm_internal,
        grad=[0, 1, 2, 3, 4],
        torch=False,
    ),
    Row(
        "BatchNormalizationGrad",
        [
            case(
                (4, 3, 5),
                IMAGE,
                (3,),
                IMAGE.mean((0, 2)),
                (1 / np.sqrt(IMAGE.var((0, 2)) + ROUNDED)).astype(np.float32),
            )
        ],
        domain="com.microsoft",
        outputs=3,
        oracle=from_torch(batch_norm_grad),
        tol=1e-4,
    ),
    Row(
        "SimplifiedLayerNormalizationGrad",
        [case((3, 4, 6), FEATURES, (6,), INVERSE_ROOT)],
        domain="com.microsoft",
        outputs=2,
        oracle=from_torch(simplified_grad),
        tol=1e-4,
    ),
    Row(
        "InvertibleLayerNormalizationGrad",
        [case((3, 4, 6), (3, 4, 6), data(6, low=0.5, high=2), (6,), INVERSE_DEVIATION)],
        domain="com.microsoft",
        outputs=3,
        oracle=invertible_grad,
        tol=1e-4,
    ),
    # What split_batch_norm makes of a batch normalisation.
    Row(
        "BatchNormFactors",
        [case((n,), (n,), (n,), data(n, low=0.5, high=2), rank=rank) for n, rank in ((4, 4), (1, 2), (33, 3), (0, 4))],
        domain="backpass",
        dtypes=("float32", "float64"),
        outputs=2,
        oracle=batch_norm_factors,
    ),
    Row(
        "MulAdd",
        [
            case((2, 4, 5), (4, 1), (4, 1)),
            case((7, 33), (33,), (33,)),
            case((3, 4), (3, 4), (3, 4)),
            case((0, 4, 3), (4, 1), (4, 1)),
            case((), (), ()),
            case((2, 3, 700), (3, 1), ()),
        ],
        domain="backpass",
        dtypes=FLOATS,
        oracle=from_torch(lambda x, factor, offset: x * factor + offset),
        bench=case((16, 64, 32, 32), (64, 1, 1), (64, 1, 1)),
    ),
]
