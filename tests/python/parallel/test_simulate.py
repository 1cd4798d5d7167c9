"""The simulation of scaling: what must hold whatever is put in."""

from __future__ import annotations

import random

import pytest
from backpass.parallel.simulate import Bucket, Compute, Link, allreduce, fit_link, simulate

CASES = range(300)
RANKS = (1, 2, 3, 4, 8, 17, 64)


def drawn(seed: int) -> tuple[Compute, Link]:
    rng = random.Random(seed)
    ready = sorted(rng.uniform(0, 2) for _ in range(rng.randint(0, 12)))
    buckets = [Bucket(t, rng.choice([0, 4, 1e3, 25e6, rng.uniform(0, 1e8)])) for t in ready]
    backward = (ready[-1] if ready else 0) + rng.choice([0, rng.uniform(0, 1)])
    link = Link(10 ** rng.uniform(7, 11), rng.choice([0, 10 ** rng.uniform(-6, -3)]), rng.choice([0, 1e-5]),
                rng.choice([0, 1e-9]))  # fmt: skip
    return Compute(buckets, backward, rng.uniform(0, 0.5)), link


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_never_faster_than_what_has_to_be_done(overlap: bool, zero: bool) -> None:
    for seed in CASES:
        compute, link = drawn(seed)
        for ranks in RANKS:
            step = simulate(compute, ranks, link, overlap=overlap, zero=zero)
            alone = compute.backward + (compute.update / ranks if zero else compute.update)
            assert step.seconds >= alone
            assert step.seconds >= step.communication
            assert zero or 0 < step.efficiency <= 1 or compute.seconds == 0


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_better_link_is_never_slower(overlap: bool, zero: bool) -> None:
    for seed in CASES:
        compute, link = drawn(seed)
        better = [
            Link(link.bandwidth * 1.7, link.latency, link.overhead, link.work),
            Link(link.bandwidth, link.latency / 2, link.overhead, link.work),
            Link(link.bandwidth, link.latency, link.overhead, 0),
        ]
        for ranks in RANKS:
            before = simulate(compute, ranks, link, overlap=overlap, zero=zero).seconds
            for other in better:
                assert simulate(compute, ranks, other, overlap=overlap, zero=zero).seconds <= before


def test_overlap_only_helps() -> None:
    for seed in CASES:
        compute, link = drawn(seed)
        for ranks in RANKS:
            with_overlap, without = (simulate(compute, ranks, link, overlap=o).seconds for o in (True, False))
            busy = link.work * 2 * compute.size  # at most what communication takes away from the backward pass
            assert with_overlap <= without + busy + 1e-12


def test_without_overlap_the_time_has_a_closed_form() -> None:
    for seed in CASES:
        compute, link = drawn(seed)
        link = Link(link.bandwidth, link.latency, link.overhead)
        for ranks in RANKS[1:]:
            hop = link.latency + link.overhead
            messages = 2 * (ranks - 1) * len(compute.buckets)
            wanted = compute.seconds + messages * hop + 2 * (ranks - 1) / ranks * compute.size / link.bandwidth
            assert simulate(compute, ranks, link, overlap=False).seconds == pytest.approx(wanted, rel=1e-12)
            late = Compute(
                [Bucket(compute.backward, b.size) for b in compute.buckets], compute.backward, compute.update
            )
            assert simulate(late, ranks, link).seconds == pytest.approx(wanted, rel=1e-12)


def test_zero_sends_as_much_and_updates_less() -> None:
    for seed in CASES:
        compute, link = drawn(seed)
        link = Link(link.bandwidth)
        for ranks in RANKS[1:]:
            plain, zero = (simulate(compute, ranks, link, overlap=False, zero=z) for z in (False, True))
            assert zero.communication == pytest.approx(plain.communication)
            saved = compute.update * (1 - 1 / ranks)
            assert zero.seconds == pytest.approx(plain.seconds - saved)


def test_by_hand() -> None:
    """Two buckets over 4 ranks at 100 bytes per second: 2 * 3 messages of a quarter each."""
    compute = Compute([Bucket(1.0, 40.0), Bucket(2.0, 80.0)], backward=2.0, update=0.5)
    link = Link(100.0)
    assert allreduce(40.0, 4, link) == pytest.approx(0.6)
    step = simulate(compute, 4, link)
    assert step.seconds == pytest.approx(2.0 + 1.2 + 0.5)
    assert step.exposed == pytest.approx(1.2)
    assert step.efficiency == pytest.approx(2.5 / 3.7)
    assert simulate(compute, 1, link).seconds == 2.5
    with pytest.raises(ValueError, match="got 0"):
        simulate(compute, 0, link)


def test_a_link_is_found_from_its_messages() -> None:
    for seed in CASES:
        rng = random.Random(seed)
        link = Link(10 ** rng.uniform(7, 10), 10 ** rng.uniform(-6, -3))
        sizes = [4.0**k for k in range(1, 13)]
        found = fit_link(sizes, [link.message(s) for s in sizes])
        assert found.latency == pytest.approx(link.latency, rel=1e-6)
        assert found.bandwidth == pytest.approx(link.bandwidth, rel=1e-6)
    assert fit_link([1e6, 2e6], [0.1, 0.25]).latency == 0
    with pytest.raises(ValueError, match="several different sizes"):
        fit_link([8.0, 8.0], [1.0, 1.0])
