"""Memory, files, threads and processes."""

from .budget import Budget, rows_that_fit

__all__ = ["Budget", "rows_that_fit"]

__dir__ = __all__.copy
