"""Cache policies, which rank vertices by how often an epoch reads them."""

from .policies import POLICIES, resolve_policy
from .policy import Policy, Ranking, apply_policy, check_ranking, check_rankings, degree
from .presample import Presample
from .vip import ExpectedAccesses, expected_accesses
from .workload import edge_draws, rank_edges

__all__ = [
    "POLICIES",
    "ExpectedAccesses",
    "Policy",
    "Presample",
    "Ranking",
    "apply_policy",
    "check_ranking",
    "check_rankings",
    "degree",
    "edge_draws",
    "expected_accesses",
    "rank_edges",
    "resolve_policy",
]

__dir__ = __all__.copy
