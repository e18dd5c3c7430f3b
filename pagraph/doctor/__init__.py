"""Report of what works here, what falls back and why, and what to mend: a text for bug reports."""

from .diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]


def __dir__() -> list[str]:
    return __all__
