"""The static cache: which vertices (policy), how many (budget), where (store), what it served (stats)."""

from .budget import Budget, rows_that_fit
from .degree import degree
from .division import Demand, divide
from .edge_ranking import edge_draws, rank_edges
from .memory import auto_budget
from .plan import CachePlan, CachePlans, FieldPlan
from .policies import POLICIES, resolve_policy
from .policy import Policy, Ranking, apply_policy, check_ranking, check_rankings
from .presample import Presample
from .stats import CacheStats, FieldStats, ReadCounters
from .store import FeatureCache
from .vip import ExpectedAccesses, expected_accesses

__all__ = [
    "POLICIES",
    "Budget",
    "CachePlan",
    "CachePlans",
    "CacheStats",
    "Demand",
    "ExpectedAccesses",
    "FeatureCache",
    "FieldPlan",
    "FieldStats",
    "Policy",
    "Presample",
    "Ranking",
    "ReadCounters",
    "apply_policy",
    "auto_budget",
    "check_ranking",
    "check_rankings",
    "degree",
    "divide",
    "edge_draws",
    "expected_accesses",
    "rank_edges",
    "resolve_policy",
    "rows_that_fit",
]
