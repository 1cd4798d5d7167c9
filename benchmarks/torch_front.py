"""Training steps of PyTorch modules through Backpass against torch eager, torch.compile and, where it is installed,
ORTModule of onnxruntime-training 1.19.2: the same network and batch, engines taking turns within one run.

python benchmarks/torch_front.py                          everything (--write: also into docs/torch_speed.md, and drawn)
python benchmarks/torch_front.py --networks gpt2 --threads 1 --turns 3 --engines backpass eager
python benchmarks/torch_front.py --optimizer none         forward and backward alone
python benchmarks/torch_front.py --dropout 0              the losses of all engines agree then
python benchmarks/torch_front.py --padded                 batches with padding and few labels, into docs/padded_speed.md
python benchmarks/torch_front.py --padded --dense         the same networks where there is nothing to leave out
BACKPASS_ORT_TRAINING_PYTHON=/path/to/python python benchmarks/torch_front.py   with the original
BACKPASS_MAX_ISA=avx2 python benchmarks/torch_front.py    with AVX2 alone, for all engines; --write: a page of its own
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import speed_chart
import torch
from padded_networks import PADDED
from torch_networks import NETWORKS

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
ORIGINAL = os.environ.get("BACKPASS_ORT_TRAINING_PYTHON", "")
STEADY = ["mlp", "cnn", "bert_classify", "bert_masked", "gpt2", "tutorial", "resnet18", "llama"]
ENGINES = ["backpass", "eager", "inductor", "original"]
PADDED_ENGINES = ["backpass", "backpass-dense", "eager", "inductor", "original"]


# The original does not get through torch's fused attention with dropout.
NEEDS = {"original": {"BENCHMARK_ATTENTION": "eager"}}
CAPPED = os.environ.get("BACKPASS_MAX_ISA") == "avx2"
CAPS = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


def environment_of(engine: str, threads: int) -> dict[str, str]:
    """The original has an environment of its own, and must not find packages of ours."""
    kept = {k: v for k, v in os.environ.items() if engine != "original" or k != "PYTHONPATH"}
    return {**kept, "OMP_NUM_THREADS": str(threads), **(CAPS if CAPPED else {}), **NEEDS.get(engine, {})}


class Worker:
    """An engine in a process of its own, with its own threads and memory."""

    def __init__(self, engine: str, network: str, threads: int, options: argparse.Namespace) -> None:
        python = ORIGINAL if engine == "original" else sys.executable
        command = [python, HERE / "torch_worker.py", engine, network, threads, options.dropout, options.optimizer]
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment_of(engine, threads),
        )  # fmt: skip
        self.times: list[float] = []
        self.losses: list[float] = []
        self.first, self.captured = self._answer()  # the second: how much of the first torch's capture took

    def _answer(self) -> list[float]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read()[-2000:])
        return [float(word) for word in line.split()]

    def _ask(self, what: object) -> list[float]:
        assert self.process.stdin is not None
        print(what, file=self.process.stdin, flush=True)
        return self._answer()

    def possible(self) -> float:
        """Seconds that a step takes at least."""
        return self._ask("possible")[0]

    def turn(self, seconds: float) -> None:
        found = self._ask(seconds)
        half = len(found) // 2
        self.times += found[:half]
        self.losses += found[half:]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def in_ms(seconds: float) -> str:
    return f"{1e3 * seconds:.{1 if seconds >= 0.01 else 3}f}"


@dataclass(frozen=True)
class Measured:
    """One network with one number of threads; engines that failed are missing."""

    network: str
    threads: int
    workers: dict[str, Worker]
    possible: float | None  # seconds, for ours

    def least(self, engine: str) -> float | None:
        return min(self.workers[engine].times) if engine in self.workers else None

    def row(self, engines: list[str]) -> str:
        found = [self.workers.get(engine) for engine in engines]
        cells = ["failed" if w is None else f"{1e3 * np.median(w.times):.1f} ({1e3 * min(w.times):.1f})" for w in found]
        ours = self.workers.get("backpass")
        for engine, worker in zip(engines, found, strict=True):
            if engine == "backpass":
                continue
            both = worker is not None and ours is not None
            cells.append(f"{np.median(ours.times) / np.median(worker.times):.2f}" if both else "-")
        cells += ["-", "-"]
        if self.possible is not None and ours is not None:
            cells[-2:] = [in_ms(self.possible), f"{self.possible / min(ours.times):.2f}"]
        there = [w for w in found if w is not None]
        cells.append(" / ".join(f"{w.first:.1f}" for w in there))
        cells.append(" / ".join(f"{w.losses[0]:.4f}" for w in there))
        return "| " + " | ".join([self.network, str(self.threads), *cells]) + " |"


def measure(network: str, threads: int, options: argparse.Namespace) -> Measured:
    workers: dict[str, Worker] = {}
    for engine in options.engines:
        try:
            workers[engine] = Worker(engine, network, threads, options)
        except RuntimeError as error:
            print(f"{engine} on {network}: {error}", file=sys.stderr)
    for turn in range(options.turns):
        for worker in list(workers.values())[:: 1 if turn % 2 == 0 else -1]:
            worker.turn(options.seconds)
    possible = workers["backpass"].possible() if "backpass" in workers else None
    for worker in workers.values():
        worker.close()
    return Measured(network, threads, workers, possible)


def machine() -> str:
    """The processors, as Linux calls them, and the instructions that were used. Names of rented ones tell little."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    found = {name.strip(): value.strip() for name, _, value in lines}
    count = sum(name.strip() == "processor" for name, _, _ in lines)
    kind = f"{found['model name']}, family {found['cpu family']} model {found['model']}"
    vectors = "AVX2 alone" if CAPPED else "AVX-512" if "avx512f" in found["flags"] else "AVX2"
    return f"{count} x {kind}, {vectors}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--padded", action="store_true", help="the networks with padding and few labels")
    parser.add_argument("--dense", action="store_true", help="these on full sentences, every label counting")
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS, *PADDED])
    parser.add_argument("--engines", nargs="+")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--optimizer", choices=["adam", "none"], default="adam", help="part of a step, or not")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one turn")
    parser.add_argument("--write", action="store_true", help="also put the table into docs/")
    options = parser.parse_args()
    options.networks = options.networks or (list(PADDED) if options.padded else STEADY)
    engines = PADDED_ENGINES if options.padded else ENGINES
    options.engines = options.engines or [e for e in engines if e != "original" or ORIGINAL]
    if "original" in options.engines and not Path(ORIGINAL).is_file():
        parser.error(
            f"BACKPASS_ORT_TRAINING_PYTHON: got '{ORIGINAL}', expected the Python that has the original; "
            "`make .venv/onnxruntime-training/.torch-2.4.1` makes one"
        )
    if options.dense:
        os.environ["BENCHMARK_DENSE"] = "1"  # of the workers
    return options


ADAM_NOTE = (
    "The optimizer is AdamW: Backpass's FusedAdam, for the others torch's with fused=True (the original's own one\n"
    "needs a GPU)."
)
THREADS_NOTE = (
    "The original's threads are set in its session options. Its pool follows neither OMP_NUM_THREADS nor the\n"
    "processors a process is given: until that was set here, what was called its one thread were two cores."
)
MKL_NOTE = (
    "torch's products are MKL's, which uses AVX-512 on no processor of AMD: there a rival's rate is AVX2's.\n"
    "What is possible is the rate of the best library found here."
)


def heading(options: argparse.Namespace) -> list[str]:
    ratios = [f"to {engine}" for engine in options.engines if engine != "backpass"]
    titles = ["network", "threads", *options.engines, *ratios, "possible", "fraction", "first step, s", "losses"]
    padded = (
        "Lengths and numbers of labels differ in each of eight batches, which take turns. " if options.padded else ""
    )
    adam = options.optimizer != "none"
    return [
        f"Median of single steps (forward, backward{', optimizer' if adam else ''}), minimum in brackets, in ms;",
        "engines took turns. Ratios under 1: Backpass's ORTModule is faster. What is possible: the time of our step if",
        "each of its parts reached a limit of the machine, the rate of large products or that of a copy, whichever is",
        f"slower for it; the fraction: that to our minimum. Dropout {options.dropout}. First steps, losses: in turn.",
        "Convolutions by Winograd's method (winograd.md) take fewer operations than are counted: fractions over 1.",
        *([ADAM_NOTE] if adam else []),
        THREADS_NOTE,
        *([] if CAPPED else [MKL_NOTE]),
        "The original gets transformers' attention written out, for it does not take torch's fused one with dropout;",
        f"the others take the library's choice. {padded}{machine()}, torch {torch.__version__}.",
        "",
        "| " + " | ".join(titles) + " |",
        "| --- " * len(titles) + "|",
    ]


def write(lines: list[str], found: list[Measured], options: argparse.Namespace) -> None:
    written = "--padded --write" if options.padded else "--write"
    start = "BACKPASS_MAX_ISA=avx2 " if CAPPED else ""
    title = "# Training steps of PyTorch modules" + (" on padded batches" if options.padded else "")
    title += ", with AVX2 alone" if CAPPED else ""
    page = DOCS / (("padded_speed" if options.padded else "torch_speed") + ("_avx2" if CAPPED else "") + ".md")
    picture = page.with_suffix(".svg")
    bars = [
        speed_chart.Bars(
            f"{m.network}, {m.threads} thread{'s' * (m.threads > 1)}",
            {engine: m.least(engine) for engine in options.engines},
            m.possible,
        )
        for m in found
    ]
    drawn = speed_chart.draw(bars, picture)
    shown = [f"![Step times relative to Backpass]({picture.name})", ""] if drawn else []
    text = [title, "", f"Written by `{start}benchmarks/torch_front.py {written}`.", "", *shown, *lines, ""]
    page.write_text("\n".join(text))


def main() -> None:
    options = arguments()
    lines = heading(options)
    print(*lines, sep="\n", flush=True)
    found: list[Measured] = []
    for network in options.networks:
        for threads in options.threads:
            found.append(measure(network, threads, options))
            lines.append(found[-1].row(options.engines))
            print(lines[-1], flush=True)
    if options.write:
        write(lines, found, options)


if __name__ == "__main__":
    main()
