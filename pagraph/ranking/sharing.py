"""Share: decides which loaders of one graph can use one cache."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ..graph.graph import Graph
from .auto import auto
from .degree import degree

if TYPE_CHECKING:
    from ..sampling.sampler import MiniBatchSampler
    from ..seeds.order import SeedOrder
    from .policy import Policy

__all__ = ["Share", "share_of"]


@dataclass(frozen=True)
class Share:
    """Key by which loaders share a cache; equal if rankings and their reads are.

    Attributes:
        kind: The kind of ranking.
        workload: All that the ranking depends on besides the graph; None: nothing.
        takes_any: The cache of another workload will do.
    """

    kind: Hashable
    workload: Hashable = None
    takes_any: bool = field(default=False, compare=False)

    def takes(self, other: Share | None) -> bool:
        """Whether a loader with this share may use the cache of one with the other."""
        return other is not None and self.kind == other.kind and (self.takes_any or self.workload == other.workload)


class _Seeds:
    """The seeds of an order, compared by value; they are read only when two are compared."""

    def __init__(self, order: SeedOrder) -> None:
        self._order = order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Seeds) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """Hash of types, dtypes and ids (0.06 s for ten million)."""
        digest, seeds = hashlib.blake2b(digest_size=16), self._order.ids
        for name, ids in seeds.items() if isinstance(seeds, Mapping) else [("", seeds)]:
            digest.update(f"{name}:{ids.dtype}:{len(ids)};".encode())
            digest.update(ids.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def _identity(graph: object, sampler: MiniBatchSampler) -> Hashable:
    """Key of the sampled graph: graphs of the same arrays are equal if the fields that the sampler reads are."""
    if not isinstance(graph, Graph):
        return id(graph)
    blocks = sampler.hops
    names = [] if blocks is None else [name for name in (blocks.prob, blocks.time) if name is not None]
    owners = [*map(graph.edge_fields, graph.edge_types), *map(graph.node_fields, graph.node_types)]
    fields = [id(fields.get(name)) for fields in owners for name in names]
    return tuple((etype, id(graph.csc_of(etype))) for etype in graph.edge_types), tuple(fields)


def share_of(
    policy: Policy, *, graph: object, edge_dir: str, sampler: MiniBatchSampler | None, order: SeedOrder | None
) -> Share | None:
    """A loader's share; None for policies that may depend on anything.

    The degree ranking does not look at the seeds: the train and the validation loader have one cache. ``auto`` ranks
    for its batches: a loader that shuffles takes only a cache that was made for the same graph, seeds, batch size and
    sampler, and shuffled. One that does not shuffle evaluates: rather than sample epochs for a ranking of its own it
    takes the cache of the loader that trains.
    """
    if policy is degree:
        return Share(("degree", edge_dir))
    if policy is auto and sampler is not None and order is not None:
        # A cache keeps its graph alive, and so the numbers. What is cheap to compare comes first.
        workload = _identity(graph, sampler), order.batch_size, order.shuffle, sampler.cache_key, _Seeds(order)
        return Share(("auto", edge_dir), workload, takes_any=not order.shuffle)
    return None
