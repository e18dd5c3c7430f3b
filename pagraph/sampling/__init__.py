"""Sampling: which neighbours a mini-batch reads, as pure functions of graph, seeds and key."""

from .keys import derive_key
from .neighbor import NeighborSampler, SamplingPools

__all__ = ["NeighborSampler", "SamplingPools", "derive_key"]
