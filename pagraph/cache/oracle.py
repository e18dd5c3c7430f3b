"""Rankings that no loader can have, to hold the others against: by the reads of the epoch that is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..sampling.accesses import count_accesses
from .policy import Ranking

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["Hindsight"]


@dataclass(frozen=True)
class Hindsight:
    """Ranks by the mean reads of epochs that a loader with this seed will make.

    Epoch 0 alone is the *oracle* for a loader's first epoch: no ranking has a higher hit rate in it, noise included.
    Thirty later epochs are the *ideal*: about the best that a ranking can be without having seen the noise. For
    analysis: both sample what they rank by.

    Args:
        begin: The first epoch.
        epochs: How many.
    """

    begin: int = 0
    epochs: int = 1

    def __call__(
        self, graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000, shuffle: bool = True
    ) -> dict[str, Ranking]:
        """See ``pagraph.cache.policy``.

        Raises:
            ValueError: There is no sampler that can be run apart from the loader.
        """
        if sampler is None:
            raise ValueError("cache_policy 'oracle' and 'ideal' need a sampler that runs apart from the loader")
        settings: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle}
        epochs = range(self.begin, self.begin + self.epochs)
        counts = count_accesses(graph, seeds, sampler, epochs=epochs, **settings)
        return {ntype: Ranking.of_reads(counts.reads(ntype) / self.epochs) for ntype in graph.node_types}
