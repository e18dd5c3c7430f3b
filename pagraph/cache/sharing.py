"""Share: which loaders of one graph can use one cache."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .auto import auto
from .degree import degree

if TYPE_CHECKING:
    from .policy import Policy

__all__ = ["Share", "share_of"]


@dataclass(frozen=True)
class Share:
    """What a loader's cache offers to others, and what it takes from them; equal if rankings and their reads are.

    Attributes:
        kind: How vertices are ranked.
        workload: What the ranking depends on besides the graph; None: on nothing.
        takes_any: The cache of another workload will do.
    """

    kind: Hashable
    workload: Hashable = None
    takes_any: bool = field(default=False, compare=False)

    def takes(self, other: Share | None) -> bool:
        """Whether a loader with this share may use the cache of one with the other."""
        return other is not None and self.kind == other.kind and (self.takes_any or self.workload == other.workload)


def share_of(
    policy: Policy, *, graph: object, edge_dir: str, seeds: Any, batch_size: int, sampler: Any, shuffle: bool
) -> Share | None:
    """What a loader shares; None for policies that may depend on anything.

    The degree ranking does not look at the seeds: the train and the validation loader have one cache. ``auto`` ranks
    for its batches: a loader that shuffles takes only a cache that was made for the same graph, seeds, batch size and
    sampler, and shuffled. One that does not shuffle evaluates: rather than sample epochs for a ranking of its own it
    takes the cache of the loader that trains.
    """
    if policy is degree:
        return Share(("degree", edge_dir))
    if policy is auto and sampler is not None:
        # A cache keeps its graph alive, and so the number.
        workload = id(graph), _digest(seeds), batch_size, repr(sampler), shuffle
        return Share(("auto", edge_dir), workload, takes_any=not shuffle)
    return None


def _digest(seeds: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, ids in seeds.items() if isinstance(seeds, Mapping) else [("", seeds)]:
        assert isinstance(ids, Tensor)
        digest.update(f"{name}:{ids.dtype}:{len(ids)};".encode())
        digest.update(ids.cpu().contiguous().numpy().data)
    return digest.hexdigest()
