"""Memory, files, threads and processes: what is asked of the machine."""

from .budget import Budget, rows_that_fit

__all__ = ["Budget", "rows_that_fit"]


def __dir__() -> list[str]:
    return __all__
