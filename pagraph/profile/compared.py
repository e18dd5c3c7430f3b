"""Policies that a curve compares: by name, and in little memory only those that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

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
"""The policy that ranks by the measured epoch itself, so that nothing can be predicted of it."""
ADAPTIVE = "adaptive"
"""The policy that ranks anew after the first epoch."""
DEFAULT_POLICIES = ("auto", "degree", "presample", "vip", "random", "oracle")
"""Policies that a curve compares unless told otherwise; the oracle is for comparison alone."""
_IDEAL_EPOCHS = 30  # whose mean ``ideal`` ranks by; ``ideal:N`` takes N
_ANALYSIS = ("ideal", ORACLE)
# Bytes a vertex at the peak, beside counters and a byte for each policy: to rank by reads, and with
# several types to divide budgets between them. RMAT of scales 22 and 26 took 35 and 32, two types
# of 2 M vertices 47.
_RANKED, _DIVIDED = 38, 60
# To rank by auto, with all its edges turned or when it weighs its counts: bytes a vertex, and for
# each hop. With 4, 16 and 40 edges a vertex, 2 M to 4 M vertices and 1 to 3 hops all that a curve
# has took 75 to 99 % of this.
_TURNED, _WEIGHED = (72, 14), (145, 34)
_SEED_BYTES = 24
_OTHER_EPOCH = 2**20  # none that is measured


@dataclass(frozen=True, eq=False)
class Compared:
    """Policies of a curve.

    Attributes:
        policies: Name to policy, in order; None for the oracle and the ideal, which are no
            functions of the graph.
        ideals: Name of each ideal to its number of epochs.
        given: The policies were named by the caller: what one raises reaches the caller.
        left_out: Policies that the memory does not hold, to the bytes that it must be for all.
        few_batches: ``auto`` ranks as a loader with this memory does; nothing is predicted.
    """

    policies: dict[str, Policy | None]
    ideals: dict[str, int]
    given: bool
    left_out: dict[str, int] = field(default_factory=dict)
    few_batches: bool = False

    @classmethod
    def named(cls, policies: Sequence[str | Policy] | None) -> Compared:
        """Resolve names and functions; None for the default ones."""
        if isinstance(policies, str):
            raise TypeError(f"policies must be a list of names or functions, got {policies!r}")
        named: dict[str, Policy | None] = {}
        ideals: dict[str, int] = {}
        for policy in DEFAULT_POLICIES if policies is None else policies:
            name = (
                policy
                if isinstance(policy, str)
                else getattr(policy, "__name__", type(policy).__name__)
            )
            if (
                not isinstance(policy, str)
                and name in (*POLICIES, *_ANALYSIS)
                and POLICIES.get(name) is not policy
            ):
                raise ValueError(
                    f"policies must have names of their own if they are functions, got {name!r}"
                )
            if name in named:
                raise ValueError(f"policies must have different names, got {name!r} twice")
            base = policy.partition(":")[0] if isinstance(policy, str) else None
            if base is None and not callable(policy):
                raise TypeError(f"policies must be names or functions, got {type(policy).__name__}")
            if base is not None and base not in POLICIES:
                known = sorted({*POLICIES, *_ANALYSIS})
                raise ValueError(f"policies must be among {known} or functions, got {policy!r}")
            if base == "ideal":
                ideals[name] = _ideal_epochs(name)
            named[name] = None if policy == ORACLE or base == "ideal" else resolve_policy(policy)
        if not named:
            raise ValueError("policies must hold at least 1 policy, got none")
        return cls(named, ideals, policies is not None)

    def within(
        self, memory: Any, graph: Graph, num_hops: int, *, seeds: int, reads: int
    ) -> Compared:
        """Leave out what does not fit into ``memory``; ``auto`` becomes what a loader with it ranks
        by.

        Args:
            memory: As ``memory_budget`` takes it.
            graph: The graph.
            num_hops: Hops of a batch.
            seeds: Seeds of an epoch.
            reads: Most reads of a vertex in the epochs that are counted together.

        Raises:
            ValueError: It does not hold the counts of the graph, or a policy that was named.
        """
        counters = counter_dtype(reads).itemsize * (num_hops + 1)
        held = (counters + len({*self.policies, ORACLE})) * graph.num_nodes + _SEED_BYTES * seeds
        lean = held + (_RANKED if len(graph.node_types) == 1 else _DIVIDED) * graph.num_nodes
        every = max(lean, held + _auto_bytes(graph, num_hops))
        if memory_budget(memory) is None:
            return self
        nbytes = work_memory(memory, lean, whom="the counts of this graph")
        if nbytes >= every:
            return self
        needed = least_memory(every, held_by_process())
        left_out = {
            n: needed
            for n, p in self.policies.items()
            if p in (adaptive, vip) or isinstance(p, Presample)
        }
        if left_out and self.given:
            work_memory(memory, every, whom=f"the policies {', '.join(left_out)} on this graph")
        # As for a loader that has just begun.
        few = FewBatches(max(1, nbytes // 2 // BYTES_A_ROW), _OTHER_EPOCH)
        kept = {n: few if p is auto else p for n, p in self.policies.items() if n not in left_out}
        return replace(self, policies=kept, left_out=left_out, few_batches=True)


def _auto_bytes(graph: Graph, num_hops: int) -> int:
    """Bytes that ``auto`` takes, which takes more than any other policy, beside what a curve
    keeps."""
    turned, weighed = (
        (fixed + by_hop * num_hops) * graph.num_nodes for fixed, by_hop in (_TURNED, _WEIGHED)
    )
    cscs = map(graph.csc_of, graph.edge_types)
    return max(
        weighed, turned + sum(csc.num_edges * (1 + csc.indices.element_size()) for csc in cscs)
    )


def _ideal_epochs(name: str) -> int:
    """Parse ``"ideal"`` or ``"ideal:N"`` to a number of epochs; ValueError unless N is at least
    1."""
    _, colon, number = name.partition(":")
    if not colon:
        return _IDEAL_EPOCHS
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"policies may say 'ideal:N' with N at least 1, got {name!r}")
    return int(number)
