"""The static cache: which vertices (policy), how many (budget), where (store), what it served (stats)."""

from .budget import Budget, rows_that_fit
from .memory import auto_budget
from .plan import CachePlan, FieldPlan
from .policy import POLICIES, Policy, check_ranking, degree, resolve_policy
from .stats import CacheStats, FieldStats, ReadCounters
from .store import FeatureCache

__all__ = [
    "POLICIES",
    "Budget",
    "CachePlan",
    "CacheStats",
    "FeatureCache",
    "FieldPlan",
    "FieldStats",
    "Policy",
    "ReadCounters",
    "auto_budget",
    "check_ranking",
    "degree",
    "resolve_policy",
    "rows_that_fit",
]
