"""CachesReport: what the parts' caches would serve, next to a cache of the same bytes on the whole graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .cache_trial import CacheTrial, CacheUse

__all__ = ["CachesReport", "overlap"]


@dataclass(frozen=True, eq=False)
class CachesReport:
    """One cache of the same bytes for each part, and one for the whole graph: what each serves of one epoch.

    Attributes:
        trial: How they were tried out.
        fanout: What was drawn.
        nbytes: What each cache may take; None where no field says what a row takes.
        whole: The cache of one process that trains with all training vertices on the whole graph.
        parts: The caches of the processes that train on the parts. Their ids are those of the whole graph.
        shared: Of the vertices that any part caches, the share that several cache; 0 where none does.
        jaccard: Vertices that two parts cache / vertices that one of them does, the mean over all pairs of parts; None
            for one part.
    """

    trial: CacheTrial
    fanout: tuple[int, ...]
    nbytes: int | None
    whole: CacheUse
    parts: tuple[CacheUse, ...]
    shared: float
    jaccard: float | None

    @property
    def hit_rate(self) -> float:
        """Rows that the parts' caches serve / rows that all parts ask for."""
        reads = sum(use.reads for use in self.parts)
        return sum(use.hits for use in self.parts) / reads if reads else 0.0

    def to_json(self) -> dict[str, Any]:
        """The numbers as a JSON object."""
        return {
            "budget": str(self.trial.budget),
            "budget_bytes": self.nbytes,
            "policy": self.trial.policy,
            "fanout": list(self.fanout),
            "batch_size": self.trial.batch_size,
            "hit_rate": self.hit_rate,
            "hit_rate_per_part": [use.hit_rate for use in self.parts],
            "rows_per_part": [len(use.ids) for use in self.parts],
            "reads_per_part": [use.reads for use in self.parts],
            "unpartitioned_hit_rate": self.whole.hit_rate,
            "unpartitioned_rows": len(self.whole.ids),
            "unpartitioned_reads": self.whole.reads,
            "shared": self.shared,
            "mean_jaccard": self.jaccard,
        }


def overlap(sets: Sequence[Tensor], num_nodes: int) -> tuple[float, float | None]:
    """How much sets of vertices have in common.

    Args:
        sets: Ids without repeats, each below ``num_nodes``.
        num_nodes: Vertices of the graph.

    Returns:
        Of the vertices of any set, the share that several have; and the mean Jaccard index over all pairs (0 for two
        empty sets), None for fewer than two sets.

    Example:
        >>> overlap([torch.tensor([0, 1]), torch.tensor([1, 2, 3])], 4)
        (0.25, 0.25)
    """
    times = torch.zeros(num_nodes, dtype=torch.int32)
    for ids in sets:
        times[ids] += 1
    some = int((times > 0).sum())
    shared = int((times > 1).sum()) / some if some else 0.0
    pairs = len(sets) * (len(sets) - 1) // 2
    if not pairs:
        return shared, None
    total, mine = 0.0, torch.zeros(num_nodes, dtype=torch.bool)
    for place, ids in enumerate(sets):
        mine[ids] = True
        for other in sets[:place]:
            both = int(mine[other].sum())
            total += both / max(1, len(ids) + len(other) - both)
        mine[ids] = False
    return shared, total / pairs
