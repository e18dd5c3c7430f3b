"""The policies of a curve by name, and what each says of a graph."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..cache.auto import Learned
from ..cache.direction import turned
from ..cache.policies import POLICIES, resolve_policy
from ..cache.policy import Policy, Ranking, apply_policy

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph import Graph
    from ..sampling.accesses import AccessCounts

__all__ = ["DEFAULT_POLICIES", "IDEAL_EPOCHS", "Rankings", "ideal_epochs", "name_policies"]

DEFAULT_POLICIES = ("auto", "degree", "presample", "vip", "random", "oracle")
IDEAL_EPOCHS = 30
"""Epochs whose mean ``ideal`` ranks by; ``ideal:N`` takes N."""

_ANALYSIS = ("ideal", "oracle")
_PREDICTORS = ("auto", "vip", "presample")


def name_policies(policies: Sequence[str | Policy] | None) -> dict[str, Policy | None]:
    """Name to policy, in the order given; the oracle and the ideal, which are no functions of the graph, are None.

    Raises:
        ValueError: A name is unknown or comes twice, or there is none.
        TypeError: Something is neither a name nor a function, or all of it is one string.
    """
    if isinstance(policies, str):
        raise TypeError(f"policies must be a list of names or functions, got {policies!r}")
    if policies is None:
        policies = DEFAULT_POLICIES
    named: dict[str, Policy | None] = {}
    for policy in policies:
        name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
        if not isinstance(policy, str) and name in (*POLICIES, *_ANALYSIS) and POLICIES.get(name) is not policy:
            raise ValueError(f"policies must have names of their own if they are functions, got {name!r}")
        if name in named:
            raise ValueError(f"policies must have different names, got {name!r} twice")
        named[name] = _resolve(policy)
    if not named:
        raise ValueError("policies must hold at least 1 policy, got none")
    return named


def _resolve(policy: str | Policy) -> Policy | None:
    if isinstance(policy, str):
        base = policy.partition(":")[0]
        if policy == "oracle":
            return None
        if base == "ideal":
            ideal_epochs(policy)
            return None
        if base not in POLICIES:
            raise ValueError(f"policies must be among {sorted({*POLICIES, *_ANALYSIS})} or functions, got {policy!r}")
    elif not callable(policy):
        raise TypeError(f"policies must be names or functions, got {type(policy).__name__}")
    return resolve_policy(policy)


def ideal_epochs(name: str) -> int:
    """How many epochs ``"ideal"`` or ``"ideal:N"`` looks at.

    Raises:
        ValueError: N is not a number of at least 1.
    """
    _, colon, number = name.partition(":")
    if not colon:
        return IDEAL_EPOCHS
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"policies may say 'ideal:N' with N at least 1, got {name!r}")
    return int(number)


@dataclass(eq=False)
class Rankings:
    """Ranks a graph's vertices by policies.

    Attributes:
        graph: The graph.
        seeds: The training vertices.
        sampler: Draws mini-batches.
        batch_size: Seeds a batch.
        seed: Of the loader.
        seconds: Policy to the wall time of its ranking.
    """

    graph: Graph
    seeds: Any
    sampler: Any
    batch_size: int
    seed: int
    seconds: dict[str, float] = field(default_factory=dict)
    _expected: dict[str, dict[str, npt.NDArray[np.float64]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if getattr(self.sampler, "edge_dir", "in") != "in":
            self.graph, self.sampler = turned(self.graph, self.sampler.edge_dir), self.sampler.with_in_edges()

    def each(
        self, named: Mapping[str, Policy | None], *, required: bool = True
    ) -> Iterator[tuple[str, dict[str, Ranking]]]:
        """What each policy says, by vertex type, but those that are None; without ``required``, those that refuse too.

        Raises:
            TypeError, ValueError: As :func:`apply_policy`.
        """
        for name, policy in named.items():
            try:
                if policy is not None:
                    yield name, self._of(name, policy)
            except ValueError:
                if required:
                    raise

    def refilled(self, counts: AccessCounts) -> dict[str, Ranking]:
        """What the policy adaptive holds once an epoch was counted."""
        learned = Learned(counts, counts.batches)
        return apply_policy(learned, self.graph, self.seeds, self.sampler, self.seed, batch_size=self.batch_size)

    def expectation(self) -> dict[str, npt.NDArray[np.float64]] | None:
        """Reads an epoch expected of each vertex, before any measured epoch was seen, shape ``(num_nodes, 1)`` by type.

        Returns:
            What the first policy of auto, vip and presample says that says anything; None where none does. It is asked
            unless :meth:`each` did.
        """
        for name in _PREDICTORS:
            if name not in self._expected:
                for _ in self.each({name: POLICIES[name]}, required=False):
                    pass
            if name in self._expected:
                return self._expected[name]
        return None

    def _of(self, name: str, policy: Policy) -> dict[str, Ranking]:
        begin = time.perf_counter()
        rankings = apply_policy(policy, self.graph, self.seeds, self.sampler, self.seed, batch_size=self.batch_size)
        self.seconds[name] = time.perf_counter() - begin
        if name in _PREDICTORS and all(r.per_epoch and r.scores is not None for r in rankings.values()):
            self._expected[name] = {ntype: self._scatter(ntype, ranking) for ntype, ranking in rankings.items()}
        return rankings

    def _scatter(self, ntype: str, ranking: Ranking) -> npt.NDArray[np.float64]:
        values = torch.zeros(self.graph.num_nodes_of(ntype), 1, dtype=torch.float64)
        if ranking.scores is not None:
            values[ranking.ids, 0] = ranking.scores
        result: npt.NDArray[np.float64] = values.numpy()
        return result
