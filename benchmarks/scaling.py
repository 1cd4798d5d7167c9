"""How data-parallel training of BERT-base scales over a network: simulated from what is measured here.

python benchmarks/scaling.py                                  BERT-base, 8 x 128 tokens per rank, 1 to 64 ranks
python benchmarks/scaling.py --batch 2 --gigabits 1 10
python benchmarks/scaling.py --no-validate

Measured: when each bucket of gradients of a training step is ready, on one thread and in processor time (machines that
are shared with others tell little else); messages between two processes of this machine over gloo. The simulation is
backpass.parallel.simulate. It is held against the engine itself over a link that exists on paper, and against training
by two real processes of this machine, each on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from backpass.parallel.simulate import Bucket, Compute, Link, allreduce, fit_link, simulate
from scaling_workers import WORKERS, Paced, Stopwatch, training

RANKS = (1, 2, 4, 8, 16, 32, 64)
ETHERNET_LATENCY = 30e-6  # of a switched network between machines of one rack; loopback's is measured, and less
SIZES = [4.0**k for k in range(1, 14)]


def write_bert(folder: Path, layers: int, batch: int, length: int) -> None:
    """BERT for masked words as ONNX with its loss, and a batch."""
    import torch
    from backpass.torch import to_onnx
    from torch_networks import bert

    torch.manual_seed(0)
    module, arrays = bert(True, 0.1, layers, 768, batch, length)
    model = to_onnx(module.train(), arrays)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    np.savez(folder / "batch.npz", **{i.name: a.numpy() for i, a in zip(model.graph.input, arrays, strict=True)})


def measured_step(folder: Path, steps: int, bucket_megabytes: float) -> Compute:
    """The quickest of some steps of one rank, which is told that there is another."""
    watch = Stopwatch()
    step = training(folder, watch, bucket_megabytes)
    found = []
    for _ in range(1 + steps):
        watch.start()
        step()
        found.append(watch.stop())
    return min(found[1:], key=lambda c: c.seconds)


def run_pair(task: str, folder: Path, *arguments: object) -> list[str]:
    """What two processes that run a task of scaling_workers.py print."""
    call = [sys.executable, WORKERS, task, str(folder), *map(str, arguments)]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    (folder / "store").unlink(missing_ok=True)
    processes = [
        subprocess.Popen(call, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{task} failed")
    return outputs


@dataclass
class Loopback:
    link: Link
    large: float  # seconds of a sum of 64 MB over two ranks


def measured_link(folder: Path) -> Loopback:
    times, large, work = map(json.loads, run_pair("link", folder)[0].splitlines())
    link = fit_link(SIZES, times)
    return Loopback(Link(link.bandwidth, link.latency, 0.0, work), large)


def describe(compute: Compute) -> None:
    print(f"\none rank: {compute.seconds:.2f} s a step on one thread (processor time), of which {compute.update:.2f} s "
          f"update; {compute.size / 1e6:.0f} MB of gradients in {len(compute.buckets)} buckets, ready at")  # fmt: skip
    print("  " + ", ".join(f"{b.ready:.2f} s ({b.size / 1e6:.0f} MB)" for b in compute.buckets))


def faster(compute: Compute, factor: float) -> Compute:
    """The same step where a rank computes as many times as fast: has more cores."""
    buckets = [Bucket(b.ready / factor, b.size) for b in compute.buckets]
    return Compute(buckets, compute.backward / factor, compute.update / factor)


def table(compute: Compute, gigabits: list[float], factors: list[float], loopback: Link) -> None:
    """Messages cost what they do here on the processor: their latency, and work that computing has to wait for."""
    print("\nefficiency, by ranks" + "".join(f"{n:8d}" for n in RANKS))
    kinds: dict[str, dict[str, bool]] = {"": {}, "ZeRO-1": {"zero": True}, "no overlap": {"overlap": False}}
    for factor in factors:
        step = faster(compute, factor)
        print(f"{step.seconds:.2f} s of computing a step")
        for speed in gigabits:
            link = Link(speed * 1e9 / 8, ETHERNET_LATENCY, loopback.latency, loopback.work / factor)
            for title, kind in kinds.items():
                row = [simulate(step, n, link, **kind).efficiency for n in RANKS]
                print(f"{speed:3g} Gb/s {title:12s}" + "".join(f"{100 * e:7.1f}%" for e in row))


KINDS = (("overlap", True, 0), ("no overlap", False, 0), ("ZeRO-1", True, 1))


def validate_paced(folder: Path, compute: Compute, ranks: int, gigabits: float, bucket_megabytes: float) -> None:
    """The engine itself, as one rank of many, over a link that only counts."""
    link = Link(gigabits * 1e9 / 8, ETHERNET_LATENCY)
    print(f"\nthe engine over a link on paper, {ranks} ranks at {gigabits:g} Gb/s, seconds a step")
    print("             measured   simulated")
    for title, overlap, zero in KINDS:
        watch = Paced(link, ranks)
        step = training(folder, watch, bucket_megabytes, overlaps=overlap, zero_stage=zero)
        best = float("inf")
        for i in range(3):
            watch.start()
            step()
            best = min(best, watch.now()) if i else best
        found = simulate(compute, ranks, link, overlap=overlap, zero=bool(zero))
        print(f"  {title:10s} {best:9.2f} {found.seconds:11.2f}", flush=True)


def validate_pair(folder: Path, link: Link, steps: int, bucket_megabytes: float) -> None:
    """A smaller BERT, whose communication counts for more, on two processes. Where others use the machine, processor
    time is what can be compared.
    """
    write_bert(folder, layers=2, batch=2, length=64)
    compute = measured_step(folder, steps, bucket_megabytes)
    print(f"\ntwo processes here, a BERT of 2 layers ({compute.size / 1e6:.0f} MB of gradients), seconds a step")
    print("             measured   simulated   processor: measured   simulated")
    for title, overlap, zero in KINDS:
        outputs = [json.loads(o) for o in run_pair("train", folder, steps, bucket_megabytes, int(overlap), zero)]
        seconds, work = (max(kind) for kind in zip(*outputs, strict=True))
        found = simulate(compute, 2, link, overlap=overlap, zero=bool(zero))
        print(f"  {title:10s} {seconds:9.2f} {found.seconds:11.2f} {work:21.2f} {found.work:11.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help="rows of a rank")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bucket", type=float, default=25, help="MB of a bucket")
    parser.add_argument("--gigabits", type=float, nargs="+", default=[1, 10, 25])
    parser.add_argument("--faster", type=float, nargs="+", default=[1, 8], help="ranks of so many times the speed")
    parser.add_argument("--no-validate", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loopback = measured_link(folder)
        link = loopback.link
        print(f"loopback, gloo: {link.latency * 1e6:.0f} us and {link.bandwidth / 1e9:.2f} GB/s a message, "
              f"{link.work * 1e9:.2f} ns of a processor per byte; a sum of 64 MB takes {loopback.large * 1e3:.0f} ms, "
              f"simulated {allreduce(64 << 20, 2, link) * 1e3:.0f} ms")  # fmt: skip
        write_bert(folder, options.layers, options.batch, options.length)
        compute = measured_step(folder, options.steps, options.bucket)
        describe(compute)
        table(compute, options.gigabits, options.faster, link)
        if not options.no_validate:
            validate_paced(folder, compute, 8, 10, options.bucket)
            validate_pair(folder, link, options.steps, options.bucket)


if __name__ == "__main__":
    main()
