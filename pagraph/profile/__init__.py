"""Profiling: what caches of several sizes would serve, which one to take, and where the time of an epoch goes."""

from .curve import CurveRecord, HitRateCurve
from .loading import LOADING_STAGES, EpochTimes, LoadingTimes, measure_loading
from .recommendation import BudgetChoice, Recommendation, recommend
from .seeds import training_seeds

__all__ = [
    "LOADING_STAGES",
    "BudgetChoice",
    "CurveRecord",
    "EpochTimes",
    "HitRateCurve",
    "LoadingTimes",
    "Recommendation",
    "measure_loading",
    "recommend",
    "training_seeds",
]
