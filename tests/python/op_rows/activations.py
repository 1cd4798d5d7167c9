"""Activations and the named gradients of some."""

import numpy as np
import torch
from op_case import FLOATS, Row, edges, unary
from op_oracle import from_torch


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


SLOPES = [((2, 3, 5), (2, 3, 5)), ((2, 3), (3,)), ((2, 3, 4), (3, 1)), ((0, 3), (3,)), ((5,), ())]

MS = {"domain": "com.microsoft"}
PAIRS = [((2, 3, 5), (2, 3, 5)), ((7,), (7,)), ((), ()), ((0,), (0,)), ((17, 33), (17, 33))]
BIASED = [((2, 3, 5), (5,)), ((7,), (7,)), ((0, 4), (4,)), ((17, 33), (33,))]
BIASED_PAIRS = [((2, 3, 5), (2, 3, 5), (5,)), ((7,), (7,), (7,)), ((17, 33), (17, 33), (33,))]


# The default of an attribute is a float32.
ALPHA = float(np.float32(1.702))


def swish(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(alpha * x)


def gradient(function):
    """dY times the derivative of `function` at X, by torch."""

    def of(dy, x, *bias, **attributes):
        y = (x + bias[0] if bias else x).detach().requires_grad_()
        return torch.autograd.grad(function(y, **attributes), y, dy)[0]

    return from_torch(of)


def fast_gelu(x: torch.Tensor) -> torch.Tensor:
    return gelu(x, "tanh")


def quick_gelu(x: torch.Tensor, alpha: float = ALPHA) -> torch.Tensor:
    return swish(x, alpha)


ROWS = [
    Row("Relu", unary(), dtypes=(*FLOATS, "int32", "int8"), opset=(28, 13, 7), grad=[0], bench=(1024, 1024)),
    Row("LeakyRelu", unary(), attrs=[{}, {"alpha": 0.3}], dtypes=FLOATS, opset=(28, 7), grad=[0], bench=(1024, 1024)),
    Row("Sigmoid", unary(), dtypes=FLOATS, opset=(28, 7), grad=[0], bench=(1024, 1024)),
    Row("Erf", [*unary(), *edges()], dtypes=FLOATS, opset=(28, 9), oracle=from_torch(torch.erf), grad=[0],
        bench=(1024, 1024)),
    # The reference takes erf from Python's math, element by element.
    Row("Gelu", unary(), attrs=[{}, {"approximate": "tanh"}], dtypes=FLOATS, oracle=from_torch(gelu), grad=[0]),
    Row("PRelu", SLOPES, dtypes=FLOATS, opset=(28, 9, 7), grad=[0, 1]),
    Row("ThresholdedRelu", unary(), attrs=[{}, {"alpha": 0.3}], dtypes=FLOATS, opset=(28, 10), grad=[0]),
    Row("Elu", unary(), attrs=[{}, {"alpha": 2.0}], dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Selu", unary(), attrs=[{}, {"alpha": 2.0, "gamma": 3.0}], dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Celu", unary(), attrs=[{}, {"alpha": 2.0}], opset=(28, 12), grad=[0]),
    Row("HardSigmoid", unary(low=-5, high=5), attrs=[{}, {"alpha": 0.5, "beta": 0.6}], dtypes=FLOATS, opset=(28, 7),
        grad=[0]),
    # The reference rounds 1/6 to float32.
    Row("HardSwish", unary(low=-5, high=5), dtypes=FLOATS, opset=(28, 14), grad=[0],
        oracle=from_torch(torch.nn.functional.hardswish)),
    Row("Mish", unary(low=-30, high=30), dtypes=FLOATS, opset=(28, 18), oracle=from_torch(torch.nn.functional.mish),
        grad=[0]),
    Row("Softplus", unary(low=-120, high=120), dtypes=FLOATS, opset=(28, 7), grad=[0],
        oracle=from_torch(lambda x: torch.logaddexp(x, torch.zeros_like(x)))),
    Row("Softsign", unary(), dtypes=FLOATS, opset=(28, 7), grad=[0], oracle=from_torch(torch.nn.functional.softsign)),
    Row("Shrink", unary(), attrs=[{}, {"bias": 0.5, "lambd": 1.0}], dtypes=("float32", "float64", "float16", "int32"),
        opset=(28, 9), grad=[0]),
    Row("Swish", unary(), attrs=[{}, {"alpha": 0.5}], dtypes=FLOATS, opset=(28, 24), oracle=from_torch(swish),
        grad=[0]),
    Row("SwiGLU", PAIRS, attrs=[{}, {"alpha": 0.5}], dtypes=FLOATS, grad=[0, 1],
        oracle=from_torch(lambda a, b, alpha=1.0: swish(a, alpha) * b)),
    # ---- com.microsoft
    Row("Gelu", unary(), dtypes=FLOATS, oracle=from_torch(gelu), grad=[0], **MS),
    Row("FastGelu", [*unary(), *BIASED], dtypes=FLOATS, oracle=from_torch(lambda x, b=0.0: fast_gelu(x + b)),
        grad=[0, 1], **MS),
    Row("QuickGelu", unary(), attrs=[{}, {"alpha": 1.0}], dtypes=FLOATS, oracle=from_torch(quick_gelu), grad=[0],
        **MS),
    Row("BiasGelu", BIASED, dtypes=FLOATS, oracle=from_torch(lambda x, b: gelu(x + b)), grad=[0, 1], **MS),
    Row("ReluGrad", PAIRS, dtypes=FLOATS, oracle=gradient(torch.relu), **MS),
    Row("SigmoidGrad", PAIRS, dtypes=FLOATS, oracle=from_torch(lambda dy, y: dy * y * (1 - y)), **MS),
    Row("LeakyReluGrad", PAIRS, attrs={"alpha": 0.25}, dtypes=FLOATS,
        oracle=from_torch(lambda dy, y, alpha: torch.where(y > 0, dy, alpha * dy)), **MS),
    Row("GeluGrad", PAIRS, dtypes=FLOATS, oracle=gradient(gelu), **MS),
    Row("FastGeluGrad", PAIRS, dtypes=FLOATS, oracle=gradient(fast_gelu), **MS),
    Row("QuickGeluGrad", PAIRS, attrs=[{}, {"alpha": 1.0}], dtypes=FLOATS, oracle=gradient(quick_gelu), **MS),
    Row("BiasGeluGrad_dX", BIASED_PAIRS, dtypes=FLOATS, oracle=gradient(gelu), **MS),
    Row("BiasFastGeluGrad_dX", BIASED_PAIRS, dtypes=FLOATS, oracle=gradient(fast_gelu), **MS),
]  # fmt: skip
