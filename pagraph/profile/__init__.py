"""Profiling: hit-rate curves of feature caches, a recommended cache, and epochs timed by stage."""

from ..stats import merge_traces
from .arguments import DEFAULT_BUDGETS, training_edges, training_seeds
from .compared import DEFAULT_POLICIES
from .curve import BudgetChoice, CurveRecord, HitRateCurve, Recommendation, recommend
from .hit_rates import hit_rate_curve
from .loading import LOADING_STAGES, EpochTimes, LoadingTimes, measure_loading

__all__ = [
    "DEFAULT_BUDGETS",
    "DEFAULT_POLICIES",
    "LOADING_STAGES",
    "BudgetChoice",
    "CurveRecord",
    "EpochTimes",
    "HitRateCurve",
    "LoadingTimes",
    "Recommendation",
    "hit_rate_curve",
    "measure_loading",
    "merge_traces",
    "recommend",
    "training_edges",
    "training_seeds",
]

__dir__ = __all__.copy
