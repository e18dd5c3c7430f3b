"""MiniBatchSampler: the protocol of samplers, which policies, cache sharing, profiling and the loaders rely on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph import Graph
    from .hop_sampler import HopSampler

__all__ = ["MiniBatchSampler"]


class MiniBatchSampler:
    """Base of all samplers: turns seeds into a mini-batch, as a pure function of graph, seeds and key.

    Subclasses are frozen dataclasses (see :attr:`cache_key`) and may be called from any number of threads.
    """

    @property
    def hops(self) -> HopSampler | None:
        """The sampler that goes from vertices to their neighbours: this one, or the one inside; None: not known."""
        return None

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        raise NotImplementedError

    @property
    def trees_per_seed(self) -> int:
        """Most disjoint trees that one seed is the root of, where trees are disjoint."""
        return 1

    @property
    def seeds_are_vertices(self) -> bool:
        """Whether seeds are vertices (their rows are read as such), not edges or pairs of them."""
        return True

    @property
    def cache_key(self) -> Hashable:
        """Equal for samplers that sample the same from the same graph; caches are shared by it."""
        settings: Any = self
        return type(self), *(_hashable(getattr(self, field.name)) for field in fields(settings))

    def seed_rates(self, seeds: Any, batch_size: int) -> dict[str, Tensor] | None:
        """How likely each vertex is in the first frontier of a batch of ``batch_size`` of the seeds.

        Returns:
            Vertex type to float64, shape ``(num_nodes,)``; None where seeds are the frontier.
        """
        return None

    def sample(self, graph: Graph, seeds: Any, key: int = 0) -> Any:
        """Sample one mini-batch; safe from any number of threads at once."""
        raise NotImplementedError


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted((repr(name), _hashable(entry)) for name, entry in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value.cache_key if isinstance(value, MiniBatchSampler) else value
