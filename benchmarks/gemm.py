"""Matrix products of training steps: ours beside oneDNN's sgemm, torch.mm (MKL) and numpy's matmul (OpenBLAS), each in
a process of its own, taking turns on the same operands.

python benchmarks/gemm.py                            every shape, one thread
python benchmarks/gemm.py --groups heads mlp --seconds 2 --threads 2
python benchmarks/gemm.py --gate 0.95                exit code 1 when a product is below 0.95 of the best library
BACKPASS_MAX_ISA=avx2 python benchmarks/gemm.py      with AVX2 alone, for the libraries, too
python benchmarks/gemm.py --shape 64,128,784,nt      one product: m,n,k and which operands are stored transposed

Ours is the product's own step in a session, as its profile tells: the operands are inputs, so nothing is packed ahead,
and the result is reduced to one number, so that no call hands out a large array. Of the libraries' times the cost of
calling them from Python is taken off, as a product of single numbers shows it.

Threads of a library that have nothing to do go on looking for work for a while. In one process, or without the pause
before each turn, they would take the processors from the next library.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemm_worker import CONTESTANTS, Product

HERE = Path(__file__).resolve().parent
MIN_ROUNDS = 4
TURN_SECONDS = 0.1
MORE_TURNS = 4  # as long again where a product is below the gate
PAUSE_SECONDS = 0.05  # OpenBLAS's threads look for work the longest: 2^26 ticks of the processor's clock
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CAPS = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}


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


# ---- Taking turns
class Worker:
    """A contestant in a process of its own."""

    def __init__(self, name: str, threads: int) -> None:
        caps = CAPS if os.environ.get("BACKPASS_MAX_ISA") == "avx2" else {}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "gemm_worker.py"), name, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **dict.fromkeys(THREADS, str(threads)), **caps},
        )  # fmt: skip
        self.answer()

    def tell(self, what: object) -> None:
        assert self.process.stdin is not None
        print(what, file=self.process.stdin, flush=True)

    def answer(self) -> list[float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise RuntimeError(self.process.stderr.read()[-2000:])
        return [float(word) for word in line.split()]

    def turn(self) -> list[float]:
        time.sleep(PAUSE_SECONDS)
        self.tell(TURN_SECONDS)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def workers_for(threads: int) -> dict[str, Worker]:
    """A library that is not there takes no part."""
    found = {}
    for name in CONTESTANTS:
        try:
            found[name] = Worker(name, threads)
        except RuntimeError as error:
            if name == "ours":
                raise
            print(f"{name} takes no part: {error}", file=sys.stderr)
    return found


def take_turns(workers: dict[str, Worker], product: Product, seconds: float) -> dict[str, list[float]]:
    for worker in workers.values():
        worker.tell(product.line())
    largest = {name: worker.answer()[0] for name, worker in workers.items()}
    assert all(math.isclose(x, largest["ours"], rel_tol=1e-3) for x in largest.values()), largest
    times: dict[str, list[float]] = {name: [] for name in workers}
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < MIN_ROUNDS or time.perf_counter() < end:
        for name in list(workers)[:: 1 if rounds % 2 == 0 else -1]:
            times[name] += workers[name].turn()
        rounds += 1
    return times


@dataclass(frozen=True)
class Row:
    product: Product
    least: dict[str, float]
    median: dict[str, float]

    @staticmethod
    def of(product: Product, times: dict[str, list[float]]) -> Row:
        least = {name: min(found) for name, found in times.items()}
        return Row(product, least, {name: statistics.median(found) for name, found in times.items()})

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


def chosen_products(options: argparse.Namespace) -> list[Product]:
    if options.shape:
        return [Product.parse(text) for text in options.shape]
    return [p for group in options.groups for p in GROUPS[group]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--shape", nargs="+", metavar="M,N,K,LAYOUT", help="products of your own; nn, nt, tn or tt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.5, help="for each product, all libraries together")
    parser.add_argument("--gate", type=float, default=0.0, help="fail when a ratio of minima is below")
    return parser.parse_args()


def measure(workers: dict[str, Worker], product: Product, options: argparse.Namespace) -> Row:
    """Below the gate all contestants have more turns, which count with the first ones: machines are shared."""
    times = take_turns(workers, product, options.seconds)
    row = Row.of(product, times)
    if row.ratio(row.least) >= options.gate:
        return row
    more = take_turns(workers, product, MORE_TURNS * options.seconds)
    return Row.of(product, {name: times[name] + more[name] for name in times})


def main() -> int:
    options = arguments()
    workers = workers_for(options.threads)
    isa = os.environ.get("BACKPASS_MAX_ISA", "the best instructions there are")
    print(f"GF/s from minima (from medians), {options.threads} thread(s), {isa}; ratios to the best library.")
    names = "".join(f"{name:>16}" for name in workers)
    print(f"{'product':<34}{'m x n x k':<20}{names}{'ratio':>8}{'(med.)':>8}")
    rows = []
    for product in chosen_products(options):
        rows.append(measure(workers, product, options))
        print(rows[-1].text(), flush=True)
    for worker in workers.values():
        worker.close()
    ratios = [row.ratio(row.least) for row in rows]
    below = [row for row, ratio in zip(rows, ratios, strict=True) if ratio < options.gate]
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}, worst {min(ratios):.3f}")
    for row in below:
        print(f"below {options.gate}: {row.text()}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
