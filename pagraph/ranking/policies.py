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

__all__ = ["POLICIES", "Hindsight", "random_order", "ranks_all", "resolve_policy"]


def random_order(graph: Graph, seeds: Any, sampler: object, seed: int) -> dict[str, Tensor]:
    """All vertices in an order drawn from ``seed``; without scores, so that each type gets its share of the budget."""
    orders = {}
    for number, ntype in enumerate(graph.node_types):
        rng = np.random.Generator(np.random.Philox(key=derive_key(seed, number)))
        orders[ntype] = torch.from_numpy(rng.permutation(graph.num_nodes_of(ntype)))
    return orders


@dataclass(frozen=True)
class Hindsight:
    """Rank by the mean reads of epochs ``begin`` to ``begin + epochs`` of a loader with this seed; for analysis.

    Epoch 0 alone is the *oracle* for a loader's first epoch: no ranking has a higher hit rate in it, noise included.
    Thirty later epochs are the *ideal*: about the best that a ranking can be without having seen the noise.
    """

    begin: int = 0
    epochs: int = 1

    def __call__(
        self, graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000, shuffle: bool = True
    ) -> dict[str, Ranking]:
        """See ``pagraph.ranking.policy``; ValueError where no sampler can be run apart from the loader."""
        if sampler is None:
            raise ValueError("cache_policy 'oracle' and 'ideal' need a sampler that runs apart from the loader")
        settings: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle}
        epochs = range(self.begin, self.begin + self.epochs)
        counts = count_accesses(graph, seeds, sampler, epochs=epochs, **settings)
        return {ntype: Ranking.of_reads(counts.reads(ntype) / self.epochs) for ntype in graph.node_types}


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
    """The policy of that name (ValueError for an unknown one), or a function itself (TypeError for anything else).

    >>> resolve_policy("presample:3")
    Presample(epochs=3)
    """
    if isinstance(policy, str) and policy.startswith(_PRESAMPLE):
        number = policy.removeprefix(_PRESAMPLE)
        if not (number.isascii() and number.isdigit() and int(number) >= 1):
            raise ValueError(
                f"cache_policy 'presample:K' needs a whole number of epochs K of at least 1, got {policy!r}"
            )
        return Presample(int(number))
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"cache_policy must be one of {sorted(POLICIES)} or a function, got {policy!r}")
        return POLICIES[policy]
    if not callable(policy):
        raise TypeError(f"cache_policy must be a name or a function, got {type(policy).__name__}")
    return policy


def ranks_all(policy: Policy) -> bool:
    """Whether a policy is one of ``POLICIES`` or ``Presample``, which leave no vertex out."""
    return policy in POLICIES.values() or isinstance(policy, Presample)
