"""A module of `backpass.api` that several processes train together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from backpass import _core
from backpass.api import CheckpointState, Module
from backpass.parallel.errors import Array


class DataParallel:
    """Trains a module on this process's share of the data, together with all others.

    Every process makes one, of the same model, and makes the same calls afterwards. Parameters, moments and the seed
    become those of rank 0, the seed plus the rank. From then on the gradients of a training step are averages over all
    processes: with equal shares of a batch, and a loss that is a mean over it, those of the whole batch. They are on
    their way in buckets while the backward pass goes on; ``overlap=False`` sends them afterwards, to the same bits.
    The optimizer clips what comes out. With ``zero_stage=1`` each process keeps a share of the optimizer's state only.

    ``Optimizer(uri, parallel.module)`` may be made before or after. What a module has, this has, too.
    """

    def __init__(
        self,
        module: Module,
        communicator: Any = None,
        *,
        bucket_bytes: int = 25 << 20,
        overlap: bool = True,
        zero_stage: int = 0,
        average_statistics: bool = True,
    ) -> None:
        from backpass import parallel

        if communicator is None:
            communicator = parallel.find_communicator()
        self.module = module
        self.communicator = communicator
        self._core = parallel.as_communicator(communicator)
        options = _core.ParallelOptions()
        options.bucket_bytes, options.overlaps = bucket_bytes, overlap
        options.zero_stage, options.averages_statistics = zero_stage, average_statistics
        with module._state._lock:
            module._session.set_communicator(self._core, options)

    @property
    def world_rank(self) -> int:
        return self._core.rank

    @property
    def world_size(self) -> int:
        return self._core.size

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Steps in here keep their gradients to themselves: all of an accumulation but the last."""
        self.module._session.set_exchanges(False)
        try:
            yield
        finally:
            self.module._session.set_exchanges(True)

    def shard(self, array: Any) -> Array:
        """The rows of a joined batch that belong to this process: as many as everybody has."""
        whole = np.asarray(array)
        rows, rest = divmod(len(whole), self.world_size)
        if rest:
            raise _core.InvalidInput(
                f"batch of {len(whole)} rows: cannot be shared out equally over {self.world_size} processes; "
                f"drop {rest}, or fill up with rows whose label is ignored"
            )
        return whole[self.world_rank * rows : (self.world_rank + 1) * rows]

    def mean(self, value: Any) -> float:
        """The average of a number over all processes: of losses, say."""
        total = np.array([float(np.asarray(value))])
        self._core.allreduce(_core.Tensor.from_array(total, 11, [1]))
        return float(total[0]) / self.world_size

    def gradient_buckets(self) -> list[Array]:
        """Views of the memory that gradients lie in, in the order in which the backward pass completes them."""
        with self.module._state._lock:
            return [bucket.array() for bucket in self.module._session.gradient_buckets()]

    def save_checkpoint(self, path: str | os.PathLike[str], include_optimizer_state: bool = False) -> None:
        """Rank 0 writes; moments of all processes are put together first. Everybody has to call it."""
        state = self.module._state
        if include_optimizer_state:
            with state._lock:
                self.module._session.gather_optimizer_state()
        if self.world_rank == 0:
            CheckpointState.save_checkpoint(state, path, include_optimizer_state)
        self._core.broadcast(_core.Tensor.from_array(np.zeros(1), 11, [1]), 0)  # it is there when this returns
