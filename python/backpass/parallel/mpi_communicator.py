"""Processes that mpirun starts, by mpi4py."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from backpass.parallel.errors import Array, CommunicationError, Peers, describe_call, out_of_time

LARGEST_PIECE = 1 << 30
"""Elements that one call of MPI gets: it counts them in an int."""

_abandoned: list[Any] = []  # what MPI may still write to, though nobody waits for it


class MPICommunicator:
    """What MPI offers, over any communicator of mpi4py (left out: COMM_WORLD), of which it makes a duplicate.

    No call waits for ever: when others do not come within `timeout` seconds, it raises. A process that has raised so
    cannot end in good order, since MPI_Finalize waits for everybody; it ends by MPI_Abort instead, `grace` seconds
    after the script, so that the others can tell what they saw. Under mpirun without ``--enable-recovery`` a rank that
    is killed takes the whole job with it, at once.
    """

    def __init__(self, comm: MPI.Comm | None = None, timeout: float = 1800.0, grace: float = 2.0) -> None:
        self._comm = (comm if comm is not None else MPI.COMM_WORLD).Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self.timeout = timeout
        self._grace = grace
        self._peers = Peers(self._comm.allgather(Peers.here()))
        self._progress = _Progress(self._comm) if MPI.Query_thread() == MPI.THREAD_MULTIPLE else None
        self._is_broken = False

    def broadcast(self, array: Array, root: int) -> None:
        self._now("broadcast", array, lambda piece: self._comm.Ibcast(piece, root))

    def allreduce(self, array: Array) -> _Pending:
        requests = self._start("allreduce", array, lambda piece: self._comm.Iallreduce(MPI.IN_PLACE, piece))
        return _Pending(self, "allreduce", array, requests)

    def allgather(self, mine: Array, all: Array) -> None:
        """Piece by piece: what MPI puts together lies apart in `all` unless one piece is everything."""
        rows = all.view(np.int16 if all.dtype == np.float16 else all.dtype).reshape(self.size, -1)
        for begin, piece in _pieces(mine):
            together = rows if piece.size == mine.size else np.empty((self.size, piece.size), rows.dtype)
            self._now("allgather", piece, lambda p, to=together: self._comm.Iallgather(p, to))  # type: ignore[misc]
            if together is not rows:
                rows[:, begin : begin + piece.size] = together

    def reduce_scatter(self, all: Array, mine: Array) -> _Pending:
        rows = all.reshape(self.size, -1)
        begins = iter(range(0, mine.size, LARGEST_PIECE))

        def start(piece: Array) -> MPI.Request:
            begin = next(begins)
            is_whole = piece.size == mine.size
            together = rows if is_whole else np.ascontiguousarray(rows[:, begin : begin + piece.size])
            return self._comm.Ireduce_scatter_block(together, piece)

        return _Pending(self, "reduce_scatter", mine, self._start("reduce_scatter", mine, start))

    def send(self, array: Array, to: int, tag: int) -> None:
        self._now("send", array, lambda piece: self._comm.Isend(piece, to, tag))

    def recv(self, array: Array, source: int, tag: int) -> None:
        self._now("recv", array, lambda piece: self._comm.Irecv(piece, source, tag))

    def barrier(self) -> None:
        _Pending(self, "barrier", np.empty(0), [self._comm.Ibarrier()]).wait()

    def _now(self, operation: str, array: Array, start: Callable[[Array], MPI.Request]) -> None:
        _Pending(self, operation, array, self._start(operation, array, start)).wait()

    def _start(self, operation: str, array: Array, start: Callable[[Array], MPI.Request]) -> list[MPI.Request]:
        begin = describe_call(operation, array, self.rank, self.size)
        if self._is_broken:
            raise CommunicationError(f"{begin}: an operation before this one failed; start again")
        try:
            return [start(piece) for _, piece in _pieces(array)]
        except MPI.Exception as error:
            raise self._broken(f"{begin}: {error}; {self._peers.describe()}") from error

    def _broken(self, message: str) -> CommunicationError:
        if not self._is_broken:
            self._is_broken = True
            atexit.register(self._abort)
        return CommunicationError(message)

    def _abort(self) -> None:
        time.sleep(self._grace)
        self._comm.Abort(1)


class _Pending:
    """Requests that belong together."""

    def __init__(self, owner: MPICommunicator, operation: str, array: Array, requests: list[MPI.Request]) -> None:
        self._owner, self._operation, self._array, self._requests = owner, operation, array, requests
        if owner._progress is not None and requests:
            owner._progress.add()
        self._is_counted = owner._progress is not None and bool(requests)

    def wait(self) -> None:
        owner = self._owner
        begin = describe_call(self._operation, self._array, owner.rank, owner.size)
        try:
            if not self._is_done_in_time():
                _abandoned.append((self._array, self._requests))
                error = out_of_time(begin, owner.timeout, owner._peers)
                raise owner._broken(str(error))
        except MPI.Exception as error:
            raise owner._broken(f"{begin}: {error}; {owner._peers.describe()}") from error
        finally:
            if self._is_counted and owner._progress is not None:
                owner._progress.remove()
                self._is_counted = False

    def _is_done_in_time(self) -> bool:
        deadline = time.monotonic() + self._owner.timeout
        pause = 0.0
        while not MPI.Request.Testall(self._requests):
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause + 1e-6, 5e-4)  # at first as often as others let it
        return True


class _Progress:
    """Looks in at MPI now and then while something is under way: it works on sums only when it is called."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._count = 0
        self._wakened = threading.Condition()
        threading.Thread(target=self._run, daemon=True, name="backpass MPI progress").start()

    def add(self) -> None:
        with self._wakened:
            self._count += 1
            self._wakened.notify()

    def remove(self) -> None:
        with self._wakened:
            self._count -= 1

    def _run(self) -> None:
        while True:
            with self._wakened:
                self._wakened.wait_for(lambda: self._count > 0)
            if MPI.Is_finalized():
                return
            self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
            time.sleep(2e-4)


def _pieces(array: Array) -> Iterator[tuple[int, Array]]:
    if array.dtype == np.float16:  # MPI has no such numbers; they are moved, not added
        array = array.view(np.int16)
    if not array.flags.c_contiguous:
        raise CommunicationError(f"got {array.dtype}{list(array.shape)} with gaps, expected contiguous memory")
    flat = array.reshape(-1)
    for begin in range(0, flat.size, LARGEST_PIECE):
        yield begin, flat[begin : begin + LARGEST_PIECE]
