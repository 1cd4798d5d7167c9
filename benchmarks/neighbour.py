"""Small networks against onnxruntime while another process keeps a core busy. All run in this process, in alternating
blocks, first without the neighbour, then with it.

python benchmarks/neighbour.py                    a perceptron and a small convolutional network, one and two threads
python benchmarks/neighbour.py --pin              the neighbour stays on the last core instead of going where it likes
python benchmarks/neighbour.py --large            two networks that take milliseconds: do threads still pay?
python benchmarks/neighbour.py --training         training steps, natively and through torch: see neighbour_worker.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parent))

from timing import Work, once

RANDOM = np.random.default_rng(0)
BLOCK = 20  # calls of one rival before the next one's turn


class Network:
    """A chain of nodes over one input."""

    def __init__(self, shape: list[int]) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.last = "x"

    def add(self, op: str, *weight_shapes: list[int], **attributes: Any) -> Network:
        names = [f"w{len(self.weights) + i}" for i in range(len(weight_shapes))]
        for name, shape in zip(names, weight_shapes, strict=True):
            values = (RANDOM.standard_normal(shape) * 0.05).astype(np.float32)
            self.weights.append(onnx.numpy_helper.from_array(values, name))
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.last, *names], [result], **attributes))
        self.last = result
        return self

    def model(self) -> bytes:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        outputs = [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return model.SerializeToString()


def perceptron(batch: int, width: int, layers: int) -> Network:
    network = Network([batch, width])
    for _ in range(layers):
        network.add("Gemm", [width, width], [width]).add("Relu")
    return network.add("Gemm", [width, 10], [10]).add("Softmax")


def convolutional(batch: int, size: int, channels: int, layers: int) -> Network:
    network = Network([batch, 3, size, size])
    inside = 3
    for _ in range(layers):
        network.add("Conv", [channels, inside, 3, 3], [channels], pads=[1, 1, 1, 1]).add("Relu")
        inside = channels
    return network.add("GlobalAveragePool").add("Flatten").add("Gemm", [channels, 10], [10])


SMALL = {"perceptron": perceptron(16, 256, 4), "convolutional": convolutional(1, 32, 16, 4)}
LARGE = {"perceptron": perceptron(256, 1024, 4), "convolutional": convolutional(8, 56, 64, 4)}


def theirs(model: bytes, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def rivals(network: Network, threads: list[int]) -> dict[str, Work]:
    model = network.model()
    feeds = {"x": RANDOM.standard_normal(network.shape).astype(np.float32)}
    works: dict[str, Work] = {}
    for n in threads:
        works[f"Backpass {n}"] = partial(backpass.InferenceSession(model, num_threads=n).run, None, feeds)
        works[f"onnxruntime {n}"] = partial(theirs(model, n).run, None, feeds)
    return works


@contextmanager
def neighbour(is_busy: bool, pinned: bool) -> Iterator[None]:
    """A process that never rests, if `is_busy`."""
    if not is_busy:
        yield
        return
    core = max(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, {{{core}}})\n" if pinned else ""
    process = subprocess.Popen([sys.executable, "-c", f"{pin}while True: pass"])
    try:
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def measure(works: dict[str, Work], seconds: float) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in works}
    end = time.perf_counter() + seconds * len(works)
    while time.perf_counter() < end:
        for name, work in works.items():
            time.sleep(0.005)  # lets the other's waiting threads fall asleep
            work()
            samples[name] += [once(work) for _ in range(BLOCK)]
    return samples


def report(network: str, busy: bool, samples: dict[str, list[float]]) -> None:
    for name, times in samples.items():
        cells = (min(times), statistics.median(times), statistics.fmean(times))
        numbers = "".join(f"{1e3 * c:>10.3f}" for c in cells)
        print(f"{network:<14} {'busy' if busy else 'quiet':<6} {name:<14}{numbers}", flush=True)


TRAINING = [
    "mlp", "mlp+torch", "cnn", "cnn+torch", "mlp ORTModule", "llama ORTModule", "mlp eager", "llama eager",
]  # fmt: skip
WORKER = Path(__file__).with_name("neighbour_worker.py")
TURNS = 4


class Worker:
    """Steps of one subject in a process of its own."""

    def __init__(self, subject: str, threads: int, folder: Path) -> None:
        command = [sys.executable, str(WORKER), subject, str(threads), str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended")
        return line

    def times(self, seconds: float) -> list[float]:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        return [float(word) for word in self._line().split()]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def training(subjects: list[str], threads: list[int], seconds: float, pinned: bool) -> None:
    """Steps beside a neighbour, in terms of what one thread takes without it."""
    print(f"{'step':<16}{'threads':>8} {'core':<6}{'minimum':>9}{'median':>9}{'9 of 10':>9}  ms {'of one, quiet':>16}")
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, str(WORKER), "prepare", "1", made], check=True)
        for subject in subjects:
            workers = {n: Worker(subject, n, Path(made)) for n in threads}
            found: dict[tuple[int, bool], list[float]] = {(n, b): [] for b in (False, True) for n in threads}
            for _ in range(TURNS):
                for n, is_busy in found:
                    with neighbour(is_busy, pinned):
                        found[n, is_busy] += workers[n].times(seconds / TURNS)
            for worker in workers.values():
                worker.close()
            alone = statistics.median(found[min(threads), False])
            for (n, is_busy), times in found.items():
                cells = (min(times), statistics.median(times), sorted(times)[len(times) * 9 // 10])
                numbers = "".join(f"{1e3 * c:>9.3f}" for c in cells)
                core = "busy" if is_busy else "quiet"
                print(f"{subject:<16}{n:>8} {core:<6}{numbers}     {cells[1] / alone:>14.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3, help="for each rival and condition")
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--training", nargs="*", choices=TRAINING)
    arguments = parser.parse_args()
    if arguments.training is not None:
        training(arguments.training or TRAINING, arguments.threads, arguments.seconds, arguments.pin)
        return
    print(f"{'network':<14} {'core':<6} {'rival':<14}{'minimum':>10}{'median':>10}{'mean':>10}  milliseconds")
    for name, network in (LARGE if arguments.large else SMALL).items():
        works = rivals(network, arguments.threads)
        for is_busy in (False, True):
            with neighbour(is_busy, arguments.pin):
                report(name, is_busy, measure(works, arguments.seconds))


if __name__ == "__main__":
    main()
