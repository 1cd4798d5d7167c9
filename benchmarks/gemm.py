"""Matrix products of training steps: ours beside oneDNN's sgemm, torch.mm (MKL) and numpy's matmul (OpenBLAS), all in
one process, taking turns call by call on the same operands.

python benchmarks/gemm.py                            every shape, one thread
python benchmarks/gemm.py --groups heads mlp --seconds 2
python benchmarks/gemm.py --gate 0.95                exit code 1 when a product is below 0.95 of the best library
BACKPASS_MAX_ISA=avx2 python benchmarks/gemm.py      with AVX2 alone, for the libraries, too
python benchmarks/gemm.py --shape 64,128,784,nt      one product: m,n,k and which operands are stored transposed

Ours is the product's own step in a session, as its profile tells: the operands are inputs, so nothing is packed ahead,
and the result is reduced to one number, so that no call hands out a large array. Of the libraries' times the cost of
calling them from Python is taken off, as a product of single numbers shows it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIN_TURNS = 5
READY = "BENCHMARK_GEMM_READY"
CAPS = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}


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


def linear(name: str, rows: int, inputs: int, outputs: int, op: str = "FusedMatMul") -> list[Product]:
    """torch.nn.Linear, whose weight is [outputs, inputs]: forward, gradient of its input, gradient of its weight."""
    return [
        Product(f"{name} forward", rows, outputs, inputs, trans_b=True, op=op),
        Product(f"{name} dX", rows, inputs, outputs, op=op),
        Product(f"{name} dW", outputs, inputs, rows, trans_a=True, op=op),
    ]


def conv1d(name: str, rows: int, inputs: int, outputs: int) -> list[Product]:
    """GPT-2's layers, whose weight is [inputs, outputs]."""
    return [
        Product(f"{name} forward", rows, outputs, inputs),
        Product(f"{name} dX", rows, inputs, outputs, trans_b=True),
        Product(f"{name} dW", inputs, outputs, rows, trans_a=True),
    ]


def layers(make: Callable[..., list[Product]], rows: int, widths: list[tuple[int, int]], **more: Any) -> list[Product]:
    return [p for a, b in widths for p in make(f"{rows} rows, {a} to {b},", rows, a, b, **more)]


GROUPS = {
    "bert": layers(linear, 2048, [(512, 512), (512, 2048), (2048, 512)]),
    "gpt2": layers(conv1d, 512, [(384, 1152), (384, 384), (384, 1536), (1536, 384)]),
    "heads": [
        *layers(linear, 512, [(384, 50257)]),
        *layers(linear, 700, [(200, 28782)]),
        *layers(linear, 2048, [(512, 30522)]),
        *layers(linear, 307, [(512, 30522)]),
    ],
    "mlp": layers(linear, 64, [(784, 128), (9216, 128)], op="Gemm"),
}


def restart_with(threads: int) -> None:
    """Libraries read these when they are loaded, so they have to be there before Python starts."""
    if os.environ.get(READY) == str(threads):
        return
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {**os.environ, READY: str(threads), **dict.fromkeys(names, str(threads))}
    if os.environ.get("BACKPASS_MAX_ISA") == "avx2":
        environment |= CAPS
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


# ---- The contestants: each is called with operands and returns the seconds of one product.
def session_for(product: Product, threads: int) -> Any:
    import backpass
    from onnx import TensorProto, helper

    flags = {"transA": int(product.trans_a), "transB": int(product.trans_b)}
    domain = "com.microsoft" if product.op == "FusedMatMul" else ""
    nodes = [
        helper.make_node(product.op, ["a", "b"], ["c"], "product", domain=domain, **flags),
        helper.make_node("ReduceMax", ["c"], ["y"], keepdims=0),
    ]
    shapes = {"a": shape_a(product), "b": shape_b(product)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "product", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return backpass.InferenceSession(model.SerializeToString(), profile=True, num_threads=threads)


def shape_a(product: Product) -> tuple[int, int]:
    return (product.k, product.m) if product.trans_a else (product.m, product.k)


def shape_b(product: Product) -> tuple[int, int]:
    return (product.n, product.k) if product.trans_b else (product.k, product.n)


def ours(product: Product, threads: int, a: Any, b: Any) -> Callable[[], float]:
    session, feeds = session_for(product, threads), {"a": a, "b": b}

    def call() -> float:
        session.run(None, feeds)
        (step,) = [s for s in session.take_profile().steps if s.flops > 0]
        assert step.flops == product.flops, step
        return float(step.duration_us) * 1e-6

    return call


def onednn() -> Any:
    """dnnl_sgemm of the library that Backpass has loaded, or of any that is found by name."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libdnnl" in line}
    try:
        return ctypes.CDLL(next(iter(sorted(mapped)), "libdnnl.so.3")).dnnl_sgemm
    except (OSError, AttributeError):
        return None


def timed(work: Callable[[], Any]) -> Callable[[], float]:
    def call() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return call


def with_onednn(sgemm: Any, product: Product, a: Any, b: Any, c: Any) -> Callable[[], float]:
    size, one, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    (flag_a, flag_b), (m, n, k) = product.layout.upper().encode(), (product.m, product.n, product.k)
    data = [pointer(x.ctypes.data) for x in (a, b, c)]
    arguments = [
        ctypes.c_char(flag_a), ctypes.c_char(flag_b), size(m), size(n), size(k), one(1.0),
        data[0], size(a.shape[1]), data[1], size(b.shape[1]), one(0.0), data[2], size(n),
    ]  # fmt: skip
    return timed(lambda: sgemm(*arguments))


def with_torch(product: Product, a: Any, b: Any, c: Any) -> Callable[[], float]:
    import torch

    x, y, out = (torch.from_numpy(t) for t in (a, b, c))
    x, y = x.t() if product.trans_a else x, y.t() if product.trans_b else y
    return timed(lambda: torch.mm(x, y, out=out))


def with_numpy(product: Product, a: Any, b: Any, c: Any) -> Callable[[], float]:
    import numpy as np

    x, y = a.T if product.trans_a else a, b.T if product.trans_b else b
    return timed(lambda: np.matmul(x, y, out=c))


def contestants(product: Product, threads: int, sgemm: Any) -> dict[str, Callable[[], float]]:
    import numpy as np

    random = np.random.default_rng(0)
    a = random.standard_normal(shape_a(product), dtype=np.float32)
    b = random.standard_normal(shape_b(product), dtype=np.float32)
    c = np.zeros((product.m, product.n), np.float32)  # that the libraries share
    found = {"ours": ours(product, threads, a, b)}
    if sgemm is not None:
        found["onednn"] = with_onednn(sgemm, product, a, b, c)
    return {**found, "torch": with_torch(product, a, b, c), "openblas": with_numpy(product, a, b, c)}


# ---- Taking turns
def take_turns(calls: dict[str, Callable[[], float]], seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end, turn = time.perf_counter() + seconds, 0
    while turn < MIN_TURNS or time.perf_counter() < end:
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            times[name].append(calls[name]())
        turn += 1
    return times


def overheads(threads: int, sgemm: Any) -> dict[str, float]:
    """Seconds of calling each library for next to nothing. Ours is timed inside."""
    calls = contestants(Product("nothing", 1, 1, 1), threads, sgemm)
    return {name: 0.0 if name == "ours" else min(times) for name, times in take_turns(calls, 0.05).items()}


@dataclass(frozen=True)
class Row:
    product: Product
    least: dict[str, float]
    median: dict[str, float]

    def ratio(self, times: dict[str, float]) -> float:
        """Our rate to that of the best library."""
        return min(t for name, t in times.items() if name != "ours") / times["ours"]

    def text(self) -> str:
        p = self.product
        rates = [f"{p.flops / self.least[name] / 1e9:8.1f}" for name in self.least]
        medians = [f"({p.flops / self.median[name] / 1e9:.1f})".rjust(8) for name in self.least]
        cells = "".join(rate + median for rate, median in zip(rates, medians, strict=True))
        sizes = f"{p.m}x{p.n}x{p.k} {p.layout}"
        return f"{p.name:<34}{sizes:<20}{cells}{self.ratio(self.least):>8.2f}{self.ratio(self.median):>8.2f}"


def measure(product: Product, threads: int, sgemm: Any, cost: dict[str, float], seconds: float) -> Row:
    times = take_turns(contestants(product, threads, sgemm), seconds)
    net = {name: [max(t - cost[name], 1e-9) for t in found] for name, found in times.items()}
    return Row(
        product,
        {name: min(found) for name, found in net.items()},
        {name: statistics.median(found) for name, found in net.items()},
    )


def chosen_products(options: argparse.Namespace) -> list[Product]:
    if not options.shape:
        return [p for group in options.groups for p in GROUPS[group]]
    found = []
    for text in options.shape:
        m, n, k, layout = text.split(",")
        found.append(Product("", int(m), int(n), int(k), layout[0] == "t", layout[1] == "t"))
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--shape", nargs="+", metavar="M,N,K,LAYOUT", help="products of your own; nn, nt, tn or tt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.5, help="for each product, all libraries together")
    parser.add_argument("--gate", type=float, default=0.0, help="fail when a ratio of minima is below")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    restart_with(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    contestants(Product("nothing", 1, 1, 1), options.threads, None)  # loads Backpass, and oneDNN with it
    sgemm = onednn()
    cost = overheads(options.threads, sgemm)
    isa = os.environ.get("BACKPASS_MAX_ISA", "the best instructions there are")
    print(f"GF/s from minima (from medians), {options.threads} thread(s), {isa}; ratios to the best library.")
    if sgemm is None:
        print("libdnnl.so.3 was not found: oneDNN takes no part.")
    names = "".join(f"{name:>16}" for name in cost)
    print(f"{'product':<34}{'m x n x k':<20}{names}{'ratio':>8}{'(med.)':>8}")
    rows = []
    for product in chosen_products(options):
        rows.append(measure(product, options.threads, sgemm, cost, options.seconds))
        print(rows[-1].text(), flush=True)
    ratios = [row.ratio(row.least) for row in rows]
    below = [row for row, ratio in zip(rows, ratios, strict=True) if ratio < options.gate]
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}, worst {min(ratios):.3f}")
    for row in below:
        print(f"below {options.gate}: {row.text()}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
