"""Element by element: values, types and gradients of every lowering, static and with symbolic sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exporter_check import check, check_table

torch.manual_seed(0)


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape) + 0.1


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(-5, 6, shape).to(dtype)


def nonzero(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    value = torch.randint(1, 6, shape) * (torch.randint(0, 2, shape) * 2 - 1)
    return value.to(dtype)


def flags(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5


ROWS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "add": (lambda a, b: a + b, (x(3, 1), x(1, 4))),
    "add alpha": (lambda a, b: torch.add(a, b, alpha=2.5), (x(3, 4), x(4))),
    "add int and float": (lambda a, b: a + b, (whole(3, 4), x(4))),
    "add int and number": (lambda a: a + 1.5, (whole(3, 4),)),
    "add float and int number": (lambda a: a + 2, (x(3, 4, dtype=torch.float16),)),
    "add 0-D double": (lambda a, b: a + b, (x(1), x(dtype=torch.float64))),
    "add 0-D int to float": (lambda a, b: a + b, (x(3, dtype=torch.bfloat16), whole())),
    "add bools": (lambda a, b: a + b, (flags(7), flags(7))),
    "add small ints": (lambda a, b: a + b, (whole(5, dtype=torch.int8), whole(5, dtype=torch.int16))),
    "sub": (lambda a, b: a - b, (x(2, 3), x(3))),
    "sub alpha": (lambda a, b: torch.sub(a, b, alpha=3), (whole(3), whole(3))),
    "rsub": (lambda a: 2 - a, (x(5),)),
    "mul": (lambda a, b: a * b, (x(2, 1, 3), x(4, 1))),
    "mul bools": (lambda a, b: a * b, (flags(7), flags(7))),
    "mul number": (lambda a: a * 0.5, (whole(4),)),
    "div": (lambda a, b: a / b, (x(3), positive(3))),
    "div ints": (lambda a, b: a / b, (whole(6), nonzero(6))),
    "div floor": (lambda a, b: torch.div(a, b, rounding_mode="floor"), (x(9), positive(9))),
    "div floor ints": (lambda a, b: torch.div(a, b, rounding_mode="floor"), (whole(20), nonzero(20))),
    "div trunc": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (x(9) * 5, positive(9))),
    "div trunc ints": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (whole(20), nonzero(20))),
    "floor_divide": (lambda a, b: a // b, (whole(20), nonzero(20))),
    "floor_divide number": (lambda a: a // 3, (whole(20, dtype=torch.int32),)),
    "remainder": (lambda a, b: a % b, (x(20) * 5, x(20))),
    "remainder ints": (lambda a, b: a % b, (whole(20), nonzero(20))),
    "fmod": (lambda a, b: torch.fmod(a, b), (x(20) * 5, x(20))),
    "fmod ints": (lambda a: torch.fmod(a, -3), (whole(20),)),
    "pow": (lambda a, b: a**b, (positive(5), x(5))),
    "pow 2": (lambda a: a**2, (x(5),)),
    "pow 3": (lambda a: a**3, (x(5),)),
    "pow half": (lambda a: a**0.5, (positive(5),)),
    "pow -1.5": (lambda a: a**-1.5, (positive(5),)),
    "pow ints": (lambda a: a**3, (whole(9),)),
    "pow small ints": (lambda a: a**3, (whole(9, dtype=torch.int8),)),
    "pow of a number": (lambda a: 2.0**a, (x(5),)),
    "pow int with float": (lambda a: a**0.5, (whole(5).abs(),)),
    "minimum": (lambda a, b: torch.minimum(a, b), (x(4, 5), x(5))),
    "maximum": (lambda a, b: torch.maximum(a, b), (x(4, 5), x(5))),
    "clamp": (lambda a: a.clamp(-0.5, 0.5), (x(9),)),
    "clamp min": (lambda a: a.clamp(min=0.25), (x(9),)),
    "clamp max": (lambda a: a.clamp(max=1), (whole(9),)),
    "clamp tensors": (lambda a, b, c: a.clamp(b, c), (x(9), x(9) - 1, x(9) + 1)),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.5), (x(3), x(3), x(3))),
    "addcdiv": (lambda a, b, c: torch.addcdiv(a, b, c, value=0.5), (x(3), x(3), positive(3))),
    "lerp": (lambda a, b, w: torch.lerp(a, b, w), (x(3), x(3), x(3))),
    "in place": (lambda a: a.clone().add_(1).mul_(2).relu_(), (x(3, 4),)),
    "neg": (lambda a: -a, (x(5),)),
    "neg without a sign": (lambda a: -a, (whole(5).abs().to(torch.uint8),)),
    "numbers beyond the type": (
        lambda a: (a == 300, a < 300, a > -1, a + 300, a * -2),
        (torch.tensor([44, 1, 0], dtype=torch.uint8),),
    ),
    "neg ints": (lambda a: -a, (whole(5, dtype=torch.int16),)),
    "abs": (lambda a: a.abs(), (x(5),)),
    "exp": (lambda a: a.exp(), (x(5),)),
    "exp ints": (lambda a: a.exp(), (whole(5),)),
    "log": (lambda a: a.log(), (positive(5),)),
    "log2": (lambda a: a.log2(), (positive(5),)),
    "log10": (lambda a: a.log10(), (positive(5),)),
    "log1p": (lambda a: a.log1p(), (positive(5),)),
    "exp2": (lambda a: a.exp2(), (x(5),)),
    "expm1": (lambda a: a.expm1(), (x(5),)),
    "sqrt": (lambda a: a.sqrt(), (positive(5),)),
    "rsqrt": (lambda a: a.rsqrt(), (positive(5),)),
    "reciprocal": (lambda a: a.reciprocal(), (positive(5),)),
    "square": (lambda a: a.square(), (x(5),)),
    "sin cos tan": (lambda a: (a.sin(), a.cos(), a.tan()), (x(5),)),
    "arcs": (lambda a: (a.asin(), a.acos(), a.atan()), (x(5) * 0.2,)),
    "hyperbolic": (lambda a: (a.sinh(), a.cosh(), a.tanh(), a.asinh()), (x(5),)),
    "acosh atanh": (lambda a: ((a + 1).acosh(), (a * 0.5).atanh()), (positive(5),)),
    "sinc": (lambda a: a.sinc(), (torch.tensor([-0.5, 0.0, 0.3, 1.0]),)),
    "xlogy": (
        lambda a, b: (torch.xlogy(a, b.abs()), torch.xlogy(a, 3), torch.special.xlog1py(a, b)),
        (torch.tensor([0.0, 0.0, 1.0, 2.0]), torch.tensor([2.0, 0.5, 3.0, -0.5])),
    ),
    "xlogy at zeros": (
        lambda a: (torch.xlogy(a, 0), torch.special.xlog1py(a, -1)),
        (torch.zeros(2),),
    ),
    "erf": (lambda a: a.erf(), (x(5),)),
    "sigmoid": (lambda a: a.sigmoid(), (x(5),)),
    "rounding": (lambda a: (a.floor(), a.ceil(), a.round(), a.trunc(), a.frac()), (x(20) * 3,)),
    "rounding of ints": (lambda a: (a.floor(), a.ceil(), a.round(), a.trunc()), (whole(5),)),
    "sign": (lambda a: a.sign(), (whole(9),)),
    "isnan": (lambda a: (a.isnan(), a.isinf(), a.isfinite()), (torch.tensor([1.0, float("nan"), float("inf")]),)),
    "comparisons": (lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b), (whole(9), whole(9))),
    "comparisons of types": (lambda a, b: (a < b, a == b), (whole(9), x(9).round())),
    "comparisons with numbers": (lambda a: (a < 0.5, a >= 2, a == 1, a != 1.5), (whole(9),)),
    "comparisons of bools": (lambda a, b: (a < b, a == b, a != b), (flags(9), flags(9))),
    "logic": (lambda a, b: (a & b, a | b, a ^ b, ~a), (flags(9), flags(9))),
    "bits": (lambda a, b: (a & b, a | b, a ^ b, ~a, a & 6), (whole(9), whole(9))),
    "logical": (lambda a, b: (a.logical_and(b), a.logical_or(b), a.logical_not()), (whole(9), x(9))),
    "where": (lambda c, a, b: torch.where(c, a, b), (flags(3, 1), x(3, 4), x(4))),
    "where numbers": (lambda c, a: (torch.where(c, a, 0), torch.where(c, 1.5, a)), (flags(3, 1), x(3, 4))),
    "where types": (lambda c, a, b: torch.where(c, a, b), (flags(4), whole(4), x(4))),
    "masked_fill": (lambda a, m: a.masked_fill(m, -1e9), (x(3, 4), flags(3, 1))),
    "masked_fill tensor": (lambda a, m, v: a.masked_fill(m, v), (x(3, 4), flags(3, 4), x())),
    "casts": (lambda a: (a.double(), a.long(), a.half(), a.bool(), a.to(torch.bfloat16)), (x(5) * 3,)),
    "type_as": (lambda a, b: a.type_as(b), (x(5), x(5, dtype=torch.float64))),
}

NAN, INF = float("nan"), float("inf")
EVEN = torch.tensor([0.0, 1.0, 2.0, 3.0])
EDGES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "clamp at its bounds": (lambda a: (a.clamp(1, 2), a.clamp(min=1), a.clamp(max=2), a.clamp_min(3)), (EVEN,)),
    "clamp at tensors": (lambda a, b: (a.clamp(b), a.clamp(max=b), a.clamp(b - 1, b)), (EVEN, torch.full((4,), 2.0))),
    "clamp, bounds swapped": (lambda a: a.clamp(3.0, 2.0), (EVEN,)),
    "fmax and fmin of equals": (lambda a, b: (torch.fmax(a, b), torch.fmin(a, b)), (EVEN, EVEN.clone())),
    "fmax and fmin of NaN": (
        lambda a, b: (torch.fmax(a, b), torch.fmin(a, b)),
        (torch.tensor([NAN, 1, NAN, 2]), torch.tensor([1, NAN, NAN, 3])),
    ),
    "fmax of ints": (lambda a, b: (torch.fmax(a, b), torch.fmin(a, b)), (whole(9), whole(9))),
    "div floor is exact": (
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        (torch.tensor([1, -1, 6, 0.3, INF, -1, 1, 1, 0]), torch.tensor([0.1, 0.1, 0.2, 0.1, 2, INF, INF, 0, 0])),
    ),
}


def test_edges() -> None:
    check_table(EDGES)


def test_values_and_gradients() -> None:
    check_table(ROWS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats(dtype: torch.dtype) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        return (a + b * 2) / (b.abs() + 1) - a.sigmoid() * 0.5, (a > b).to(dtype), a.tanh().exp()

    check(function, (x(4, 5, dtype=dtype), x(5, dtype=dtype)))


def test_symbolic_sizes() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        n, m = a.shape
        return (a + b) * n / (m + 1), a.new_full((n, m // 2 + 1), 2.0) * max(n, 3), (a * b).sum() / a.numel()

    check(function, (x(3, 4), x(4)), [(x(6, 5), x(5)), (x(1, 9), x(9))])


def test_numbers_keep_the_type_of_the_tensor() -> None:
    exported = check(lambda a: a * 3 + 0.1, (x(3, dtype=torch.bfloat16),))
    assert all(n.op_type != "Cast" for n in exported.proto.graph.node)
