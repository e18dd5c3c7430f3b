"""Ranking by a few sampled batches, where memory does not allow a number for every vertex."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..seeds.keys import derive_key
from ..seeds.order import SeedOrder, num_seeds
from ..system.checks import as_integer
from .policy import Ranking, descending

if TYPE_CHECKING:
    from ..graph.graph import Graph

__all__ = ["FewBatches", "spread_seeds"]

_MOST, _SHARE = 64, 4  # batches, or one in so many of an epoch
_FEW = 0x66657773  # "fews": keeps spread batches apart from those that are trained on
_ORDER_BYTES = 8  # that a shuffled order takes a seed
BYTES_A_ROW = 64
"""Bytes that a counted row takes while it is counted: its id twice, a sort, a place and a count,
rounded up."""


@dataclass(frozen=True)
class FewBatches:
    """Rank the vertices that some sampled batches read, by how many of them do; leave out all
    others.

    Memory and time depend on the rows of these batches, not on the graph. They are batches of a
    loader with the same arguments and seed, at most 64 or a quarter of an epoch: what they read
    several times is then read from disk once.

    Args:
        rows: Sample no further batch once so many rows have been counted.
        epoch: The epoch whose batches these are.

    Raises:
        TypeError, ValueError: ``rows`` is not an integer; it is below 1.
    """

    rows: int = 1 << 20
    epoch: int = 0

    def __post_init__(self) -> None:
        as_integer("rows", self.rows, least=1)

    def __call__(
        self,
        graph: Graph,
        seeds: Any,
        sampler: Any,
        seed: int,
        *,
        batch_size: int = 1000,
        shuffle: bool = True,
    ) -> dict[str, Ranking]:
        """See ``pagraph.ranking.policy``; no vertex is ranked where only a user's own code
        samples."""
        if sampler is None:
            return {}
        found: dict[str, list[np.ndarray[Any, Any]]] = {ntype: [] for ntype in graph.node_types}
        rows = 0
        for some, key in self._batches(seeds, seed, batch_size, shuffle):
            batch = sampler.sample(graph, some, key)
            nodes = batch.input_nodes
            for ntype, ids in (
                nodes if isinstance(nodes, Mapping) else {graph.only_node_type: nodes}
            ).items():
                # A copy: the batch's own memory goes.
                found[ntype].append(ids.numpy().astype(np.int64))
                rows += len(ids)
            if rows >= self.rows:
                break
        return {ntype: _by_count(parts) for ntype, parts in found.items()}

    def _batches(
        self, seeds: Any, seed: int, batch_size: int, shuffle: bool
    ) -> Iterator[tuple[Any, int]]:
        """Yield seeds and keys: the first batches of a shuffled epoch, else some at equal
        distances."""
        batches = -(-num_seeds(seeds) // batch_size)
        count = max(1, min(batches, max(_MOST, batches // _SHARE)))
        # No room for an order of all.
        if shuffle and _ORDER_BYTES * num_seeds(seeds) > self.rows * BYTES_A_ROW // 2:
            for place in range(count):
                yield spread_seeds(seeds, batch_size, place / count), derive_key(seed, _FEW, place)
            return
        order = SeedOrder(seeds, batch_size, shuffle=shuffle, seed=seed)
        plan = order.plan(self.epoch)
        for place in range(count):
            ticket = order.ticket(plan, place if shuffle else place * batches // count)
            yield ticket.seeds, int(ticket.key)  # a batch for itself, as for count_accesses


def _by_count(parts: list[np.ndarray[Any, Any]]) -> Ranking:
    ids, counts = np.unique(np.concatenate([np.empty(0, np.int64), *parts]), return_counts=True)
    order = descending(torch.from_numpy(counts))
    return Ranking(torch.from_numpy(ids)[order], torch.from_numpy(counts)[order].double())


def spread_seeds(seeds: Tensor | Mapping[Any, Tensor], size: int, begin: float) -> Any:
    """About ``size`` seeds at equal distances, by type if they were given so; ``begin`` is a share
    of the distance."""
    if isinstance(seeds, Mapping):
        total = max(1, sum(map(len, seeds.values())))
        return {
            t: spread_seeds(ids, -(-size * len(ids) // total), begin)
            for t, ids in seeds.items()
            if len(ids)
        }
    count = min(size, len(seeds))
    places = (np.arange(count) + begin) * (len(seeds) / max(1, count))
    return seeds[torch.from_numpy(places.astype(np.int64))]
