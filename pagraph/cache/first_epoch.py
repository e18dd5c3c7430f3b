"""FirstEpoch: what a loader reads before its cache is filled a second time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence

from torch import Tensor

from ..sampling.accesses import AccessCounts
from .policy import Rank

__all__ = ["FirstEpoch"]

_ENOUGH = 0.5
"""Share of an epoch's batches that must have been read; after less, the next epoch is counted too."""

_MOST_EPOCHS = 2
"""No more batches are counted than these have, so that counters of 1 or 2 bytes hold whatever comes."""


class FirstEpoch:
    """Counts the input rows that are read, and says once, between two epochs, how to rank by them.

    Of the fields of a vertex type the first that is read stands for all. Safe from any thread.

    Args:
        num_nodes: Vertex type to its number of vertices.
        num_hops: Hops of a mini-batch; 0 where reads do not say which hop found what.
        batches: Batches of an epoch.
        repeats: How often a batch may read one vertex. None: nobody knows.
        rank: Makes a ranking of the counts.
    """

    def __init__(
        self,
        num_nodes: Mapping[str, int],
        *,
        num_hops: int,
        batches: int,
        repeats: int | None = None,
        rank: Callable[[AccessCounts], Rank],
    ) -> None:
        self._most = max(1, _MOST_EPOCHS * batches)
        self._counts = AccessCounts(
            num_nodes, num_hops, most=2**32 - 1 if repeats is None else self._most * max(1, repeats)
        )
        self._batches = batches
        self._rank = rank
        self._lock = threading.Lock()
        self._standing_for: dict[str, Hashable] = {}
        self._reads = dict.fromkeys(num_nodes, 0)

    def add(self, key: Hashable, node_type: str, ids: Tensor, bounds: Sequence[int] | None) -> None:
        """Count a read of a field; ``bounds`` as for ``FieldSet.read``. Ids are in range.

        Where reads say which hop found what, those that name fewer hops are of output nodes, and left out.
        """
        num_hops = self._counts.num_hops
        if num_hops and (bounds is None or len(bounds) != num_hops + 1):
            return
        if self._standing_for.setdefault(node_type, key) != key:
            return
        with self._lock:
            if self._reads[node_type] >= self._most:
                return
            self._reads[node_type] += 1
        self._counts.add_reads(node_type, ids.cpu(), bounds if num_hops and bounds is not None else [len(ids)])

    def ranking(self) -> Rank | None:
        """The ranking, if enough has been read; None otherwise."""
        with self._lock:
            self._counts.batches = max(self._reads.values(), default=0)
        if self._counts.batches < max(1.0, _ENOUGH * self._batches):
            return None
        return self._rank(self._counts)
