"""Cache policies by name; the random and the oracle policy, and one for little memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..options.names import check_policy
from ..seeds.keys import derive_key
from ..seeds.order import SeedOrder, num_seeds
from ..system.checks import as_integer
from .auto import adaptive, auto
from .policy import Policy, Ranking, degree, descending
from .presample import Presample, count_accesses
from .vip import vip

if TYPE_CHECKING:
    from ..graph.graph import Graph


def random_order(graph: Graph, seeds: Any, sampler: object, seed: int) -> dict[str, Tensor]:
    """All vertices in an order drawn from ``seed``; without scores, so that each type gets its
    share of the budget."""
    orders = {}
    for number, ntype in enumerate(graph.node_types):
        rng = np.random.Generator(np.random.Philox(key=derive_key(seed, number)))
        orders[ntype] = torch.from_numpy(rng.permutation(graph.num_nodes_of(ntype)))
    return orders


@dataclass(frozen=True)
class Hindsight:
    """Rank by the mean reads of epochs ``begin`` to ``begin + epochs`` of a loader with this seed;
    for analysis.

    Epoch 0 alone is the *oracle* for a loader's first epoch: no ranking has a higher hit rate in
    it, noise included. Thirty later epochs are the *ideal*: about the best that a ranking can be
    without having seen the noise.
    """

    begin: int = 0
    epochs: int = 1

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
        """See ``pagraph.ranking.policy``; ValueError where no sampler can be run apart from the
        loader."""
        if sampler is None:
            raise ValueError(
                "cache_policy 'oracle' and 'ideal' need a sampler that runs apart from the loader"
            )
        settings: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle}
        epochs = range(self.begin, self.begin + self.epochs)
        counts = count_accesses(graph, seeds, sampler, epochs=epochs, **settings)
        rankings = {}
        for ntype in graph.node_types:
            rankings[ntype] = Ranking.of_reads(counts.reads(ntype) / self.epochs)
        return rankings


# FewBatches samples at most a quarter of an epoch, but 64 batches where that is more.
_MOST_BATCHES = 64
_SHARE = 4
_FEW = 0x66657773  # "fews": keeps the keys of spread batches apart from those that are trained on
_ORDER_BYTES = 8  # that a shuffled order takes a seed
BYTES_A_ROW = 64
"""Bytes that a row takes while it is counted: its id twice, a sort, a place and a count, rounded
up."""


@dataclass(frozen=True)
class FewBatches:
    """Rank the vertices that some sampled batches read, by how many batches read them; leave out
    all others.

    For graphs whose vertices are too many for one number each: memory and time depend on the rows
    of these batches alone. They are batches of a loader with the same arguments and seed.

    Args:
        rows: Stop sampling once this many rows have been counted.
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
            if not isinstance(nodes, Mapping):
                nodes = {graph.only_node_type: nodes}
            for ntype, ids in nodes.items():
                # A copy: the batch's own memory is recycled.
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
        count = max(1, min(batches, max(_MOST_BATCHES, batches // _SHARE)))
        # There is no room to shuffle all seeds: take seeds at equal distances instead.
        if shuffle and _ORDER_BYTES * num_seeds(seeds) > self.rows * BYTES_A_ROW // 2:
            for place in range(count):
                yield spread_seeds(seeds, batch_size, place / count), derive_key(seed, _FEW, place)
            return
        order = SeedOrder(seeds, batch_size, shuffle=shuffle, seed=seed)
        plan = order.plan(self.epoch)
        for place in range(count):
            ticket = order.ticket(plan, place if shuffle else place * batches // count)
            # As a plain number the key forgets its place in the epoch, so that the batch shares no
            # random numbers with others (see count_accesses).
            yield ticket.seeds, int(ticket.key)


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


POLICIES: dict[str, Policy] = {
    "adaptive": adaptive,
    "auto": auto,
    "degree": degree,
    "ideal": Hindsight(begin=1_000_000, epochs=30),
    "oracle": Hindsight(),
    "presample": Presample(),
    "random": random_order,
    "vip": vip,
}
"""Name to policy; "presample:K" samples K epochs."""


def resolve_policy(policy: str | Policy) -> Policy:
    """The policy of that name (ValueError for an unknown one), or a function itself (TypeError for
    anything else).

    >>> resolve_policy("presample:3")
    Presample(epochs=3)
    """
    if isinstance(policy, str):
        epochs = check_policy(policy)
        return POLICIES[policy] if epochs is None else Presample(epochs)
    if not callable(policy):
        raise TypeError(f"cache_policy must be a name or a function, got {type(policy).__name__}")
    return policy


# Bytes, at their peak, for each vertex, for each vertex and hop, and for each edge beside a copy of
# its end: measured with 1 M vertices, 16.8 M edges and 2 hops (auto 200 bytes a vertex, vip 135,
# presample 89, degree 44, random 20).
_BYTES: dict[str, tuple[int, int, int]] = {
    "auto": (40, 40, 1),
    "adaptive": (40, 40, 1),
    "vip": (0, 24, 1),
    "degree": (48, 0, 0),
    "random": (24, 0, 0),
}


def ranking_bytes(policy: Policy, graph: Graph, num_hops: int) -> int:
    """About how many bytes a policy takes while it ranks; 0 for a user's own, which cannot be
    known."""
    if not ranks_all(policy):
        return 0
    name = next((name for name, known in POLICIES.items() if known == policy), "")
    # ``presample`` with any number of epochs has no entry of its own.
    vertices, by_hop, edges = _BYTES.get(name, (96, 0, 0))
    nbytes = graph.num_nodes * (vertices + by_hop * (num_hops + 1))
    if edges:
        for etype in graph.edge_types:
            csc = graph.csc_of(etype)
            nbytes += csc.num_edges * (edges + csc.indices.element_size())
    return nbytes


def ranks_all(policy: Policy) -> bool:
    """Whether a policy is one of ``POLICIES`` or ``Presample``, which leave no vertex out."""
    return policy in POLICIES.values() or isinstance(policy, Presample)
