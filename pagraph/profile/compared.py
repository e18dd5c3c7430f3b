"""Policies that a curve compares: looked up by name, and left out if they need too much memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..options.names import check_compared
from ..ranking.auto import adaptive, auto
from ..ranking.policies import BYTES_A_ROW, POLICIES, FewBatches, resolve_policy
from ..ranking.presample import Presample, counter_dtype
from ..ranking.vip import vip
from ..system.budget import least_memory, memory_budget, work_memory
from ..system.memory import held_by_process

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..ranking.policy import Policy

ORACLE = "oracle"
"""The policy that ranks by the measured epoch itself. Its hit rate cannot be predicted."""
ADAPTIVE = "adaptive"
"""The policy that ranks again after the first epoch."""
DEFAULT_POLICIES = ("auto", "degree", "presample", "vip", "random", "oracle")
"""Policies that a curve compares by default. The oracle is only for comparison."""
_IDEAL_EPOCHS = 30  # epochs whose mean ``ideal`` ranks by; ``ideal:N`` takes N
# Bytes a vertex at the peak, in addition to counters and a byte for each policy: _RANKED to rank by
# reads, _DIVIDED if budgets are divided among several types. RMAT of scales 22 and 26 took 35 and
# 32, two types of 2 M vertices 47.
_RANKED = 38
_DIVIDED = 60
# Bytes a vertex, and bytes a vertex and hop, that auto takes: _TURNED while it turns all edges, and
# _WEIGHED while it weighs its counts. With 4, 16 and 40 edges a vertex, 2 M to 4 M vertices and 1
# to 3 hops, a whole curve took 75 to 99 % of this.
_TURNED = (72, 14)
_WEIGHED = (145, 34)
# Bytes a seed at the peak: its id and its place in shuffled orders, int64.
_SEED_BYTES = 24
_OTHER_EPOCH = 2**20  # number of an epoch that no curve reaches


@dataclass(frozen=True, eq=False)
class Compared:
    """Policies of a curve.

    Attributes:
        policies: Name to policy, in order; None for the oracle and the ideal, which are not
            functions of the graph.
        ideals: Name of each ideal to its number of epochs.
        given: Whether the caller named the policies. If so, their errors reach the caller.
        left_out: Policies that do not fit, to the bytes of memory that all would need.
        few_batches: Whether ``auto`` ranks as a loader with this memory does. If so, nothing is
            predicted.
    """

    policies: dict[str, Policy | None]
    ideals: dict[str, int]
    given: bool
    left_out: dict[str, int] = field(default_factory=dict)
    few_batches: bool = False

    @classmethod
    def named(cls, policies: Sequence[str | Policy] | None) -> Compared:
        """Resolve names and functions; None takes the default ones."""
        if isinstance(policies, str):
            raise TypeError(f"policies must be a list of names or functions, got {policies!r}")
        named: dict[str, Policy | None] = {}
        ideals: dict[str, int] = {}
        for policy in DEFAULT_POLICIES if policies is None else policies:
            name = _name(policy)
            if name in named:
                raise ValueError(f"policies must have different names, got {name!r} twice")
            if isinstance(policy, str):
                check_compared(policy)
            elif not callable(policy):
                kind = type(policy).__name__
                raise TypeError(f"policies must be names or functions, got {kind}")
            if name.partition(":")[0] == "ideal":
                ideals[name] = int(name.partition(":")[2] or _IDEAL_EPOCHS)
                named[name] = None
            elif policy == ORACLE:
                named[name] = None
            else:
                named[name] = resolve_policy(policy)
        if not named:
            raise ValueError("policies must hold at least 1 policy, got none")
        return cls(named, ideals, policies is not None)

    def within(
        self, memory: Any, graph: Graph, num_hops: int, *, seeds: int, reads: int
    ) -> Compared:
        """Leave out policies that do not fit into ``memory``.

        ``auto`` is replaced by the policy of a loader with this memory.

        Args:
            memory: As ``memory_budget`` takes it.
            graph: The graph.
            num_hops: Hops of a batch.
            seeds: Seeds of an epoch.
            reads: Most reads of a vertex in the epochs that are counted together.

        Raises:
            ValueError: ``memory`` does not hold the counts of the graph, or a named policy.
        """
        if memory_budget(memory) is None:
            return self
        # A vertex has a counter for each hop and for the seeds, and a byte for each policy: see
        # `Cut.segments`.
        counters = counter_dtype(reads).itemsize * (num_hops + 1)
        held = (counters + len({*self.policies, ORACLE})) * graph.num_nodes + _SEED_BYTES * seeds
        ranking = _RANKED if len(graph.node_types) == 1 else _DIVIDED
        lean = held + ranking * graph.num_nodes  # with the cheap policies alone
        every = max(lean, held + _auto_bytes(graph, num_hops))
        nbytes = work_memory(memory, lean, whom="the counts of this graph")
        if nbytes >= every:
            return self
        needed = least_memory(every, held_by_process())
        # Half for the rows of a few batches, as in a loader that has just begun.
        few = FewBatches(max(1, nbytes // 2 // BYTES_A_ROW), _OTHER_EPOCH)
        kept: dict[str, Policy | None] = {}
        left_out: dict[str, int] = {}
        for name, policy in self.policies.items():
            if policy in (adaptive, vip) or isinstance(policy, Presample):
                left_out[name] = needed
            elif policy is auto:
                kept[name] = few
            else:
                kept[name] = policy
        if left_out and self.given:  # always raises, as the memory is below `every`
            work_memory(memory, every, whom=f"the policies {', '.join(left_out)} on this graph")
        return replace(self, policies=kept, left_out=left_out, few_batches=True)


def _name(policy: Any) -> str:
    """Name of a policy in the curve."""
    if isinstance(policy, str):
        return policy
    name: str = getattr(policy, "__name__", type(policy).__name__)
    # The page and the recommendation would take a user's function "degree" for ours.
    if name in POLICIES and POLICIES.get(name) is not policy:
        raise ValueError(
            f"policies that are functions must not have the name of a built-in one, got {name!r}"
        )
    return name


def _auto_bytes(graph: Graph, num_hops: int) -> int:
    """Bytes that ``auto``, which takes the most, needs in addition to those that a curve keeps."""
    turned, weighed = (
        (fixed + by_hop * num_hops) * graph.num_nodes for fixed, by_hop in (_TURNED, _WEIGHED)
    )
    # The turned copy of the indices, and about a byte an edge to make it.
    for edge_type in graph.edge_types:
        csc = graph.csc_of(edge_type)
        turned += csc.num_edges * (1 + csc.indices.element_size())
    return max(weighed, turned)
