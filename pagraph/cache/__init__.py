"""The static cache: which rows of which fields are cached, and when that is decided."""

from ..features.field import FieldRows
from .division import Demand, divide
from .fields import FieldSet
from .plan import CachePlan, CachePlans, FieldPlan, auto_budget

__all__ = [
    "CachePlan",
    "CachePlans",
    "Demand",
    "FieldPlan",
    "FieldRows",
    "FieldSet",
    "auto_budget",
    "divide",
]

__dir__ = __all__.copy
