"""Sampling: which neighbours a mini-batch reads, as pure functions of graph, seeds and key."""

from .keys import derive_key
from .neighbor import NeighborSampler

__all__ = ["NeighborSampler", "derive_key"]
