"""Measurements of a training run by epoch and process, and progress callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from .options import TrainOptions

if TYPE_CHECKING:
    from ..cache.memory_plan import MemoryPlan

__all__ = ["EpochRecord", "RankRecord", "Reporter", "TrainResult"]


@dataclass(frozen=True)
class RankRecord:
    """Measurements of one process in an epoch.

    Attributes:
        train: Number of its training vertices.
        loss: Mean loss over the seeds that it saw: cross-entropy, of links binary with as many
            random pairs.
        seconds: Wall time of the epoch without evaluation.
        loading_seconds: Time blocked in the loader's ``next()``.
        computing_seconds: Time from a batch in hand to the end of the optimiser's step. Of several
            processes it holds the wait for the slowest, whose gradient the step needs.
        hits: Rows served by the feature cache; None with a framework's own loader.
        asked: Rows asked for, of fields that the cache may serve.
        bytes_hit: Bytes served by the feature cache.
        bytes_read: Bytes of all rows, of fields that the cache may not serve too.
    """

    train: int
    loss: float
    seconds: float
    loading_seconds: float
    computing_seconds: float
    hits: int | None = None
    asked: int = 0
    bytes_hit: int = 0
    bytes_read: int = 0


@dataclass(frozen=True)
class EpochRecord:
    """Measurements of one epoch: those of :class:`RankRecord`, of several processes the means.

    Attributes:
        epoch: Its number, from 0.
        loss: Mean loss over the training vertices or links.
        seconds: Wall time of the slowest process.
        hit_rate: Rows served by the feature cache / rows asked for; None with a framework's own
            loader.
        byte_hit_rate: Bytes served by the feature cache / bytes of all rows; None likewise.
        val: Metrics on the validation vertices or links after the epoch, by name: ``accuracy``, of
            links ``auc`` and ``mrr``; None where it was not evaluated. The first one says which
            epoch is the best.
        test: The same on the test vertices or links.
        ranks: Measurements of each process.
    """

    epoch: int
    loss: float
    seconds: float
    loading_seconds: float
    computing_seconds: float
    hit_rate: float | None = None
    byte_hit_rate: float | None = None
    val: Mapping[str, float] | None = None
    test: Mapping[str, float] | None = None
    ranks: tuple[RankRecord, ...] = ()

    @classmethod
    def of(cls, epoch: int, ranks: Sequence[RankRecord]) -> EpochRecord:
        """An epoch, not evaluated yet, as the processes went through it together."""
        train = sum(rank.train for rank in ranks)
        return cls(
            epoch,
            loss=sum(rank.train * rank.loss for rank in ranks) / train,
            seconds=max(rank.seconds for rank in ranks),
            loading_seconds=fmean(rank.loading_seconds for rank in ranks),
            computing_seconds=fmean(rank.computing_seconds for rank in ranks),
            hit_rate=_hit_rate(ranks),
            byte_hit_rate=_byte_hit_rate(ranks),
            ranks=tuple(ranks),
        )

    @property
    def val_accuracy(self) -> float | None:
        """Accuracy on the validation vertices; None where it was not evaluated."""
        return None if self.val is None else self.val["accuracy"]

    @property
    def test_accuracy(self) -> float | None:
        """Accuracy on the test vertices; None where it was not evaluated."""
        return None if self.test is None else self.test["accuracy"]


class Reporter:
    """Progress callbacks of a training run; these do nothing."""

    def planned(self, plan: MemoryPlan) -> None:
        """The loader has divided the memory that the run was given."""

    def resumed(self, epochs: int) -> None:
        """The run goes on from a checkpoint, after so many epochs."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """``done`` of ``total`` batches of an epoch have been computed."""

    def epoch(self, record: EpochRecord) -> None:
        """An epoch is over and, if it was due, evaluated."""


@dataclass(frozen=True)
class TrainResult:
    """Options of a finished run, and one record per epoch."""

    options: TrainOptions
    epochs: tuple[EpochRecord, ...]

    @property
    def hit_rate(self) -> float | None:
        """Hit rate of the feature caches of all processes over all epochs; None with a framework's
        own loader."""
        return _hit_rate([rank for record in self.epochs for rank in record.ranks])

    @property
    def byte_hit_rate(self) -> float | None:
        """The same in bytes, over all fields, those that no cache may serve too."""
        return _byte_hit_rate([rank for record in self.epochs for rank in record.ranks])

    @property
    def best(self) -> EpochRecord:
        """The first epoch with the highest validation accuracy, of links AUC."""
        return max(
            (e for e in self.epochs if e.val), key=lambda e: next(iter((e.val or {}).values()))
        )

    @property
    def val_accuracy(self) -> float:
        """The highest validation accuracy."""
        return self.best.val_accuracy or 0.0

    @property
    def test_accuracy(self) -> float:
        """The test accuracy of the epoch with the highest validation accuracy."""
        return self.best.test_accuracy or 0.0

    def median_seconds(self, what: str) -> float:
        """Median over the epochs of ``"seconds"``, ``"loading_seconds"`` or
        ``"computing_seconds"``.

        The median leaves the first epoch aside, in which kernels may be compiled and the cache is
        filled.
        """
        return median(float(getattr(e, what)) for e in self.epochs)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready summary; lists have one entry per epoch."""
        best = self.best
        sets = {"test": best.test or {}, "val": best.val or {}}
        return {
            **{
                f"{of}_{name}": value
                for of, metrics in sets.items()
                for name, value in metrics.items()
            },
            "best_epoch": best.epoch,
            "hit_rate": self.hit_rate,
            "byte_hit_rate": self.byte_hit_rate,
            **_by_epoch(self.epochs),
            **{
                f"{of}_{name}_by_epoch": [(getattr(e, of) or {}).get(name) for e in self.epochs]
                for of in ("val", "test")
                for name in sets[of]
            },
            "ranks": [
                _rank_json(ranks) for ranks in zip(*(e.ranks for e in self.epochs), strict=True)
            ],
            "settings": asdict(self.options),
        }


def _rank_json(records: Sequence[RankRecord]) -> dict[str, Any]:
    """One process's epochs."""
    rates = {"hit_rate": _hit_rate(records), "byte_hit_rate": _byte_hit_rate(records)}
    return {"train": records[0].train, **rates, **_by_epoch(records)}


def _by_epoch(records: Sequence[EpochRecord] | Sequence[RankRecord]) -> dict[str, list[float]]:
    names = {"epoch_seconds": "seconds"} | {
        n: n for n in ("loading_seconds", "computing_seconds", "loss")
    }
    return {key: [getattr(record, name) for record in records] for key, name in names.items()}


def _hit_rate(records: Sequence[RankRecord]) -> float | None:
    """Hit rate of several epochs or processes: 0.0 where nothing was asked, None where nobody
    counted."""
    hits = [r.hits for r in records if r.hits is not None]
    if not hits:
        return None
    return sum(hits) / max(1, sum(r.asked for r in records))


def _byte_hit_rate(records: Sequence[RankRecord]) -> float | None:
    if all(r.hits is None for r in records):
        return None
    return sum(r.bytes_hit for r in records) / max(1, sum(r.bytes_read for r in records))
