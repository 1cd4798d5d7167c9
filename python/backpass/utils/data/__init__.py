"""Samplers that give processes which train together batches of like cost."""

from backpass import _needs_torch  # noqa: F401

# isort: split

from backpass.utils.data.sampler import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler

__all__ = ["LoadBalancingDistributedBatchSampler", "LoadBalancingDistributedSampler"]
