"""Ranks that are threads of one process: for tests, and to try a script out without a launcher."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from backpass import _core
from backpass.parallel.errors import Array, CommunicationError, describe_call

Result = TypeVar("Result")


class _Meeting:
    """Where the threads of a group meet: what everybody brought is seen by all."""

    def __init__(self, size: int, timeout: float) -> None:
        self.brought: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=timeout)
        self._mail: dict[tuple[int, int, int], queue.Queue[Array]] = {}

    def mail(self, source: int, to: int, tag: int) -> queue.Queue[Array]:
        """One queue, whoever asks first: setdefault is one step for all threads, what a defaultdict does is not."""
        return self._mail.setdefault((source, to, tag), queue.Queue())


class ThreadCommunicator:
    """One of several ranks in a process; made by `ThreadCommunicator.group`."""

    def __init__(self, rank: int, meeting: _Meeting, timeout: float) -> None:
        self.rank = rank
        self.size = len(meeting.brought)
        self.timeout = timeout
        self._meeting = meeting
        self._worker = ThreadPoolExecutor(1)  # what was asked for first is done first

    @classmethod
    def group(cls, size: int, timeout: float = 30.0) -> list[ThreadCommunicator]:
        meeting = _Meeting(size, timeout)
        return [cls(rank, meeting, timeout) for rank in range(size)]

    def broadcast(self, array: Array, root: int) -> None:
        self._now("broadcast", array, lambda all: np.copyto(array, all[root]))

    def allreduce(self, array: Array) -> _Pending:
        """By rank, so that bits do not depend on who comes first. Goes on in a thread of its own."""

        def add_up(everybody: list[Array]) -> Array:
            total = everybody[0].copy()
            for other in everybody[1:]:
                total += other
            return total

        return _Pending(self._worker.submit(self._meet, "allreduce", array, add_up, lambda sum: np.copyto(array, sum)))

    def allgather(self, mine: Array, all: Array) -> None:
        self._now("allgather", mine, lambda everybody: np.copyto(all.reshape(self.size, -1), _rows(everybody)))

    def reduce_scatter(self, all: Array, mine: Array) -> _Pending:
        part = slice(self.rank * mine.size, (self.rank + 1) * mine.size)

        def add_up(everybody: list[Array]) -> Array:
            total = everybody[0].reshape(-1)[part].copy()
            for other in everybody[1:]:
                total += other.reshape(-1)[part]
            return total

        def write(total: Array) -> None:
            np.copyto(mine.reshape(-1), total)

        return _Pending(self._worker.submit(self._meet, "reduce_scatter", all, add_up, write))

    def send(self, array: Array, to: int, tag: int) -> None:
        self._meeting.mail(self.rank, to, tag).put(array.copy())

    def recv(self, array: Array, source: int, tag: int) -> None:
        try:
            np.copyto(array, self._meeting.mail(source, self.rank, tag).get(timeout=self.timeout))
        except queue.Empty:
            begin = describe_call("recv", array, self.rank, self.size)
            raise CommunicationError(f"{begin}: got nothing of rank {source} within {self.timeout:g} s") from None

    def barrier(self) -> None:
        self._now("barrier", np.empty(0), lambda _: None)

    def leave(self) -> None:
        """Everybody who waits for this rank is told that it will not come."""
        self._meeting.barrier.abort()

    def _now(self, operation: str, array: Array, read: Callable[[list[Any]], Any]) -> None:
        self._worker.submit(self._meet, operation, array, read, lambda _: None).result()

    def _meet(
        self, operation: str, array: Array, read: Callable[[list[Any]], Any], write: Callable[[Any], None]
    ) -> None:
        """`read` sees what everybody brought, all of it as it was; `write` comes when everybody has read."""
        meeting = self._meeting
        try:
            meeting.brought[self.rank] = array
            meeting.barrier.wait()
            found = read(meeting.brought)
            meeting.barrier.wait()
            write(found)
            meeting.barrier.wait()
        except threading.BrokenBarrierError:
            begin = describe_call(operation, array, self.rank, self.size)
            raise CommunicationError(f"{begin}: another rank has failed or did not come in time") from None


class _Pending:
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


def _rows(arrays: list[Array]) -> Array:
    return np.stack([array.reshape(-1) for array in arrays])


def run_threads(size: int, function: Callable[[ThreadCommunicator], Result], timeout: float = 30.0) -> list[Result]:
    """What `function` returns for each rank. Every thread has its communicator for collective operators, too.

    The first error that is not a consequence of another one is raised.
    """
    ranks = ThreadCommunicator.group(size, timeout)

    def work(rank: ThreadCommunicator) -> Result:
        try:
            with _core.CommunicatorScope(_core.PythonCommunicator(rank)):
                return function(rank)
        except BaseException:
            rank.leave()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, rank) for rank in ranks]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, CommunicationError)):
        raise error
    return [future.result() for future in futures]
