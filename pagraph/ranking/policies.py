"""Cache policies by name; the random and the oracle policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..seeds.keys import derive_key
from .auto import adaptive, auto
from .degree import degree
from .policy import Policy, Ranking
from .presample import Presample, count_accesses
from .vip import vip

if TYPE_CHECKING:
    from ..graph.graph import Graph

__all__ = ["POLICIES", "Hindsight", "random_order", "ranking_bytes", "ranks_all", "resolve_policy"]


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
        return {
            ntype: Ranking.of_reads(counts.reads(ntype) / self.epochs) for ntype in graph.node_types
        }


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

_PRESAMPLE = "presample:"


def resolve_policy(policy: str | Policy) -> Policy:
    """The policy of that name (ValueError for an unknown one), or a function itself (TypeError for
    anything else).

    >>> resolve_policy("presample:3")
    Presample(epochs=3)
    """
    if isinstance(policy, str) and policy.startswith(_PRESAMPLE):
        number = policy.removeprefix(_PRESAMPLE)
        if not (number.isascii() and number.isdigit() and int(number) >= 1):
            raise ValueError(
                "cache_policy 'presample:K' needs a whole number of epochs K of at least 1, got "
                f"{policy!r}"
            )
        return Presample(int(number))
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(
                f"cache_policy must be one of {sorted(POLICIES)} or a function, got {policy!r}"
            )
        return POLICIES[policy]
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
    """Bytes that a policy takes while it ranks, about; 0 for a user's own, of which nobody
    knows."""
    if not ranks_all(policy):
        return 0
    name = next((name for name, known in POLICIES.items() if known == policy), "")
    vertices, by_hop, edges = _BYTES.get(name, (96, 0, 0))
    nbytes = graph.num_nodes * (vertices + by_hop * (num_hops + 1))
    cscs = [graph.csc_of(etype) for etype in graph.edge_types]
    return nbytes + sum(
        csc.num_edges * (edges + csc.indices.element_size()) for csc in cscs if edges
    )


def ranks_all(policy: Policy) -> bool:
    """Whether a policy is one of ``POLICIES`` or ``Presample``, which leave no vertex out."""
    return policy in POLICIES.values() or isinstance(policy, Presample)
