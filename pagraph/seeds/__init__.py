"""Seed order (shuffling, splitting over ranks, resuming) and keys of the random numbers."""

from .keys import derive_key

__all__ = ["derive_key"]

__dir__ = __all__.copy
