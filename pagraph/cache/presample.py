"""The presample policy: ranks by the reads that were counted in sampled epochs (PreSC#K of GNNLab)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..sampling.accesses import count_accesses
from ..sampling.keys import derive_key
from .degree import out_degrees
from .policy import Ranking

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["Presample", "presampling_seed"]

_OTHER_EPOCHS = 0x70726573  # "pres": keeps what is counted apart from what is trained on


def presampling_seed(seed: int) -> int:
    """The seed of the epochs that are sampled only to be counted: none of them is one that the loader trains on."""
    return derive_key(seed, _OTHER_EPOCHS)


@dataclass(frozen=True)
class Presample:
    """Ranks by the mean number of reads in ``epochs`` sampled epochs (Yang et al., GNNLab, EuroSys 2022, section 5.3).

    Vertices that were read equally often go by out-degree, then by id. The epochs are sampled with the loader's seeds,
    sampler and batch size, and are others than those it trains on; no global generator is touched.

    Args:
        epochs: Epochs to sample (the K of PreSC#K).

    Raises:
        TypeError: ``epochs`` is not an integer.
        ValueError: It is below 1.
    """

    epochs: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.epochs, bool) or not isinstance(self.epochs, int | np.integer):
            raise TypeError(f"epochs must be an integer, got {self.epochs!r}")
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}")

    def __call__(
        self, graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000, shuffle: bool = True
    ) -> dict[str, Ranking]:
        """See ``pagraph.cache.policy``.

        Raises:
            ValueError: There is no sampler that can be run apart from the loader.
        """
        if sampler is None:
            raise ValueError(
                "cache_policy 'presample' needs seeds and a sampler that run apart from the loader, got your own; "
                "'degree' and 'random' need neither"
            )
        counts = count_accesses(
            graph,
            seeds,
            sampler,
            batch_size=batch_size,
            seed=presampling_seed(seed),
            epochs=range(self.epochs),
            shuffle=shuffle,
        )
        degrees = out_degrees(graph)
        rankings = {}
        for ntype in graph.node_types:
            reads = counts.reads(ntype)
            order = torch.from_numpy(np.lexsort((-degrees[ntype].numpy(), -reads.numpy())))
            rankings[ntype] = Ranking(order, reads[order].double() / self.epochs, per_epoch=True)
        return rankings
