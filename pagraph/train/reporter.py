"""Who hears how a training run goes on."""

from __future__ import annotations

from .result import EpochRecord

__all__ = ["Reporter"]


class Reporter:
    """Hears how a run goes on; this one keeps quiet."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """``done`` of ``total`` batches of an epoch have been computed."""

    def epoch(self, record: EpochRecord) -> None:
        """An epoch is over and, if it was due, evaluated."""
