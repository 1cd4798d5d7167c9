"""Trains a small convolutional network on Fashion-MNIST, from artifacts, through the C++ engine.

Builds the network as an ONNX model, generates the training artifacts, trains in a process of its own that is killed in
the middle, resumes from its last checkpoint, evaluates, exports the inference model, has onnxruntime confirm it, and
draws the course of loss and accuracy. Without Debian's package dataset-fashion-mnist it takes the handwritten digits
of scikit-learn instead.

python examples/fashion.py [--folder run] [--epochs 3] [--images 6400]
"""

from __future__ import annotations

import argparse
import gzip
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import backpass
import numpy as np
import onnx
from backpass import artifacts
from backpass.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from fashion_picture import Course, draw
from onnx import helper, numpy_helper
from tqdm import tqdm

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
BATCH = 64
RATE = 2e-3
SAVE_EVERY = 200
LOG = "log.jsonl"
EVERY = 1 << 30  # image
GOAL = {"Fashion-MNIST": 0.88, "digits": 0.95}


@dataclass(frozen=True)
class Data:
    name: str
    images: np.ndarray  # [n, 1, height, width], float32
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """A function of the step alone, so that a resumed run sees what it would have seen."""
        per_epoch = len(self.labels) // BATCH
        order = np.random.default_rng(step // per_epoch).permutation(len(self.labels))
        chosen = order[step % per_epoch * BATCH :][:BATCH]
        return self.images[chosen], self.labels[chosen]


def load_data(limit: int) -> Data:
    """At most `limit` images to train with, and to test with."""
    data = load_all()
    return Data(data.name, *(part[:limit] for part in (data.images, data.labels, data.test_images, data.test_labels)))


def load_all() -> Data:
    def read(name: str, header: int) -> np.ndarray:
        return np.frombuffer(gzip.open(DEBIAN / name).read(), np.uint8, offset=header)

    if DEBIAN.exists():
        images, test_images = (
            read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).astype(np.float32) / 255 - 0.286
            for part in ("train", "t10k")
        )
        labels, test_labels = (read(f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64) for part in ("train", "t10k"))
        return Data("Fashion-MNIST", images, labels, test_images, test_labels)
    from sklearn.datasets import load_digits

    print(f"no {DEBIAN} (apt install dataset-fashion-mnist): taking scikit-learn's digits instead")
    pixels, labels = load_digits(return_X_y=True)
    images = np.kron(pixels.reshape(-1, 1, 8, 8) / 16, np.ones((3, 3))).astype(np.float32)
    images = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
    return Data("digits", images[:1500], labels[:1500], images[1500:], labels[1500:])


# ---- The network: two convolutions with pooling, two linear layers. The batch size stays open.
def make_model() -> onnx.ModelProto:
    rng = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        spread = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0
        return numpy_helper.from_array((rng.standard_normal(shape) * spread).astype(np.float32), name)

    weights = [
        weight("conv1.weight", 16, 1, 3, 3), weight("conv1.bias", 16),
        weight("conv2.weight", 32, 16, 3, 3), weight("conv2.bias", 32),
        weight("fc1.weight", 128, 32 * 7 * 7), weight("fc1.bias", 128),
        weight("fc2.weight", 10, 128), weight("fc2.bias", 10),
    ]  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("MaxPool", ["r1"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "conv2.weight", "conv2.bias"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        node("Relu", ["c2"], ["r2"], "relu2"),
        node("MaxPool", ["r2"], ["p2"], "pool2", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p2"], ["f"], "flatten"),
        node("Gemm", ["f", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1),
        node("Relu", ["h"], ["r3"], "relu3"),
        node("Gemm", ["r3", "fc2.weight", "fc2.bias"], ["scores"], "fc2", transB=1),
    ]
    image = helper.make_tensor_value_info("image", 1, ["batch", 1, 28, 28])
    scores = helper.make_tensor_value_info("scores", 1, ["batch", 10])
    graph = helper.make_graph(nodes, "fashion", [image], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


# ---- Training. A run is its folder: whoever starts it goes on from the last checkpoint.
def save_every(steps: int) -> int:
    return max(1, min(SAVE_EVERY, steps // 5))


def between_saves(steps: int) -> int:
    """Some two fifths of the way, and in the middle between two saves."""
    every = save_every(steps)
    return 2 * steps // 5 // every * every + every // 2


class Run:
    def __init__(self, folder: Path, data: Data, steps: int) -> None:
        self.folder, self.data, self.steps = folder, data, steps
        self.state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self.module = Module(folder / "training_model.onnx", self.state, folder / "eval_model.onnx")
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.step = int(self.state.properties["step"]) if "step" in self.state.properties else 0
        self.scheduler = LinearLRScheduler(self.optimizer, steps // 20, steps, RATE)  # knows the optimizer's steps
        self.save_every = save_every(steps)

    def train(self) -> None:
        recent: deque[float] = deque(maxlen=50)
        with progress(self.step, self.steps) as bar, open(self.folder / LOG, "a", buffering=1) as log:
            while self.step < self.steps:
                loss, _ = self.module(*self.data.batch(self.step))
                self.optimizer.step()
                self.scheduler.step()
                self.module.lazy_reset_grad()
                self.step += 1
                recent.append(float(loss))
                log.write(json.dumps({"step": self.step, "loss": float(loss)}) + "\n")
                if self.step % self.save_every == 0 or self.step == self.steps:
                    log.write(json.dumps({"step": self.step, "accuracy": self.accuracy()}) + "\n")
                    self.save()
                bar.set_postfix(loss=f"{np.mean(recent):.3f}", refresh=False)
                bar.update()

    def save(self) -> None:
        self.state.properties["step"] = self.step
        CheckpointState.save_checkpoint(self.state, self.folder / "checkpoint", include_optimizer_state=True)

    def accuracy(self) -> float:
        self.module.eval()
        right = 0
        for at in range(0, len(self.data.test_labels), 500):
            labels = self.data.test_labels[at : at + 500]
            _, scores = self.module(self.data.test_images[at : at + 500], labels)
            right += int((scores.argmax(1) == labels).sum())
        self.module.train()
        return right / len(self.data.test_labels)


class Lines:
    """Takes what tqdm would draw over and over, where there is no terminal to draw on: a line each time."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print(line, flush=True)

    def flush(self) -> None:
        """Each line is written at once."""


def progress(step: int, steps: int) -> tqdm:
    looks = {} if sys.stderr.isatty() else {"file": Lines(), "mininterval": 5, "ncols": 90, "ascii": True}
    return tqdm(total=steps, initial=step, desc="training", unit="step", **looks)


def read_log(folder: Path) -> Course:
    """Steps that were lost with the process are there twice; the later ones count."""
    course = Course()
    if not (folder / LOG).exists():
        return course
    for line in (folder / LOG).read_text().split("\n")[:-1]:  # the last one may not be complete yet
        entry = json.loads(line)
        if "loss" in entry:
            course.losses[entry["step"]] = entry["loss"]
        else:
            course.accuracies[entry["step"]] = entry["accuracy"]
    return course


def last_step(folder: Path) -> int:
    return max(read_log(folder).losses, default=0)


def train_and_kill(folder: Path, steps: int, images: int, kill_at: int) -> int:
    """Trains in another process and kills it, without warning, once it is at step `kill_at`; where it was then."""
    command = [sys.executable, __file__, "--folder", folder, "--worker", steps, "--images", images]
    worker = subprocess.Popen([str(word) for word in command])
    while worker.poll() is None and last_step(folder) < kill_at:
        time.sleep(0.05)
    if worker.poll() is not None:
        sys.exit("the training process ended by itself")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    killed_at = last_step(folder)
    print(f"\nkilled at step {killed_at}; the checkpoint is that of step {saved_step(folder)}")
    return killed_at


def saved_step(folder: Path) -> int:
    properties = CheckpointState.load_checkpoint(folder / "checkpoint").properties
    return int(properties["step"]) if "step" in properties else 0


def confirm(run: Run, path: Path) -> None:
    import onnxruntime

    run.module.export_model_for_inferencing(path, ["scores"])
    images = run.data.test_images[:256]
    (theirs,) = onnxruntime.InferenceSession(str(path)).run(None, {"image": images})
    _, ours = run.module.eval()(images, run.data.test_labels[:256])
    difference = float(np.abs(theirs - ours).max())
    print(f"exported {path.name}; onnxruntime's scores differ by at most {difference:.1e}")
    if difference > 1e-3:
        sys.exit("the exported model does not give the same scores")


def main(folder: Path, epochs: int, images: int) -> None:
    began = time.perf_counter()
    (folder / LOG).unlink(missing_ok=True)
    data = load_data(images)
    steps = epochs * (len(data.labels) // BATCH)
    if data.name == "digits" and images == EVERY:
        steps = max(steps, 400)
    model = make_model()
    trainable = [tensor.name for tensor in model.graph.initializer]
    print(f"{data.name}: {len(data.labels)} images; network: {backpass.check(model, trainable=trainable)}")
    artifacts.generate_artifacts(
        model,
        requires_grad=trainable,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=["scores"],
    )
    print("artifacts:", ", ".join(sorted(p.name for p in folder.iterdir())))
    killed_at = train_and_kill(folder, steps, images, kill_at=between_saves(steps))
    run = Run(folder, data, steps)
    resumed_at, plan = run.step, run.module.plan(*data.batch(0))
    print(f"resuming at step {resumed_at}; a training step needs {plan.peak_bytes:,} bytes")
    run.train()
    confirm(run, folder / "inference.onnx")
    course = replace(read_log(folder), killed_at=killed_at, resumed_at=resumed_at)
    accuracy = course.accuracies[steps]
    picture = folder / "course.png"
    draw(picture, course, f"{data.name}: {steps} steps, test accuracy {100 * accuracy:.2f} %")
    print(f"test accuracy {100 * accuracy:.2f} %; picture in {picture}; {time.perf_counter() - began:.0f} s")
    if images == EVERY and accuracy < GOAL[data.name]:
        sys.exit(f"expected at least {100 * GOAL[data.name]:.0f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where everything is written (default: a temporary one)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=EVERY, help="to train with (default: all), for a quick look")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # its lines stand where they belong among the worker's
    if options.worker is not None:
        Run(options.folder, load_data(options.images), options.worker).train()
        signal.pause()  # until killed
    elif options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        main(options.folder, options.epochs, options.images)
    else:
        main(Path(tempfile.mkdtemp(prefix="backpass-demo-")), options.epochs, options.images)
