"""Profiling: what caches of several sizes would serve, which one to take, and where the time of an epoch goes."""

from ..pipeline import merge_traces
from .budgets import DEFAULT_BUDGETS
from .curve import CurveRecord, HitRateCurve
from .hit_rates import hit_rate_curve
from .loading import LOADING_STAGES, EpochTimes, LoadingTimes, measure_loading
from .rankings import DEFAULT_POLICIES
from .recommendation import BudgetChoice, Recommendation, recommend
from .seeds import training_seeds

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
    "training_seeds",
]
