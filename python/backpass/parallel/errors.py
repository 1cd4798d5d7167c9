"""What goes wrong between processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class CommunicationError(RuntimeError):
    """Another process has ended, hangs, or is not in step with this one."""


class Peers:
    """Where the processes of a group run, so that a message can say which of them has ended."""

    def __init__(self, places: Sequence[tuple[str, int]]) -> None:
        self._places = list(places)

    @staticmethod
    def here() -> tuple[str, int]:
        return socket.gethostname(), os.getpid()

    def ended(self) -> list[int]:
        """Ranks of this machine whose process is gone."""
        host = socket.gethostname()
        return [rank for rank, (place, pid) in enumerate(self._places) if place == host and not _is_alive(pid)]

    def describe(self) -> str:
        ended = self.ended()
        if not ended:
            return "no process of this machine has ended: one hangs, did less than others, or ran elsewhere"
        names = [f"{rank} (process {self._places[rank][1]})" for rank in ended]
        return f"ended: rank {', rank '.join(names)}"


def _is_alive(pid: int) -> bool:
    """A zombie is not: it waits for its parent to ask how it ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def describe_call(operation: str, array: Array, rank: int, size: int) -> str:
    """``[allreduce] rank 1 of 4, float32[1000]``: how messages begin."""
    return f"[{operation}] rank {rank} of {size}, {array.dtype}{list(array.shape)}"


def out_of_time(begin: str, timeout: float, peers: Peers) -> CommunicationError:
    why = peers.describe()
    return CommunicationError(
        f"{begin}: got no answer of all processes within {timeout:g} s; {why}. "
        "Start again from the last checkpoint, or give a longer timeout"
    )
