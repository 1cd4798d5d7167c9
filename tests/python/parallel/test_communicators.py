"""Every communicator does what it says, and none waits for ever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from backpass import _core, parallel
from launch import BACKENDS, launch
from tasks import check_operations


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_threads(size: int) -> None:
    assert parallel.run_threads(size, lambda comm: check_operations(comm)) == [None] * size


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes(backend: str, tmp_path: Path) -> None:
    launch(backend, 2, "operations", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_processes(backend: str, size: int, tmp_path: Path) -> None:
    launch(backend, size, "operations", tmp_path)


@pytest.mark.slow
def test_arrays_that_are_too_large_for_one_call_go_in_pieces(tmp_path: Path) -> None:
    launch("mpi", 3, "pieces", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "hangs", "raises"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_others_learn_of_a_lost_rank_in_time(backend: str, how: str, tmp_path: Path) -> None:
    """mpirun would end the job when a process is killed; told not to, it leaves the others to notice."""
    ended = launch(
        backend, 4, "lose_a_rank", tmp_path, how, check=False, timeout=40, mpirun=("--enable-recovery",)
    )  # fmt: skip
    if backend != "mpi":  # with recovery, mpirun itself ends well
        assert all(one.code != 0 for rank, one in enumerate(ended) if rank != 1)
    for rank in (0, 2, 3):
        seconds, message = (tmp_path / f"{rank}.txt").read_text().split("\n", 1)
        assert float(seconds) < 6
        assert message.startswith(f"[allreduce] rank {rank} of 4, float32[1000]: ")
        if how == "killed":
            assert "ended: rank 1 (process " in message
        if how == "hangs":
            assert "no process of this machine has ended" in message or "rank 1" not in message


@pytest.mark.slow
def test_mpirun_ends_the_job_when_a_process_is_killed(tmp_path: Path) -> None:
    (ended,) = launch("mpi", 3, "lose_a_rank", tmp_path, "killed", check=False, timeout=30)
    assert ended.code != 0
    assert "rank 1" in ended.output


class Doubling:
    """A user's own communicator: two ranks that always have the same."""

    rank = 1

    def size(self) -> int:
        return 2

    def allreduce(self, array: np.ndarray) -> None:
        array *= 2

    def broadcast(self, array: np.ndarray, root: int) -> None:
        raise LookupError(f"no way to {root}")

    def reduce_scatter(self, all: np.ndarray, mine: np.ndarray) -> None:
        mine[:] = 2 * all[mine.size :]


def tensor(values: np.ndarray, code: int) -> _core.Tensor:
    return _core.Tensor.from_array(values, code, values.shape)


def test_engine_side_of_a_users_own() -> None:
    comm = parallel.as_communicator(Doubling())
    assert (comm.rank, comm.size) == (1, 2)
    assert parallel.as_communicator(comm) is comm
    values = np.arange(3, dtype=np.float32)
    comm.allreduce(tensor(values, 1))
    np.testing.assert_array_equal(values, [0, 2, 4])
    half = np.array([0.5, 1000], np.float16)
    comm.allreduce(tensor(half, 10))
    np.testing.assert_array_equal(half, [1, 2000])
    brain = (np.array([1.5, -3], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    mine = np.empty(1, np.uint16)
    comm.reduce_scatter(tensor(brain, 16), tensor(mine, 16))
    assert (mine.astype(np.uint32) << 16).view(np.float32) == -6
    with pytest.raises(LookupError, match="no way to 0"):
        comm.broadcast(tensor(values, 1), 0)
    with pytest.raises(_core.InvalidInput, match=r"float32\[3\] for all 2 processes.*expected 2 times as many"):
        comm.allgather(tensor(values, 1), tensor(values, 1))


def test_communicator_of_process_and_thread() -> None:
    assert parallel.communicator() is None
    own = Doubling()
    parallel.set_communicator(own)
    try:
        assert parallel.communicator() is own
        ranks = parallel.run_threads(3, lambda comm: parallel.communicator() is comm and comm.rank)
        assert ranks == [0, 1, 2]
        assert parallel.communicator() is own
    finally:
        parallel.set_communicator(None)
    assert parallel.communicator() is None


def test_ranks_must_fit() -> None:
    class Wrong(Doubling):
        rank = 2

    with pytest.raises(_core.InvalidInput, match="got rank 2 of 2"):
        parallel.as_communicator(Wrong())


def test_a_failing_thread_is_what_is_raised() -> None:
    def work(comm: parallel.ThreadCommunicator) -> None:
        if comm.rank == 1:
            raise KeyError("its own")
        comm.barrier()

    with pytest.raises(KeyError, match="its own"):
        parallel.run_threads(3, work)


def test_alone() -> None:
    assert isinstance(parallel.find_communicator(), parallel.SingleCommunicator)
    check_alone = parallel.SingleCommunicator()
    values, copy = np.arange(4.0), np.empty(4)
    assert check_alone.allreduce(values) is None
    check_alone.allgather(values, copy)
    np.testing.assert_array_equal(values, copy)
    with pytest.raises(parallel.CommunicationError, match="expected more than one process"):
        check_alone.send(values, 1, 0)
