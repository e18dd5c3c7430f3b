"""Cache policies by name, with random, oracle, and one for little memory."""

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
    """All vertices in random order; without scores, so that each type gets its share of the
    budget."""
    orders = {}
    for number, ntype in enumerate(graph.node_types):
        rng = np.random.Generator(np.random.Philox(key=derive_key(seed, number)))
        orders[ntype] = torch.from_numpy(rng.permutation(graph.num_nodes_of(ntype)))
    return orders


@dataclass(frozen=True)
class Hindsight:
    """Rank by the mean reads of the loader's own epochs ``begin`` to ``begin + epochs``.

    For analysis. Epoch 0 alone is the *oracle* of a loader's first epoch: no ranking has a higher
    hit rate in it, noise included. Thirty later epochs are the *ideal*: about the best ranking that
    does not know the noise.
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
        """See ``pagraph.ranking.policy``; ValueError if only user code can sample."""
        if sampler is None:
            raise ValueError(
                "cache_policy 'oracle' and 'ideal' need a sampler that can run without the loader"
            )
        settings: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle}
        epochs = range(self.begin, self.begin + self.epochs)
        counts = count_accesses(graph, seeds, sampler, epochs=epochs, **settings)
        rankings = {}
        for ntype in graph.node_types:
            rankings[ntype] = Ranking.of_reads(counts.reads(ntype) / self.epochs)
        return rankings


# FewBatches samples at most a quarter of an epoch, or 64 batches if that is more.
_MOST_BATCHES = 64
_SHARE = 4
_FEW = 0x66657773  # "fews": keeps the keys of spread batches distinct from those of training
_ORDER_BYTES = 8  # per seed, of a shuffled order
BYTES_A_ROW = 64
"""Bytes per row while it is counted: its id twice, a sort, a place and a count, rounded up."""


@dataclass(frozen=True)
class FewBatches:
    """Rank the vertices that some sampled batches read, by the number of batches; omit all others.

    For graphs with too many vertices for one number each: memory and time depend only on the rows
    of these batches. They are batches of a loader with the same arguments and seed.

    Args:
        rows: Stop sampling when this many rows have been counted.
        epoch: The epoch of the batches.

    Raises:
        TypeError: ``rows`` is not an integer.
        ValueError: ``rows`` is below 1.
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
        """See ``pagraph.ranking.policy``; ranks nothing if only user code can sample."""
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
                # A copy, because the batch's memory is recycled.
                found[ntype].append(ids.numpy().astype(np.int64))
                rows += len(ids)
            if rows >= self.rows:
                break
        return {ntype: _by_count(parts) for ntype, parts in found.items()}

    def _batches(
        self, seeds: Any, seed: int, batch_size: int, shuffle: bool
    ) -> Iterator[tuple[Any, int]]:
        """Yield seeds and keys, of a shuffled epoch's first batches or else of evenly spaced
        ones."""
        batches = -(-num_seeds(seeds) // batch_size)
        count = max(1, min(batches, max(_MOST_BATCHES, batches // _SHARE)))
        # If there is no room to shuffle all seeds, take evenly spaced ones instead.
        if shuffle and _ORDER_BYTES * num_seeds(seeds) > self.rows * BYTES_A_ROW // 2:
            for place in range(count):
                yield spread_seeds(seeds, batch_size, place / count), derive_key(seed, _FEW, place)
            return
        order = SeedOrder(seeds, batch_size, shuffle=shuffle, seed=seed)
        plan = order.plan(self.epoch)
        for place in range(count):
            number = place if shuffle else place * batches // count
            ticket = order.ticket(plan, number)
            # A plain number instead of a BatchKey, so that batches share no random numbers (see
            # count_accesses).
            yield ticket.seeds, int(ticket.key)


def _by_count(parts: list[np.ndarray[Any, Any]]) -> Ranking:
    ids, counts = np.unique(np.concatenate([np.empty(0, np.int64), *parts]), return_counts=True)
    order = descending(torch.from_numpy(counts))
    return Ranking(torch.from_numpy(ids)[order], torch.from_numpy(counts)[order].double())


def spread_seeds(seeds: Tensor | Mapping[Any, Tensor], size: int, begin: float) -> Any:
    """About ``size`` evenly spaced seeds, by type if the seeds are.

    The first is at ``begin``, a share of the distance between them.
    """
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
    """The policy with a name, or a given function itself.

    Raises ValueError for an unknown name, and TypeError for anything else.

    >>> resolve_policy("presample:3")
    Presample(epochs=3)
    """
    if isinstance(policy, str):
        epochs = check_policy(policy)
        return POLICIES[policy] if epochs is None else Presample(epochs)
    if not callable(policy):
        raise TypeError(f"cache_policy must be a name or a function, got {type(policy).__name__}")
    return policy


# Peak bytes per vertex, per vertex and hop, and per edge in addition to a copy of its end. Measured
# with 1 M vertices, 16.8 M edges and 2 hops: auto took 200 bytes a vertex, vip 135, presample 89,
# degree 44, random 20.
_BYTES: dict[str, tuple[int, int, int]] = {
    "auto": (40, 40, 1),
    "adaptive": (40, 40, 1),
    "vip": (0, 24, 1),
    "degree": (48, 0, 0),
    "random": (24, 0, 0),
}


def ranking_bytes(policy: Policy, graph: Graph, num_hops: int) -> int:
    """Estimated bytes that a policy takes while it ranks; 0 for a user's function."""
    if not ranks_all(policy):
        return 0
    name = next((name for name, known in POLICIES.items() if known == policy), "")
    # The default is for ``presample``, with any number of epochs.
    vertices, by_hop, edges = _BYTES.get(name, (96, 0, 0))
    nbytes = graph.num_nodes * (vertices + by_hop * (num_hops + 1))
    if edges:
        for etype in graph.edge_types:
            csc = graph.csc_of(etype)
            nbytes += csc.num_edges * (edges + csc.indices.element_size())
    return nbytes


def ranks_all(policy: Policy) -> bool:
    """Whether a policy ranks all vertices, as those of ``POLICIES`` and ``Presample`` do."""
    return policy in POLICIES.values() or isinstance(policy, Presample)
