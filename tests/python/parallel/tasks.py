"""What test processes do: `tasks.py backend size task folder arguments...`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from backpass import parallel


def communicator_of(backend: str, size: int, folder: Path, timeout: float = 60) -> Any:
    if backend == "mpi":
        return parallel.MPICommunicator(timeout=timeout)
    import torch.distributed as dist

    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=size)
    return parallel.TorchCommunicator(timeout=timeout)


def check_operations(comm: Any) -> None:
    """Every operation against numpy, for several types and sizes, 0 and 1 among them."""
    rank, size = comm.rank, comm.size
    for count in (0, 1, 7, 1000, 100_003):
        for dtype in (np.float32, np.float64, np.int64):
            numbers = [np.random.default_rng(seed).integers(-9, 9, count).astype(dtype) for seed in range(size)]
            mine = numbers[rank].copy()
            handle = comm.allreduce(mine)
            other = np.full(3, rank, dtype)
            also = comm.allreduce(other)
            for started in (handle, also):
                if started is not None:
                    started.wait()
            np.testing.assert_array_equal(mine, sum(numbers))
            np.testing.assert_array_equal(other, sum(range(size)))
            for root in range(size):
                mine = numbers[rank].copy()
                comm.broadcast(mine, root)
                np.testing.assert_array_equal(mine, numbers[root])
            all = np.empty((size, count), dtype)
            comm.allgather(numbers[rank], all)
            np.testing.assert_array_equal(all, numbers)
            parts = np.stack([np.roll(numbers[rank], k) for k in range(size)])
            before = parts.copy()
            part = comm.reduce_scatter(parts, mine)
            if part is not None:
                part.wait()
            np.testing.assert_array_equal(mine, sum(np.roll(n, rank) for n in numbers))
            np.testing.assert_array_equal(parts, before)
    for dtype in (np.float16, np.uint16, np.bool_, np.int8):
        moved = np.full(5, rank == 0, dtype)
        comm.broadcast(moved, 0)
        np.testing.assert_array_equal(moved, np.full(5, True, dtype))
    ring(comm)


def ring(comm: Any) -> None:
    rank, size = comm.rank, comm.size
    before, behind = (rank - 1) % size, (rank + 1) % size
    sent, got = np.array([rank, 7.5]), np.empty(2)
    if rank % 2 == 0 or size == 1:
        comm.send(sent, behind, 3)
        comm.recv(got, before, 3)
    else:
        comm.recv(got, before, 3)
        comm.send(sent, behind, 3)
    np.testing.assert_array_equal(got, [before, 7.5])


def operations(comm: Any, folder: Path) -> None:
    check_operations(comm)
    comm.barrier()


def pieces(comm: Any, folder: Path) -> None:
    from backpass.parallel import mpi_communicator

    mpi_communicator.LARGEST_PIECE = 100
    check_operations(comm)


def native(comm: Any, folder: Path, seeds: str) -> None:
    from cases import train

    for seed in map(int, seeds.split(",")):
        kinds = {"plain": {}, "late": {"overlaps": False}, "zero": {"zero_stage": 1}}
        for kind, changes in kinds.items():
            np.savez(folder / f"{kind}{seed}_{comm.rank}.npz", **train(comm, seed, comm.size, **changes))
    comm.barrier()


def collectives(comm: Any, folder: Path) -> None:
    from collective_cases import check_collectives

    check_collectives(comm)
    comm.barrier()


def trainers(comm: Any, folder: Path, kinds: str) -> None:
    """Kinds are numbers of generation, accumulated steps and stage of ZeRO: "110,221"."""
    from faces import train

    parallel.set_communicator(comm)
    for kind in kinds.split(","):
        generation, accumulates, stage = map(int, kind)
        np.savez(folder / f"{kind}_{comm.rank}.npz", **train(comm, generation, comm.size, accumulates, stage))
    comm.barrier()


def lose_a_rank(comm: Any, folder: Path, how: str) -> None:
    """Rank 1 dies, hangs or raises; the others tell what they see, and how long it took."""
    comm.timeout = type(comm.timeout)(seconds=3) if hasattr(comm.timeout, "seconds") else 3.0
    values = np.ones(1000, np.float32)
    first = comm.allreduce(values)
    first.wait()
    if comm.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), 9)
        if how == "hangs":
            time.sleep(8)
            os._exit(0)
        raise ValueError("rank 1 does not like its data")
    begin = time.monotonic()
    try:
        comm.allreduce(values).wait()
    except parallel.CommunicationError as error:
        (folder / f"{comm.rank}.txt").write_text(f"{time.monotonic() - begin}\n{error}")
        raise


def die_in_training(comm: Any, folder: Path) -> None:
    """The last rank is killed in the midst of a run; the others tell what they see."""
    from cases import train

    class Dying:
        rank, size = comm.rank, comm.size
        count = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(comm, name)

        def allreduce(self, array: np.ndarray) -> Any:
            Dying.count += 1
            if Dying.count == 7 and comm.rank == comm.size - 1:
                os.kill(os.getpid(), 9)
            return comm.allreduce(array)

    comm.timeout = type(comm.timeout)(seconds=3) if hasattr(comm.timeout, "seconds") else 3.0
    begin = time.monotonic()
    try:
        train(Dying(), 1, comm.size)
    except parallel.CommunicationError as error:
        (folder / f"{comm.rank}.txt").write_text(f"{time.monotonic() - begin}\n{error}")
        raise


def main(backend: str, size: str, task: str, folder: str, *arguments: str) -> None:
    comm = communicator_of(backend, int(size), Path(folder))
    globals()[task](comm, Path(folder), *arguments)
    if backend == "gloo":
        from end_of_gloo import end_process

        end_process()


if __name__ == "__main__":
    main(*sys.argv[1:])
