"""Measurements of a training run by epoch and process, and callbacks for its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from ..options.training import TrainOptions

if TYPE_CHECKING:
    from ..cache.memory_plan import MemoryPlan


@dataclass(frozen=True)
class RankRecord:
    """Measurements of one process in an epoch.

    Attributes:
        train: Number of training vertices of the process.
        loss: Mean loss over its seeds: cross-entropy, or for links binary cross-entropy against one
            random pair for each.
        seconds: Wall time of the epoch, without evaluation and ``kernels_seconds``.
        loading_seconds: Time blocked in the loader's ``next()``.
        computing_seconds: Time from the arrival of a batch to the end of the optimiser's step. With
            several processes it includes the wait for the gradient of the slowest.
        kernels_seconds: Time in which the loop waited for kernels to be loaded or compiled. No
            other time includes it.
        hits: Rows served by the feature cache; None with a framework's own loader.
        asked: Rows read of fields that the cache may serve.
        bytes_hit: Bytes served by the feature cache.
        bytes_read: Bytes of all rows read, including fields that the cache may not serve.
    """

    train: int
    loss: float
    seconds: float
    loading_seconds: float
    computing_seconds: float
    kernels_seconds: float = 0.0
    hits: int | None = None
    asked: int = 0
    bytes_hit: int = 0
    bytes_read: int = 0


@dataclass(frozen=True)
class EpochRecord:
    """Measurements of one epoch: means of those of :class:`RankRecord` over the processes.

    Attributes:
        epoch: Number of the epoch, from 0.
        loss: Mean loss over the training vertices or links.
        seconds: Wall time of the slowest process.
        kernels_seconds: Time of the process that loaded kernels longest. No other includes it.
        hit_rate: Rows served by the feature cache / rows read; None with a framework's own loader.
        byte_hit_rate: Bytes served by the feature cache / bytes of all rows; None with a
            framework's own loader.
        val: Metrics on the validation vertices or links after the epoch, by name: ``accuracy``, or
            ``auc`` and ``mrr`` of links. The first one decides which epoch is the best. None if the
            epoch was not evaluated.
        test: Metrics on the test vertices or links.
        ranks: Measurements of each process.
    """

    epoch: int
    loss: float
    seconds: float
    loading_seconds: float
    computing_seconds: float
    kernels_seconds: float = 0.0
    hit_rate: float | None = None
    byte_hit_rate: float | None = None
    val: Mapping[str, float] | None = None
    test: Mapping[str, float] | None = None
    ranks: tuple[RankRecord, ...] = ()

    @classmethod
    def of(cls, epoch: int, ranks: Sequence[RankRecord]) -> EpochRecord:
        """An epoch of several processes that is not evaluated yet."""
        train = sum(rank.train for rank in ranks)
        return cls(
            epoch,
            # Weighted like the gradients, so that it is the mean over all training vertices.
            loss=sum(rank.train * rank.loss for rank in ranks) / train,
            # The others wait for the slowest at the end of every step.
            seconds=max(rank.seconds for rank in ranks),
            loading_seconds=fmean(rank.loading_seconds for rank in ranks),
            computing_seconds=fmean(rank.computing_seconds for rank in ranks),
            kernels_seconds=max(rank.kernels_seconds for rank in ranks),
            hit_rate=_hit_rate(ranks),
            byte_hit_rate=_byte_hit_rate(ranks),
            ranks=tuple(ranks),
        )

    @property
    def val_accuracy(self) -> float | None:
        """Accuracy on the validation vertices; None if it was not evaluated."""
        return None if self.val is None else self.val["accuracy"]

    @property
    def test_accuracy(self) -> float | None:
        """Accuracy on the test vertices; None if it was not evaluated."""
        return None if self.test is None else self.test["accuracy"]


class Reporter:
    """Progress callbacks of a training run; these do nothing."""

    def planned(self, plan: MemoryPlan) -> None:
        """The loader has divided the memory that the run was given."""

    def resumed(self, epochs: int) -> None:
        """The run resumes from a checkpoint after ``epochs`` epochs."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """``done`` of ``total`` batches of an epoch have been computed."""

    def epoch(self, record: EpochRecord) -> None:
        """An epoch is over, and evaluated if it was due."""


@dataclass(frozen=True)
class TrainResult:
    """Options and epochs of a finished run."""

    options: TrainOptions
    epochs: tuple[EpochRecord, ...]

    @property
    def hit_rate(self) -> float | None:
        """Hit rate of all processes' feature caches over all epochs; None with a framework's own
        loader."""
        return _hit_rate([rank for record in self.epochs for rank in record.ranks])

    @property
    def byte_hit_rate(self) -> float | None:
        """Share of the bytes of all fields, cacheable or not, that feature caches served."""
        return _byte_hit_rate([rank for record in self.epochs for rank in record.ranks])

    @property
    def best(self) -> EpochRecord:
        """The first epoch with the highest validation accuracy, or AUC of links."""
        # The last epoch is always evaluated. `max` takes the first of equal ones.
        evaluated = [record for record in self.epochs if record.val]
        return max(evaluated, key=_first_metric)

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

        The first epoch, which fills the cache, hardly changes it.
        """
        return median(float(getattr(e, what)) for e in self.epochs)

    def to_json(self) -> dict[str, Any]:
        """The result for ``json.dumps``; lists have one entry per epoch."""
        best = self.best
        report: dict[str, Any] = {}
        by_epoch: dict[str, Any] = {}
        for of in ("test", "val"):
            for name, value in (getattr(best, of) or {}).items():
                report[f"{of}_{name}"] = value
                measured = [getattr(record, of) or {} for record in self.epochs]
                by_epoch[f"{of}_{name}_by_epoch"] = [each.get(name) for each in measured]
        report["best_epoch"] = best.epoch
        report["hit_rate"] = self.hit_rate
        report["byte_hit_rate"] = self.byte_hit_rate
        report |= _by_epoch(self.epochs)
        report |= by_epoch
        by_rank = zip(*(record.ranks for record in self.epochs), strict=True)
        report["ranks"] = [_rank_json(ranks) for ranks in by_rank]
        report["settings"] = asdict(self.options)
        return report


def _first_metric(record: EpochRecord) -> float:
    """The validation metric that decides which epoch is the best."""
    return next(iter((record.val or {}).values()))


def _rank_json(records: Sequence[RankRecord]) -> dict[str, Any]:
    """The epochs of one process."""
    return {
        "train": records[0].train,
        "hit_rate": _hit_rate(records),
        "byte_hit_rate": _byte_hit_rate(records),
        **_by_epoch(records),
    }


def _by_epoch(records: Sequence[EpochRecord] | Sequence[RankRecord]) -> dict[str, list[float]]:
    names = ("loading_seconds", "computing_seconds", "kernels_seconds", "loss")
    columns = {name: [getattr(record, name) for record in records] for name in names}
    return {"epoch_seconds": [record.seconds for record in records], **columns}


def _hit_rate(records: Sequence[RankRecord]) -> float | None:
    """Hit rate of several epochs or processes; 0.0 if nothing was read, None if nothing was
    counted."""
    counted = [record.hits for record in records if record.hits is not None]
    if not counted:
        return None
    return sum(counted) / max(1, sum(record.asked for record in records))


def _byte_hit_rate(records: Sequence[RankRecord]) -> float | None:
    if all(record.hits is None for record in records):
        return None
    read = sum(record.bytes_read for record in records)
    return sum(record.bytes_hit for record in records) / max(1, read)
