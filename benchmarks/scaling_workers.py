"""What scaling.py measures, in its own process and in others: `scaling_workers.py task folder arguments...`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from backpass import _core, parallel
from backpass._convert import to_engine
from backpass.parallel.simulate import Bucket, Compute, Link, allreduce, around

WORKERS = __file__


class Stopwatch:
    """Says that it is one rank of two, exchanges nothing, and notes when it is asked to."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.begin = self.backward = 0.0
        self.buckets: list[Bucket] = []

    def start(self) -> None:
        self.buckets, self.backward = [], 0.0
        self.begin = time.thread_time()

    def stop(self) -> Compute:
        end = time.thread_time() - self.begin
        return Compute(self.buckets, self.backward, end - self.backward)

    def allreduce(self, array: Any) -> Stopwatch:
        self.buckets.append(Bucket(time.thread_time() - self.begin, array.nbytes))
        return self

    def wait(self) -> None:
        """The trainer has nothing else to do: the backward pass is over."""
        self.backward = self.backward or time.thread_time() - self.begin

    def broadcast(self, array: Any, root: int) -> None:
        pass

    def allgather(self, mine: Any, all: Any) -> None:
        all.reshape(self.size, -1)[...] = mine.reshape(-1)


class Paced(Stopwatch):
    """One rank of many on a link that exists on paper: sums take the time they would, on a clock that counts this
    thread's processor time and the seconds it would wait.
    """

    def __init__(self, link: Link, ranks: int) -> None:
        super().__init__()
        self.link, self.size = link, ranks
        self.waited = self.free = 0.0

    def start(self) -> None:
        super().start()
        self.waited = self.free = 0.0

    def now(self) -> float:
        return time.thread_time() - self.begin + self.waited

    def _send(self, seconds: float) -> Paced:
        self.free = max(self.free, self.now()) + seconds
        return self

    def wait(self) -> None:
        self.waited += max(0.0, self.free - self.now())

    def allreduce(self, array: Any) -> Paced:
        return self._send(allreduce(array.nbytes, self.size, self.link))

    def reduce_scatter(self, all: Any, mine: Any) -> Paced:
        mine.reshape(-1)[...] = all.reshape(self.size, -1)[self.rank]
        return self._send(around(all.nbytes, self.size, self.link))

    def allgather(self, mine: Any, all: Any) -> None:
        super().allgather(mine, all)
        self._send(around(all.nbytes, self.size, self.link)).wait()


def training(folder: Path, communicator: Any, bucket_megabytes: float, **how: Any) -> Callable[[], None]:
    """A training step of the model in the folder, on one thread."""
    options = _core.TrainerOptions()
    options.session.num_threads = 1
    options.parallel.bucket_bytes = int(bucket_megabytes * 1e6)
    options.parallel.overlaps = how.get("overlaps", True)
    options.parallel.zero_stage = how.get("zero_stage", 0)
    options.communicator = parallel.as_communicator(communicator)
    model = str(folder / "model.onnx")
    loss = _core.Session.from_path(model, _core.SessionOptions()).outputs()[0].name
    trainer = _core.Trainer(_core.Trainer.state_of(model, loss), options)
    program = trainer.add_model(model, loss, [loss])
    batch = np.load(folder / "batch.npz")
    inputs = [to_engine(batch[i.name]) for i in trainer.inputs(program)]
    return lambda: trainer.train_step(program, inputs, 1e-5)


def gloo(folder: Path) -> parallel.TorchCommunicator:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(os.environ["RANK"]), world_size=2)
    return parallel.TorchCommunicator(timeout=600)


def messages(comm: Any, size: int, repeats: int) -> float:
    """Seconds of one message: half of the quickest way there and back."""
    array, best = np.zeros(size, np.uint8), float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        if comm.rank == 0:
            comm.send(array, 1, 0)
            comm.recv(array, 1, 0)
        else:
            comm.recv(array, 0, 0)
            comm.send(array, 0, 0)
        best = min(best, (time.perf_counter() - begin) / 2)
    return best


def link(folder: Path) -> None:
    """Three lines: seconds of messages of 4^1 to 4^13 bytes; seconds of a sum of 64 MB; processor seconds per byte."""
    comm = gloo(folder)
    print([messages(comm, 4**k, 200 if k < 9 else 20) for k in range(1, 14)])
    array, best = np.zeros(16 << 20, np.float32), float("inf")
    work = time.process_time()
    for _ in range(8):
        begin = time.perf_counter()
        comm.allreduce(array).wait()
        best = min(best, time.perf_counter() - begin)
    work = (time.process_time() - work) / 8 / array.nbytes
    print(best, work, sep="\n")


def train(folder: Path, steps: str, bucket_megabytes: str, overlaps: str, zero_stage: str) -> None:
    """Seconds of the quickest step, and the least processor seconds."""
    comm = gloo(folder)
    step = training(
        folder, comm, float(bucket_megabytes), overlaps=overlaps == "1", zero_stage=int(zero_stage)
    )  # fmt: skip
    times = []
    for _ in range(2 + 2 * int(steps)):
        begin, work = time.perf_counter(), time.process_time()
        step()
        times.append((time.perf_counter() - begin, time.process_time() - work))
    print([min(kind) for kind in zip(*times[2:], strict=True)])


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
