"""The native trainer on several ranks: the same weights everywhere, and the losses of one process with all data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from backpass import parallel
from cases import expect_alike, expect_as_alone, expect_same_bits, train
from launch import BACKENDS, launch, results


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow if n >= 9 else ()) for n in range(60)])
def test_threads_are_as_one_process(seed: int) -> None:
    size = 2 + seed % 3
    alone = train(None, seed, size)
    ranks = parallel.run_threads(size, lambda comm: train(comm, seed, size))
    expect_alike(ranks)
    expect_as_alone(ranks, alone)
    late = parallel.run_threads(size, lambda comm: train(comm, seed, size, overlaps=False))
    expect_same_bits(ranks, late)
    shared_out = parallel.run_threads(size, lambda comm: train(comm, seed, size, zero_stage=1))
    expect_alike(shared_out)
    expect_as_alone(shared_out, alone)


def test_a_rank_by_itself_is_as_no_rank() -> None:
    for stage in (0, 1):
        alone, single = train(None, 5, 1), train(parallel.SingleCommunicator(), 5, 1, zero_stage=stage)
        expect_same_bits([alone], [single])


def run_processes(backend: str, size: int, folder: Path, seeds: str) -> None:
    launch(backend, size, "native", folder, seeds, timeout=300)
    for seed in map(int, seeds.split(",")):
        alone = train(None, seed, size)
        kinds = {}
        for kind in ("plain", "late", "zero"):
            kinds[kind] = ranks = results(folder, size, f"{kind}{seed}_")
            expect_alike(ranks)
            expect_as_alone(ranks, alone)
        expect_same_bits(kinds["plain"], kinds["late"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes(backend: str, tmp_path: Path) -> None:
    run_processes(backend, 2, tmp_path, "0,1,2")


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_processes(backend: str, size: int, tmp_path: Path) -> None:
    run_processes(backend, size, tmp_path, "3,4,5,6,7,8")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_is_killed_in_training_is_an_error_on_all_others(backend: str, tmp_path: Path) -> None:
    launch(backend, 4, "die_in_training", tmp_path, check=False, timeout=60, mpirun=("--enable-recovery",))
    for rank in range(3):
        seconds, message = (tmp_path / f"{rank}.txt").read_text().split("\n", 1)
        assert float(seconds) < 10
        assert message.startswith("[allreduce] rank ")
        assert re.search(r"ended: .*rank 3 \(process ", message)  # others may have seen it and ended before this one
