"""Samplers for processes that train together and wait for each other: at each step, all get samples of like cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import Sampler


def shard_wrapped_indices_for_worker(dataset_index_list: Sequence[int], shard_id: int, num_shards: int) -> list[int]:
    """Every ``num_shards``-th index from ``shard_id`` on; the list begins again where it does not divide evenly."""
    length = math.ceil(len(dataset_index_list) / num_shards)
    return [chunk[shard_id] for chunk in _chunks(dataset_index_list, num_shards, length)]


def _chunks(indices: Sequence[int], size: int, count: int) -> list[list[int]]:
    """``count`` chunks, at least one, of ``size`` indices one after the other; after the last comes the first."""
    wrapped = [int(indices[i % len(indices)]) for i in range(max(1, count) * size)]
    return [wrapped[i : i + size] for i in range(0, len(wrapped), size)]


class LoadBalancingDistributedSampler:
    """Sorts samples by cost, cuts them into chunks with one sample for each process, and shuffles the chunks.

    ``complexity_fn(sample)`` is the cost of a sample, an int; it is called once for each. With ``group_size`` samples
    are sorted inside of groups of that many, and the groups are shuffled instead. ``random_level``, from 0 to 1, gives
    up balance for more chance: that part of the range of costs is added to them at random. ``set_epoch`` before each
    epoch gives it an order of its own. All processes need the same ``seed``.
    """

    def __init__(
        self,
        dataset: Any,
        complexity_fn: Callable[..., int],
        world_size: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        group_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0,
    ) -> None:
        world_size = torch.distributed.get_world_size() if world_size is None else world_size
        rank = torch.distributed.get_rank() if rank is None else rank
        if not 0 <= rank < world_size:
            raise ValueError(f"Invalid rank {rank}, expected 0 to {world_size - 1}")
        if not 0 <= random_level <= 1:
            raise ValueError(f"Invalid random level {random_level}, expected 0.0 to 1.0")
        self.dataset, self.complexity_fn = dataset, complexity_fn
        self.world_size, self.rank = world_size, rank
        self.shuffle, self.group_size, self.drop_last = shuffle, group_size, drop_last
        self.seed, self.random_level, self.epoch = seed, random_level, 0
        share = len(dataset) / world_size
        self.num_samples = math.floor(share) if drop_last else math.ceil(share)
        self.total_size = self.num_samples * world_size
        self.sample_complexities: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """The order from now on is that of this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices_of(self.rank))

    def indices_of(self, rank: int) -> list[int]:
        """What the process of that rank gets in this epoch."""
        return [chunk[rank] for chunk in self._chunks_of_epoch()]

    def _chunks_of_epoch(self) -> list[list[int]]:
        if not self.num_samples:
            return []
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        groups = self._sorted_groups(self._costs(generator))
        if self.shuffle and self.group_size is not None:
            groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
        chunks = _chunks(np.concatenate(groups).tolist(), self.world_size, self.num_samples)
        if self.shuffle and self.group_size is None:
            chunks = [chunks[i] for i in torch.randperm(len(chunks), generator=generator).tolist()]
        return chunks

    def _costs(self, generator: torch.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of all samples, and what chance adds to them in this epoch."""
        if self.sample_complexities is None:
            found = (self.complexity_fn(self.dataset[i]) for i in range(len(self.dataset)))
            self.sample_complexities = np.fromiter(found, np.int64, len(self.dataset))
        costs = self.sample_complexities
        extent = int((costs.max() - costs.min()) * self.random_level + 1)
        return costs if extent <= 1 else costs + torch.randint(extent, costs.shape, generator=generator).numpy()

    def _sorted_groups(self, costs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        size = self.group_size or len(costs)
        return [begin + np.argsort(costs[begin : begin + size], kind="stable") for begin in range(0, len(costs), size)]


class LoadBalancingDistributedBatchSampler(Sampler[list[int]]):
    """Batches of different sizes, equally many for every process.

    ``batch_fn(indices)`` makes a list of batches out of the samples of one process. Processes that have fewer than
    others begin again; with ``drop_last``, those that have more leave some out.
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[list[int]], list[list[int]]],
        drop_last: bool = False,
    ) -> None:
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            kind = type(sampler).__name__
            raise ValueError(f"sampler: got {kind}, expected one of LoadBalancingDistributedSampler type")
        if sampler.drop_last:
            raise ValueError("drop_last of sampler should be False: batches are counted for all processes here")
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last
        self.world_size, self.rank = sampler.world_size, sampler.rank
        self.generate_batches()

    def generate_batches(self) -> None:
        """Makes the batches of the sampler's epoch, those of other processes too: their number decides on ours."""
        batches = [list(self.batch_fn(self.sampler.indices_of(rank))) for rank in range(self.world_size)]
        counts = [len(batch) for batch in batches]
        self.total_batch = min(counts) if self.drop_last else max(counts)
        mine = batches[self.rank]
        self.batches = [mine[i % len(mine)] for i in range(self.total_batch)] if mine else []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return self.total_batch

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)
        self.generate_batches()
