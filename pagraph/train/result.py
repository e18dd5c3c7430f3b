"""What a training run measured, epoch by epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .options import TrainOptions

__all__ = ["EpochRecord", "TrainResult"]


@dataclass(frozen=True)
class EpochRecord:
    """One epoch of training.

    Attributes:
        epoch: Its number, from 0.
        loss: Mean cross-entropy over the training vertices.
        seconds: Wall time of the epoch without evaluation.
        loading_seconds: Time blocked in the loader's ``next()``.
        computing_seconds: Time from a batch in hand to the end of the optimiser's step.
        hit_rate: Rows served by the feature cache / rows asked for; None with DGL's loader.
        val_accuracy: On the validation vertices after the epoch; None where it was not evaluated.
        test_accuracy: The same on the test vertices.
    """

    epoch: int
    loss: float
    seconds: float
    loading_seconds: float
    computing_seconds: float
    hit_rate: float | None = None
    val_accuracy: float | None = None
    test_accuracy: float | None = None


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Attributes:
        options: What was asked for.
        epochs: One record per epoch.
        hit_rate: Over all epochs; None with DGL's loader.
    """

    options: TrainOptions
    epochs: tuple[EpochRecord, ...]
    hit_rate: float | None

    @property
    def best(self) -> EpochRecord:
        """The first epoch with the highest validation accuracy."""
        evaluated = [e for e in self.epochs if e.val_accuracy is not None]
        return max(evaluated, key=lambda e: e.val_accuracy or 0.0)

    @property
    def val_accuracy(self) -> float:
        """The highest validation accuracy."""
        return self.best.val_accuracy or 0.0

    @property
    def test_accuracy(self) -> float:
        """The test accuracy of the epoch with the highest validation accuracy."""
        return self.best.test_accuracy or 0.0

    def median_seconds(self, what: str) -> float:
        """Median over the epochs of ``"seconds"``, ``"loading_seconds"`` or ``"computing_seconds"``.

        The median leaves the first epoch aside, in which kernels may be compiled and the cache is filled.
        """
        return median(float(getattr(e, what)) for e in self.epochs)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready summary; lists have one entry per epoch."""
        return {
            "test_accuracy": self.test_accuracy,
            "val_accuracy": self.val_accuracy,
            "best_epoch": self.best.epoch,
            "hit_rate": self.hit_rate,
            "epoch_seconds": [e.seconds for e in self.epochs],
            "loading_seconds": [e.loading_seconds for e in self.epochs],
            "computing_seconds": [e.computing_seconds for e in self.epochs],
            "loss": [e.loss for e in self.epochs],
            "val_accuracy_by_epoch": [e.val_accuracy for e in self.epochs],
            "test_accuracy_by_epoch": [e.test_accuracy for e in self.epochs],
            "settings": asdict(self.options),
        }
