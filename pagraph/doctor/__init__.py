"""Report of what works here, what falls back and why, and what to mend: a text for bug reports."""

from .diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]

__dir__ = __all__.copy
