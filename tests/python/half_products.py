"""Products of 16-bit floats beside float64. Without torch: processes that stand for lesser machines start sooner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from backpass import InferenceSession
from onnx import TensorProto, helper

# Element type, relative error of rounding to it, absolute error below its normal numbers.
NARROW = {
    TensorProto.BFLOAT16: (ml_dtypes.bfloat16, 2.0**-8, 2.0**-126),
    TensorProto.FLOAT16: (np.float16, 2.0**-11, 2.0**-25),
}
SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (17, 33, 65),
    (2, 1100, 321),
    (97, 513, 641),
    (300, 40, 50),
    (0, 4, 5),
    (4, 0, 5),
    (4, 5, 0),
]


@dataclass
class Case:
    """f(alpha * op(A) op(B) + beta * C), as Gemm, or as MatMul with what stands around it."""

    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    code: int = TensorProto.BFLOAT16
    batch: tuple[int, ...] = ()
    addend: tuple[int, ...] | None = None
    is_gemm: bool = False
    is_constant: bool = False
    alpha: float = 1.0
    relu: bool = False
    widened: bool = False

    def __post_init__(self) -> None:
        random = np.random.default_rng(abs(hash((self.m, self.n, self.k, self.trans_a, self.trans_b))))

        def drawn(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(NARROW[self.code][0])

        a = (self.k, self.m) if self.trans_a else (self.m, self.k)
        b = (self.n, self.k) if self.trans_b else (self.k, self.n)
        self.a, self.b = drawn(*self.batch, *a), drawn(*self.batch, *b)
        self.c = None if self.addend is None else drawn(*self.addend)

    def model(self) -> bytes:
        tensors = {"a": self.a, "b": self.b} | ({} if self.c is None else {"c": self.c})
        kept = [name for name in tensors if not (self.is_constant and name == "b")]
        inputs = [helper.make_tensor_value_info(name, self.code, tensors[name].shape) for name in kept]
        constants = (
            [] if "b" in kept else [helper.make_tensor("b", self.code, self.b.shape, self.b.tobytes(), raw=True)]
        )
        nodes = self._gemm(list(tensors)) if self.is_gemm else self._matmul()
        if self.relu:
            nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], ["r"]))
        if self.widened:
            nodes.append(helper.make_node("Cast", [nodes[-1].output[0]], ["w"], to=TensorProto.FLOAT))
        result = TensorProto.FLOAT if self.widened else self.code
        output = helper.make_tensor_value_info(nodes[-1].output[0], result, None)
        graph = helper.make_graph(nodes, "g", inputs, [output], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()

    def _gemm(self, names: list[str]) -> list[onnx.NodeProto]:
        how = {"transA": int(self.trans_a), "transB": int(self.trans_b), "alpha": self.alpha, "beta": 0.5}
        return [helper.make_node("Gemm", names, ["p"], **how)]

    def _matmul(self) -> list[onnx.NodeProto]:
        rank = len(self.batch)
        swapped = [*range(rank), rank + 1, rank]
        nodes = [helper.make_node("Transpose", [x], [x + "t"], perm=swapped) for x in self._swapped()]
        names = [x + "t" if x in self._swapped() else x for x in ("a", "b")]
        nodes.append(helper.make_node("MatMul", names, ["p"]))
        if self.c is not None:
            nodes.append(helper.make_node("Add", ["p", "c"], ["s"]))
        return nodes

    def _swapped(self) -> list[str]:
        return [x for x, swaps in (("a", self.trans_a), ("b", self.trans_b)) if swaps]

    def run(self, threads: int = 1) -> np.ndarray:
        session = InferenceSession(self.model(), num_threads=threads)
        feeds = {"a": self.a} | ({} if self.is_constant else {"b": self.b}) | ({} if self.c is None else {"c": self.c})
        (y,) = session.run(None, feeds)
        return y

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The exact result, and by how much the one computed may differ: sums are float32 (one rounding for each of k
        products and for what follows), and the result is rounded once."""
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        a, b = np.swapaxes(a, -1, -2) if self.trans_a else a, np.swapaxes(b, -1, -2) if self.trans_b else b
        exact, size = self.alpha * (a @ b), abs(self.alpha) * (np.abs(a) @ np.abs(b))
        if self.c is not None:
            c = (0.5 if self.is_gemm else 1.0) * self.c.astype(np.float64)
            exact, size = exact + c, size + np.abs(c)
        _, relative, absolute = NARROW[self.code]
        sums = (self.k + 4) * 2.0**-24 * 1.001 * size
        limit = sums if self.widened else relative * np.abs(exact) + (1 + relative) * sums + absolute
        return np.maximum(exact, 0) if self.relu else exact, limit

    def check(self) -> None:
        y = self.run()
        exact, limit = self.expected()
        assert y.dtype == (np.float32 if self.widened else NARROW[self.code][0])
        assert (np.abs(y.astype(np.float64) - exact) <= limit).all(), self
        assert y.tobytes() == self.run(threads=2).tobytes()


def forms(m: int, n: int) -> list[dict[str, Any]]:
    return [
        {},
        {"addend": (n,), "relu": True},
        {"is_constant": True},
        {"widened": True},
        {"batch": (3, 2)},
        {"is_gemm": True, "alpha": 2.0},
        {"is_gemm": True, "addend": (1, n)},
        {"is_gemm": True, "addend": (m, 1), "alpha": -0.5},
        {"is_gemm": True, "addend": (m, n), "is_constant": True},
    ]


def check_shape(shape: tuple[int, int, int]) -> None:
    for code in NARROW:
        for sides in range(4):
            for form in forms(*shape[:2]):
                Case(*shape, trans_a=bool(sides & 1), trans_b=bool(sides & 2), code=code, **form).check()


def check_rounding() -> None:
    """The product of two numbers of 8 digits has 16, which float32 holds: rounded once, ties to even. Numbers that no
    processor flushes, infinities, and numbers that are none."""
    random = np.random.default_rng(3)
    bits = random.integers(64 << 7, 192 << 7, (2, 300)).astype(np.uint16) | (
        random.integers(0, 2, (2, 300)) << 15
    ).astype(np.uint16)
    a, b = (row.view(ml_dtypes.bfloat16).copy() for row in bits)
    a[:5] = b[:5] = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], ml_dtypes.bfloat16)
    a[5:8] = np.array([1.0078125, 1.0234375, 3.0e38], ml_dtypes.bfloat16)
    b[5:8] = np.array([1.5, 1.5, 2.0], ml_dtypes.bfloat16)  # halfway between two: up, down; too large
    case = Case(300, 300, 1)
    case.a, case.b = a[:, None], b[None, :]
    with np.errstate(invalid="ignore", over="ignore"):
        exact = a[:, None].astype(np.float32) * b[None, :].astype(np.float32)
        expected = exact.astype(ml_dtypes.bfloat16)
    y, is_number = case.run(), ~np.isnan(exact)
    np.testing.assert_array_equal(np.isnan(y.astype(np.float32)), ~is_number)
    np.testing.assert_array_equal(y.view(np.uint16)[is_number] & 0x7FFF, expected.view(np.uint16)[is_number] & 0x7FFF)
    np.testing.assert_array_equal(y.astype(np.float32)[is_number], expected.astype(np.float32)[is_number])


def check_pieces() -> None:
    for m, n, k, trans in ((523, 1111, 1031, False), (523, 1111, 1031, True), (101, 530, 5003, True)):
        case = Case(m, n, k, trans_a=trans, trans_b=not trans)
        alone = case.run()
        exact, limit = case.expected()
        assert (np.abs(alone.astype(np.float64) - exact) <= limit).all()
        assert all(case.run(threads).tobytes() == alone.tobytes() for threads in (2, 3, 4))
