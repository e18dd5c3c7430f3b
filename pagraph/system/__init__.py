"""Memory, files, threads and processes: what is asked of the machine."""

from .budget import Budget, rows_that_fit

__all__ = ["Budget", "rows_that_fit"]

__dir__ = __all__.copy
