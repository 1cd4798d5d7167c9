"""How long a training step of several ranks takes, from what one rank and one link were measured to need.

::

    step = Compute([Bucket(ready=0.9, size=25 << 20), Bucket(ready=1.2, size=8 << 20)], backward=1.2, update=0.1)
    simulate(step, ranks=8, link=Link(bandwidth=1.25e9, latency=50e-6)).efficiency

Ranks work on shares of equal size, so that without communication a step would take as long on many as on one: the
efficiency is that time by the simulated one. Sums go around a ring: of n ranks, each sends 2 (n - 1) messages that hold
an n-th of a bucket. One bucket is on its way at a time, in the order in which the backward pass completes them. Nothing
here measures anything, and nothing depends on torch or MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """From one rank to the next; both directions at once."""

    bandwidth: float  # bytes per second
    latency: float = 0.0  # seconds from the beginning of a message to its first byte
    overhead: float = 0.0  # seconds that every message takes besides, on the processor
    work: float = 0.0  # seconds of a processor per byte sent, where no core is left over for communication

    def message(self, size: float) -> float:
        return self.latency + self.overhead + size / self.bandwidth


@dataclass(frozen=True)
class Bucket:
    """Gradients that are sent together."""

    ready: float  # seconds after the beginning of the step
    size: float  # bytes


@dataclass(frozen=True)
class Compute:
    """What a rank does by itself."""

    buckets: Sequence[Bucket]  # in the order in which they are sent
    backward: float  # seconds from the beginning of the step to the end of its backward pass
    update: float = 0.0  # seconds of the optimizer

    @property
    def seconds(self) -> float:
        return self.backward + self.update

    @property
    def size(self) -> float:
        return sum(bucket.size for bucket in self.buckets)


@dataclass(frozen=True)
class Step:
    """A simulated one."""

    compute: float  # seconds of a step of one rank alone
    seconds: float
    communication: float  # seconds in which something is on its way
    work: float = 0.0  # seconds that a rank's processor is busy

    @property
    def efficiency(self) -> float:
        return self.compute / self.seconds if self.seconds else 1.0

    @property
    def exposed(self) -> float:
        """Seconds in which a rank waits for others."""
        return self.seconds - self.compute


def around(size: float, ranks: int, link: Link) -> float:
    """Once around the ring: a reduce-scatter, or an all-gather, of this many bytes."""
    return (ranks - 1) * link.message(size / ranks)


def allreduce(size: float, ranks: int, link: Link) -> float:
    return 2 * around(size, ranks, link)


def simulate(compute: Compute, ranks: int, link: Link, *, overlap: bool = True, zero: bool = False) -> Step:
    """A step of data-parallel training. `zero`: each rank updates its share of the weights and sends it to all others
    (ZeRO stage 1). `overlap`: buckets leave as soon as they are ready, not when the backward pass is over.
    """
    if ranks < 1:
        raise ValueError(f"ranks: got {ranks}, expected at least 1")
    if ranks == 1:
        return Step(compute.seconds, compute.seconds, 0.0, compute.seconds)
    sent = communication = free = 0.0
    for bucket in compute.buckets:
        duration = (around if zero else allreduce)(bucket.size, ranks, link)
        ready = bucket.ready + sent * link.work if overlap else compute.backward
        free = max(free, ready) + duration
        sent += (1 if zero else 2) * bucket.size * (ranks - 1) / ranks
        communication += duration
    seconds = max(compute.backward + sent * link.work, free)
    if zero:
        gathered = around(compute.size, ranks, link)
        work = compute.backward + compute.update / ranks + 2 * sent * link.work
        return Step(compute.seconds, seconds + compute.update / ranks + gathered, communication + gathered, work)
    work = compute.seconds + sent * link.work
    return Step(compute.seconds, seconds + compute.update, communication, work)


def fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """The link whose messages of these sizes take about so long: least squares of relative errors, so that small
    messages tell the latency and large ones the bandwidth.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(seconds) <= 0:
        raise ValueError(f"messages: got {len(sizes)} sizes and {len(seconds)} times, expected several different sizes")
    # minimises sum(((a + b s) / t - 1)^2) over a and b
    one = sum(1 / t**2 for t in seconds)
    mixed = sum(s / t**2 for s, t in zip(sizes, seconds, strict=True))
    square = sum(s * s / t**2 for s, t in zip(sizes, seconds, strict=True))
    right, right_size = sum(1 / t for t in seconds), sum(s / t for s, t in zip(sizes, seconds, strict=True))
    determinant = one * square - mixed * mixed
    latency = (right * square - right_size * mixed) / determinant
    per_byte = (right_size * one - right * mixed) / determinant
    if latency < 0:
        latency, per_byte = 0.0, right_size / square
    return Link(bandwidth=1 / per_byte if per_byte > 0 else float("inf"), latency=latency)
