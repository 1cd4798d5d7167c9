"""Processes of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from backpass.parallel.errors import Array, CommunicationError, Peers, describe_call


class TorchCommunicator:
    """What torch.distributed offers on a CPU (gloo), for a group that exists already.

    ``dist.init_process_group("gloo")`` first, or run under torchrun: then the group is made here. Sums go on in the
    background while the engine computes. `timeout` in seconds is how long a process waits for the others, in any
    operation; left out, it is the group's.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float | timedelta | None = None) -> None:
        self.timeout = timeout if timeout is None or isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        if group is None and not dist.is_initialized():
            dist.init_process_group("gloo", timeout=self.timeout)
        self._group = group if group is not None else dist.group.WORLD
        self.rank = dist.get_rank(self._group)
        self.size = dist.get_world_size(self._group)
        places: list[Any] = [None] * self.size
        dist.all_gather_object(places, Peers.here(), group=self._group)
        self._peers = Peers(places)

    def broadcast(self, array: Array, root: int) -> None:
        self._now("broadcast", array, lambda t: dist.broadcast(t, group=self._group, group_src=root, async_op=True))

    def allreduce(self, array: Array) -> _Pending | None:
        if array.size == 0:
            return None
        with self._told("allreduce", array):
            work = dist.all_reduce(torch.from_numpy(array), group=self._group, async_op=True)
        return _Pending(self, "allreduce", array, work)

    def allgather(self, mine: Array, all: Array) -> None:
        rows = [_bytes_of(row) for row in all.reshape(self.size, -1)]
        self._now("allgather", mine, lambda t: dist.all_gather(rows, t, group=self._group, async_op=True))

    def reduce_scatter(self, all: Array, mine: Array) -> _Pending | None:
        """gloo's own is one sum per rank: one of everything costs no more."""
        if mine.size == 0:
            return None
        total = all.copy()
        with self._told("reduce_scatter", all):
            work = dist.all_reduce(torch.from_numpy(total), group=self._group, async_op=True)
        return _Part(self, "reduce_scatter", total, work, mine)

    def send(self, array: Array, to: int, tag: int) -> None:
        self._now("send", array, lambda t: dist.isend(t, group=self._group, group_dst=to, tag=tag))

    def recv(self, array: Array, source: int, tag: int) -> None:
        self._now("recv", array, lambda t: dist.irecv(t, group=self._group, group_src=source, tag=tag))

    def barrier(self) -> None:
        with self._told("barrier", np.empty(0)):
            self._wait(dist.barrier(group=self._group, async_op=True))

    def _now(self, operation: str, array: Array, start: Callable[[torch.Tensor], dist.Work | None]) -> None:
        if array.size == 0:
            return
        with self._told(operation, array):
            self._wait(start(_bytes_of(array)))

    def _wait(self, work: dist.Work | None) -> None:
        if work is not None:
            work.wait() if self.timeout is None else work.wait(self.timeout)

    @contextmanager
    def _told(self, operation: str, array: Array) -> Iterator[None]:
        """What torch raises, with the operation, the rank, and who has ended."""
        try:
            yield
        except CommunicationError:
            raise
        except RuntimeError as error:
            begin = describe_call(operation, array, self.rank, self.size)
            raise CommunicationError(
                f"{begin}: {error}; {self._peers.describe()}. Start again from the last checkpoint"
            ) from error


class _Pending:
    def __init__(self, owner: TorchCommunicator, operation: str, array: Array, work: dist.Work | None) -> None:
        self._owner, self._operation, self._array, self._work = owner, operation, array, work

    def wait(self) -> None:
        with self._owner._told(self._operation, self._array):
            self._owner._wait(self._work)


class _Part(_Pending):
    """The part of a sum that belongs to this rank."""

    def __init__(self, owner: TorchCommunicator, operation: str, total: Array, work: Any, mine: Array) -> None:
        super().__init__(owner, operation, total, work)
        self._mine = mine

    def wait(self) -> None:
        super().wait()
        np.copyto(self._mine.reshape(-1), self._array.reshape(self._owner.size, -1)[self._owner.rank])


def _bytes_of(array: Array) -> torch.Tensor:
    """The same memory: what is moved need not be of a type that gloo has."""
    return torch.from_numpy(array.reshape(-1).view(np.uint8))
