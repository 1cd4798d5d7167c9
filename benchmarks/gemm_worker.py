"""One contestant of benchmarks/gemm.py in a process of its own: gemm_worker.py CONTESTANT THREADS.

A line of stdin is either a product, answered by the largest element of the result once operands are there, or the
seconds of a turn, answered by the seconds of its calls.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], float]  # one product; its seconds


@dataclass(frozen=True)
class Product:
    """op(A) op(B) with op(A) [m, k] and op(B) [k, n]; a transposed operand is stored the other way around."""

    name: str
    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    op: str = "FusedMatMul"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def layout(self) -> str:
        return "nt"[self.trans_a] + "nt"[self.trans_b]

    @property
    def shape_a(self) -> tuple[int, int]:
        return (self.k, self.m) if self.trans_a else (self.m, self.k)

    @property
    def shape_b(self) -> tuple[int, int]:
        return (self.n, self.k) if self.trans_b else (self.k, self.n)

    def line(self) -> str:
        return f"{self.m},{self.n},{self.k},{self.layout},{self.op}"

    @staticmethod
    def parse(line: str, name: str = "") -> Product:
        m, n, k, layout, *op = line.strip().split(",")
        return Product(name, int(m), int(n), int(k), layout[0] == "t", layout[1] == "t", *op)


@dataclass(frozen=True)
class Operands:
    a: Any
    b: Any
    c: Any  # the result

    @staticmethod
    def of(product: Product) -> Operands:
        random = np.random.default_rng(0)
        a = random.standard_normal(product.shape_a, dtype=np.float32)
        b = random.standard_normal(product.shape_b, dtype=np.float32)
        return Operands(a, b, np.zeros((product.m, product.n), np.float32))


def timed(work: Callable[[], Any]) -> Call:
    def call() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return call


# ---- The contestants
def session_for(product: Product, threads: int) -> Any:
    import backpass
    from onnx import TensorProto, helper

    flags = {"transA": int(product.trans_a), "transB": int(product.trans_b)}
    domain = "com.microsoft" if product.op == "FusedMatMul" else ""
    nodes = [
        helper.make_node(product.op, ["a", "b"], ["c"], "product", domain=domain, **flags),
        helper.make_node("ReduceMax", ["c"], ["y"], keepdims=0),
    ]
    shapes = {"a": product.shape_a, "b": product.shape_b}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "product", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return backpass.InferenceSession(model.SerializeToString(), profile=True, num_threads=threads)


def ours(product: Product, threads: int, x: Operands) -> Call:
    session, feeds = session_for(product, threads), {"a": x.a, "b": x.b}

    def call() -> float:
        (x.c[0, 0],) = session.run(None, feeds)
        (step,) = [s for s in session.take_profile().steps if s.flops > 0]
        assert step.flops == product.flops, step
        return float(step.duration_us) * 1e-6

    return call


def sgemm_of_onednn() -> Any:
    """dnnl_sgemm of the library that Backpass has loaded, or of any that is found by name."""
    import backpass  # noqa: F401

    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libdnnl" in line}
    return ctypes.CDLL(next(iter(sorted(mapped)), "libdnnl.so.3")).dnnl_sgemm


def onednn(product: Product, threads: int, x: Operands) -> Call:
    sgemm = sgemm_of_onednn()
    size, one, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    (flag_a, flag_b), (m, n, k) = product.layout.upper().encode(), (product.m, product.n, product.k)
    a, b, c = (pointer(operand.ctypes.data) for operand in (x.a, x.b, x.c))
    arguments = [
        ctypes.c_char(flag_a), ctypes.c_char(flag_b), size(m), size(n), size(k), one(1.0),
        a, size(x.a.shape[1]), b, size(x.b.shape[1]), one(0.0), c, size(n),
    ]  # fmt: skip
    return timed(lambda: sgemm(*arguments))


def torch_mm(product: Product, threads: int, x: Operands) -> Call:
    import torch

    torch.set_num_threads(threads)
    a, b, out = (torch.from_numpy(operand) for operand in (x.a, x.b, x.c))
    a, b = a.t() if product.trans_a else a, b.t() if product.trans_b else b
    return timed(lambda: torch.mm(a, b, out=out))


def openblas(product: Product, threads: int, x: Operands) -> Call:
    a, b = x.a.T if product.trans_a else x.a, x.b.T if product.trans_b else x.b
    return timed(lambda: np.matmul(a, b, out=x.c))


CONTESTANTS = {"ours": ours, "onednn": onednn, "torch": torch_mm, "openblas": openblas}


# ---- Their turns
def turn(call: Call, seconds: float) -> list[float]:
    """The first call wakes threads and fills caches: it counts only if it is so long that there is no other."""
    end = time.perf_counter() + seconds
    found = [call()]
    while time.perf_counter() < end:
        found.append(call())
    return found[1:] or found


def cost_of_calling(name: str, threads: int) -> float:
    """Seconds for next to nothing. Ours is timed inside."""
    nothing = Product("", 1, 1, 1)
    return 0.0 if name == "ours" else min(turn(CONTESTANTS[name](nothing, threads, Operands.of(nothing)), 0.05))


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    os.sched_setaffinity(0, range(threads))  # whatever a library thinks of the number
    cost = cost_of_calling(name, threads)
    print(cost, flush=True)
    call: Call | None = None
    for line in sys.stdin:
        if "," in line:
            product = Product.parse(line)
            call = None  # and its operands, before there are others
            operands = Operands.of(product)
            call = CONTESTANTS[name](product, threads, operands)
            operands.c[:] = -np.inf
            call()
            print(operands.c.max(), flush=True)
            continue
        assert call is not None
        print(*(max(t - cost, 1e-9) for t in turn(call, float(line))), flush=True)


if __name__ == "__main__":
    main()
