"""Ranks that are threads of this process, each with a list of what was asked of its communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backpass import _core, parallel


class Rank:
    """A communicator that notes every call; `subgroups`: by kind, other communicators."""

    def __init__(self, inner: parallel.ThreadCommunicator, subgroups: dict[int, Any] | None = None) -> None:
        self.rank, self.size = inner.rank, inner.size
        self.log: list[tuple[Any, ...]] = []
        self._inner, self._subgroups = inner, subgroups or {}

    def subgroup(self, kind: int) -> Any:
        return self._subgroups.get(kind)

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._inner, name)

        def noted(*arguments: Any) -> Any:
            self.log.append((name, arguments[0].size, *[a for a in arguments if isinstance(a, int)]))
            return asked(*arguments)

        return noted


def on_ranks(size: int, work: Callable[[Rank], Any], subgroups: Callable[[int], dict[int, Any]] | None = None) -> list:
    """What `work` returns on every rank."""

    def run(inner: parallel.ThreadCommunicator) -> Any:
        rank = Rank(inner, subgroups and subgroups(inner.rank))
        with _core.CommunicatorScope(_core.PythonCommunicator(rank)):
            return work(rank)

    return parallel.run_threads(size, run)
