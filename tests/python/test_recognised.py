"""Operators that are written out, recognised: every way to write them, against torch and against no pass at all."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import _core
from backpass.ortmodule import ORTModule
from onnx import TensorProto, helper, numpy_helper

KINDS = {torch.float32: TensorProto.FLOAT, torch.float64: TensorProto.DOUBLE, torch.float16: TensorProto.FLOAT16}
PASSES = ["recognise_gelu", "recognise_norms"]


class Writer:
    """Nodes of an ONNX graph, with everything that has no say in the result drawn at random."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.random = random.Random(seed)
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def number(self, value: float, dtype: torch.dtype | None = None) -> str:
        name = f"c{len(self.constants)}"
        extents = self.random.choice([(), (1,)])
        array = torch.full(extents, value, dtype=dtype or self.dtype).numpy()
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, values: Sequence[int]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        if self.random.random() < 0.1:
            return self.op("Identity", name)
        return name

    def either(self, op: str, a: str, b: str) -> str:
        """Of an operator that commutes."""
        return self.op(op, a, b) if self.random.random() < 0.5 else self.op(op, b, a)

    def scaled(self, x: str, factor: float) -> str:
        if self.random.random() < 0.5:
            return self.op("Div", x, self.number(1 / factor))
        return self.either("Mul", x, self.number(factor))

    def choose(self, *ways: Callable[[], str]) -> str:
        return self.random.choice(ways)()

    def product(self, factors: list[str]) -> str:
        """In any order, and grouped in any way."""
        while len(factors) > 1:
            self.random.shuffle(factors)
            factors = [self.op("Mul", factors[0], factors[1]), *factors[2:]]
        return factors[0]

    def model(self, inputs: dict[str, Sequence[int | str]], y: str, extents: Sequence[int | str]) -> onnx.ModelProto:
        kind = KINDS[self.dtype]
        self.nodes.append(helper.make_node("Identity", [y], ["y"]))
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(name, kind, list(shape)) for name, shape in inputs.items()],
            [helper.make_tensor_value_info("y", kind, list(extents))],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def cube(w: Writer, x: str) -> str:
    power = w.random.choice([torch.float32, torch.int64])
    return w.choose(
        lambda: w.op("Pow", x, w.number(3, w.dtype if power == torch.float32 else power)),
        lambda: w.product([x, x, x]),
        lambda: w.either("Mul", w.op("Pow", x, w.number(2)), x),
    )


def halves(w: Writer, x: str, e: str) -> str:
    """x (1 + e) / 2."""
    return w.choose(
        lambda: w.product([x, w.either("Add", w.number(1), e), w.number(0.5)]),
        lambda: w.either("Mul", x, w.either("Add", w.number(0.5), w.scaled(e, 0.5))),
        lambda: w.scaled(w.either("Mul", x, w.either("Add", e, w.number(1))), 0.5),
        lambda: w.either("Mul", w.scaled(x, 0.5), w.either("Add", e, w.number(1))),
        lambda: w.either("Add", w.scaled(x, 0.5), w.product([x, w.number(0.5), e])),
    )


def by_erf(w: Writer, x: str) -> str:
    return halves(w, x, w.op("Erf", w.scaled(x, math.sqrt(0.5))))


def cubic(w: Writer, x: str, k: float) -> str:
    """k (x + 0.044715 x^3)."""
    return w.choose(
        lambda: w.either("Mul", w.number(k), w.either("Add", x, w.either("Mul", w.number(0.044715), cube(w, x)))),
        lambda: w.scaled(w.either("Add", x, w.either("Mul", cube(w, x), w.number(0.044715))), k),
        lambda: w.product(
            [x, w.number(k), w.either("Add", w.number(1), w.product([w.number(0.044715), x, x]))],
        ),
    )


def by_tanh(w: Writer, x: str) -> str:
    return w.choose(
        lambda: halves(w, x, w.op("Tanh", cubic(w, x, math.sqrt(2 / math.pi)))),
        lambda: w.either("Mul", x, w.op("Sigmoid", cubic(w, x, 2 * math.sqrt(2 / math.pi)))),
    )


def quick(w: Writer, x: str) -> str:
    return w.either("Mul", x, w.op("Sigmoid", w.either("Mul", x, w.number(1.702))))


GELUS: dict[str, tuple[Callable[[Writer, str], str], Callable[[torch.Tensor], torch.Tensor]]] = {
    "erf": (by_erf, torch.nn.functional.gelu),
    "tanh": (by_tanh, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "quick": (quick, lambda x: x * torch.sigmoid(1.702 * x)),
}


def mean(w: Writer, x: str, axes: Sequence[int]) -> str:
    return w.op("ReduceMean", x, axes=list(axes), keepdims=1)


def inverse_deviation(w: Writer, variance: str, epsilon: float) -> tuple[str, bool]:
    """The root, or one by it; and which of them."""
    total = w.either("Add", variance, w.number(epsilon))
    way = w.random.randrange(4)
    if way == 0:
        return w.op("Pow", total, w.number(-0.5)), True
    root = w.op("Sqrt", total) if w.random.random() < 0.7 else w.op("Pow", total, w.number(0.5))
    if way == 1:
        return w.op("Reciprocal", root), True
    return (w.op("Div", w.number(1), root), True) if way == 2 else (root, False)


@dataclasses.dataclass
class Norm:
    rank: int
    axis: int
    centered: bool
    scaled: bool
    shifted: bool
    epsilon: float

    def write(self, w: Writer, x: str) -> str:
        axes = list(range(self.axis, self.rank))
        if w.random.random() < 0.5:
            axes = [a - self.rank for a in axes]
        middle = mean(w, x, axes) if self.centered else ""

        def base() -> str:
            return w.op("Sub", x, middle) if self.centered else x

        first = base()
        again = base() if w.random.random() < 0.3 else first
        squares = w.op("Pow", first, w.number(2)) if w.random.random() < 0.5 else w.op("Mul", first, first)
        root, is_inverse = inverse_deviation(w, mean(w, squares, axes), self.epsilon)
        if self.centered and self.scaled and self.shifted and is_inverse and w.random.random() < 0.4:
            factor = w.either("Mul", root, "w")
            term = w.op("Sub", "b", w.either("Mul", middle, factor))
            return w.either("Add", w.either("Mul", x, factor), term)
        y = w.either("Mul", again, root) if is_inverse else w.op("Div", again, root)
        if self.scaled:
            y = w.either("Mul", y, "w")
        return w.either("Add", y, "b") if self.shifted else y

    def expected(self, x: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        row = x.shape[self.axis :]
        if self.centered:
            y = torch.nn.functional.layer_norm(x, row, eps=self.epsilon)
        else:
            y = x * torch.rsqrt((x * x).mean(tuple(range(self.axis, x.ndim)), keepdim=True) + self.epsilon)
        y = y if scale is None else y * scale
        return y if bias is None else y + bias


def extents_of(rank: int, draw: random.Random) -> list[int]:
    return [draw.choice([0, 1, 2, 3, 5, 17, 33]) for _ in range(rank)]


def compare(
    model: onnx.ModelProto,
    feeds: dict[str, torch.Tensor],
    expected: Callable[..., torch.Tensor],
    tolerance: float,
    wanted: str | None,
) -> None:
    """With the passes, without them, and by torch: results and gradients. `wanted`: what is recognised, if anything."""
    given = {name: t.clone().requires_grad_() for name, t in feeds.items()}
    y = expected(**given)
    dy = torch.randn_like(y)
    torch.autograd.backward(y, dy)
    judged = [y.detach(), *[t.grad for t in given.values()]]
    for disabled in ([], PASSES):
        options = backpass.SessionOptions()
        options.disabled_passes = disabled
        session = _core.ModuleSession.from_bytes(model.SerializeToString(), list(feeds), options)
        reports = [r.what for r in session.pass_reports() if r.pass_name in PASSES]
        assert [wanted is not None and wanted in what for what in reports] == (
            [] if disabled or wanted is None else [True]
        )
        outputs, pending = session.forward(list(feeds.values()), True)
        assert pending is not None
        found = [outputs[0], *session.backward(pending, [dy])]
        for one, other in zip(found, judged, strict=True):
            assert other is not None
            largest = max(1.0, float(other.abs().max())) if other.numel() else 1.0
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance * largest)


TOLERANCES = {torch.float32: 2e-5, torch.float64: 1e-7}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", GELUS)
@pytest.mark.parametrize("seed", range(6))
def test_gelu_in_any_order(name: str, dtype: torch.dtype, seed: int) -> None:
    write, expected = GELUS[name]
    w = Writer(seed, dtype)
    torch.manual_seed(seed)
    sizes = extents_of(2, w.random)
    shape: list[int | str] = ["n" if seed % 2 == 0 else sizes[0], sizes[1]]
    x = w.op("Add", "a", "b") if seed % 3 == 0 else "a"
    model = w.model({"a": shape, "b": [sizes[1]]}, w.op("Mul", write(w, x), "b"), shape)
    feeds = {"a": torch.randn(sizes, dtype=dtype) * 3, "b": torch.randn(sizes[1], dtype=dtype)}
    wanted: str | None = "QuickGelu" if name == "quick" else "Gelu"
    if name == "quick" and dtype == torch.float64:
        wanted = None  # QuickGelu holds its factor as float32
    compare(model, feeds, lambda a, b: expected(a + b if seed % 3 == 0 else a) * b, TOLERANCES[dtype], wanted)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_norms_in_any_order(centered: bool, dtype: torch.dtype, seed: int) -> None:
    w = Writer(seed, dtype)
    torch.manual_seed(seed)
    rank = w.random.randint(1, 4)
    sizes = [*extents_of(rank - 1, w.random), w.random.choice([2, 3, 17, 33])]  # of 1, all would be divided by epsilon
    axis = w.random.randint(max(0, rank - 2), rank - 1)
    scaled = w.random.random() < 0.7
    norm = Norm(rank, axis, centered, scaled, centered and scaled and w.random.random() < 0.7, 10.0 ** -(seed % 5 + 2))
    row = sizes[axis:]
    shape = sizes if seed % 2 else [f"d{i}" if i < axis else n for i, n in enumerate(sizes)]
    inputs: dict[str, Sequence[int | str]] = {"x": shape}
    feeds = {"x": torch.randn(sizes, dtype=dtype)}
    for name, present in (("w", norm.scaled), ("b", norm.shifted)):
        if present:
            inputs[name] = row
            feeds[name] = torch.randn(row, dtype=dtype)
    model = w.model(inputs, norm.write(w, "x"), shape)
    wanted = "LayerNormalization" if centered else "RMSNormalization"
    compare(model, feeds, lambda x, w=None, b=None: norm.expected(x, w, b), TOLERANCES[dtype], wanted)


@pytest.mark.parametrize("centered", [True, False])
def test_rows_that_are_widened_only_to_be_normalised(centered: bool) -> None:
    w = Writer(3, torch.float32)
    x = w.op("Cast", "x", to=TensorProto.FLOAT)
    y = Norm(2, 1, centered, scaled=False, shifted=False, epsilon=1e-5).write(w, x)
    w.dtype = torch.float16
    model = w.model({"x": ["n", 40], "w": [40]}, w.op("Mul", w.op("Cast", y, to=TensorProto.FLOAT16), "w"), ["n", 40])
    feeds = {"x": np.random.default_rng(0).normal(size=(5, 40)).astype(np.float16), "w": np.full(40, 0.5, np.float16)}
    session = backpass.InferenceSession(model.SerializeToString())
    assert sum(r.pass_name in PASSES for r in session.pass_reports()) == 1
    other = backpass.InferenceSession(model.SerializeToString(), disabled_passes=PASSES)
    np.testing.assert_allclose(session.run(None, feeds)[0], other.run(None, feeds)[0], rtol=2e-3, atol=1e-3)


OTHERS: dict[str, Callable[[Writer], str]] = {
    "another epsilon per row": lambda w: w.op("Div", "x", w.op("Sqrt", w.op("Add", mean(w, squares(w), [1]), "r"))),
    "no epsilon": lambda w: w.op("Div", "x", w.op("Sqrt", mean(w, squares(w), [1]))),
    "first axis": lambda w: w.op("Div", "x", w.op("Sqrt", w.op("Add", mean(w, squares(w), [0]), w.number(1e-3)))),
    "cubes": lambda w: w.op("Div", "x", w.op("Sqrt", w.op("Add", mean(w, cube(w, "x"), [1]), w.number(99)))),
    "another root": lambda w: w.op(
        "Div", "x", w.op("Pow", w.op("Add", mean(w, squares(w), [1]), w.number(1e-3)), w.number(0.4))
    ),
    "the inverse": lambda w: w.op("Div", w.op("Sqrt", w.op("Add", mean(w, squares(w), [1]), w.number(1e-3))), "x"),
    "another factor": lambda w: halves(w, "x", w.op("Erf", w.scaled("x", 0.7072))),
    "another half": lambda w: w.product(["x", w.number(0.51), w.op("Add", w.number(1), w.op("Erf", half_root(w)))]),
    "another term": lambda w: halves(w, "x", w.op("Tanh", w.op("Add", cubic(w, "x", 0.7978845608), w.number(1e-3)))),
    "another cube": lambda w: halves(w, "x", w.op("Tanh", w.op("Add", w.scaled("x", 0.7978845608), cube(w, "x")))),
    "a row of factors": lambda w: w.product(["x", "r", w.op("Add", w.number(1), w.op("Erf", half_root(w)))]),
}


def squares(w: Writer) -> str:
    return w.op("Mul", "x", "x")


def half_root(w: Writer) -> str:
    return w.scaled("x", math.sqrt(0.5))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_nearly_one_stays(name: str) -> None:
    for seed in range(4):
        w = Writer(seed, torch.float32)
        model = w.model({"x": ["n", 6], "r": [1]}, OTHERS[name](w), ["n", 6])
        session = backpass.InferenceSession(model.SerializeToString())
        assert not [r.what for r in session.pass_reports() if r.pass_name in PASSES]


class NewGelu(torch.nn.Module):
    """As GPT-2 has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class QuickGelu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class RootMeanSquare(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def written_out() -> torch.nn.Module:
    torch.manual_seed(5)
    layers = [torch.nn.LayerNorm(12), torch.nn.GELU(), torch.nn.GELU("tanh"), NewGelu(), QuickGelu()]
    steps = [part for layer in [*layers, RootMeanSquare(12)] for part in (torch.nn.Linear(12, 12), layer)]
    return torch.nn.Sequential(*steps)


def recognised(reports: Sequence[Any]) -> list[str]:
    return sorted(r.what.split()[1] for r in reports if r.pass_name in PASSES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", [11, 13, 14])
def test_exports_of_older_opsets(opset: int, tmp_path: Path) -> None:
    module, x, path = written_out(), torch.randn(3, 5, 12), str(tmp_path / "m.onnx")
    axes = {"x": {0: "batch", 1: "length"}}
    torch.onnx.export(module, (x,), path, dynamo=False, opset_version=opset, input_names=["x"], dynamic_axes=axes)
    session = backpass.InferenceSession(path)
    wanted = ["Gelu", "Gelu", "Gelu", "LayerNormalization", "QuickGelu", "RMSNormalization"]
    assert recognised(session.pass_reports()) == wanted
    found = session.run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_modules_that_write_them_out() -> None:
    """What has an operator in torch is exported as one; the others are recognised."""
    eager = written_out()
    module = ORTModule(copy.deepcopy(eager))
    x = torch.randn(3, 5, 12)
    for each in (eager, module):
        each(x).square().mean().backward()
    text = module.explain()
    assert [text.count(f"recognised {op} in") for op in ("Gelu", "QuickGelu", "RMSNormalization")] == [1, 1, 1]
    for one, other in zip(module.parameters(), eager.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
