"""A process by itself."""

from __future__ import annotations

import numpy as np

from backpass.parallel.errors import Array, CommunicationError


class SingleCommunicator:
    """One process: sums are what it has itself. Scripts need no second way for it."""

    rank = 0
    size = 1

    def broadcast(self, array: Array, root: int) -> None:
        if root != 0:
            raise CommunicationError(f"[broadcast] got root {root}, expected 0: there is one process")

    def allreduce(self, array: Array) -> None:
        return None

    def allgather(self, mine: Array, all: Array) -> None:
        np.copyto(all.reshape(-1), mine.reshape(-1))

    def reduce_scatter(self, all: Array, mine: Array) -> None:
        np.copyto(mine.reshape(-1), all.reshape(-1))

    def send(self, array: Array, to: int, tag: int) -> None:
        raise CommunicationError(f"[send] got rank {to} to send to, expected more than one process")

    def recv(self, array: Array, source: int, tag: int) -> None:
        raise CommunicationError(f"[recv] got rank {source} to receive from, expected more than one process")

    def barrier(self) -> None:
        pass
