"""The steps that make a batch, and the windows through which several batches read rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from ..accelerator import Event
    from ..cache.windows import Windows
    from ..features.field import FieldRows, Read
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from .program import DeviceProgram

T = TypeVar("T")
Build = Callable[[Any, "Sequence[FieldRows | None]"], Any]
"""Builds the delivered batch from a batch and its rows; see ``BatchSource.build``."""


class Sampled(NamedTuple):
    """A sampled batch and its reads.

    Attributes:
        batch: What the source has made so far.
        reads: The rows it needs, in the order of ``deliver``.
        after: The event after which ids on an accelerator may be read.
    """

    batch: Any
    reads: Sequence[Read] = ()
    after: Event | None = None


class Fetched(NamedTuple):
    """A batch that was prepared: its sample with its rows.

    Attributes:
        batch: The batch, built as far as it can be.
        sampled: Its sample.
        rows: Its rows, with None for a field that is read on delivery. If ``rows`` is None,
            preparing failed, and is repeated on delivery.
    """

    batch: Any
    sampled: Sampled
    rows: Sequence[FieldRows | None] | None


class FailedBatch(NamedTuple):
    """Result of ``deliver`` when a user's function raised; the epoch continues.

    Attributes:
        error: The function's error, raised in the reader.
    """

    error: Exception


Send = Callable[[Sampled], Sampled]
"""Copies a sampled batch to an accelerator; see ``BatchSource.send``."""

Finish = Callable[[Fetched, "EpochRecorder"], Fetched]
"""Applies a user's functions to a batch with its rows; see ``BatchSource.finish``."""


class BatchSource(Generic[T]):
    """Base of what makes the batches of one kind of loader.

    A batch is a function of its ticket and of one version of the data: their structure, which
    attributes they have, and the values of these. What is prepared in threads may be of a version
    that the reader has changed meanwhile. So on delivery the engine asks :meth:`is_current` for
    all but rows, and the fields for these. Outdated rows are read again; all else has the batch
    made :meth:`again`.

    Must not refer to the loader: its threads would keep the loader alive.
    """

    @property
    def draw(self) -> Callable[[Ticket, EpochRecorder], Any] | None:
        """Serial, in-order step for code that is not thread-safe; None if ``sample`` may begin with
        the ticket."""
        return None

    @property
    def is_pure(self) -> bool:
        """Whether preparing runs no user code, so that the reader's thread may do it, too."""
        return True

    @property
    def looks_ahead(self) -> bool:
        """Whether several batches may be sampled before rows are read; needs ids on the CPU."""
        return True

    @property
    def repeats(self) -> bool:
        """Whether reading and building that failed may be repeated, as neither runs user code."""
        return False

    @property
    def send(self) -> Send | None:
        """Copies a batch sampled on the CPU to an accelerator, in any thread.

        Runs before rows are read, as they are read by ids on the accelerator. Repeated when the
        accelerator runs out of memory. None: nothing to copy, or it is copied later.
        """
        return None

    @property
    def build(self) -> Build | None:
        """Builds the batch for ``deliver`` once rows are read, in any thread; None: no such step.

        Repeated when the accelerator runs out of memory.
        """
        return None

    @property
    def finish(self) -> Finish | None:
        """Serial, in-order step for a user's functions on a built batch; None: no such step.

        Runs in the threads. Without threads it is not called: ``deliver`` does the same.
        """
        return None

    def sample(self, drawn: Any, recorder: EpochRecorder) -> Sampled:
        """Sample a batch and list its reads. Pure; called from any thread."""
        raise NotImplementedError

    def is_current(self, batch: Any) -> bool:
        """Whether a sampled batch, but for its rows, is of the data's present version; in any
        thread."""
        return True

    def again(self, batch: Any, recorder: EpochRecorder) -> Sampled:
        """Sample an outdated batch from the present data, in the reader's thread."""
        raise NotImplementedError

    def deliver(
        self, batch: Any, rows: Sequence[Tensor], recorder: EpochRecorder
    ) -> T | FailedBatch:
        """The finished batch with the current rows of its reads; called in order, in the reader's
        thread."""
        raise NotImplementedError


@dataclass(frozen=True)
class WindowReader:
    """Makes windows, and limits their size.

    Attributes:
        batches: Maximum batches per group, at least 1.
        nbytes: Maximum bytes of one group's rows; ``GROUPS`` groups may be in memory at once.
        begin: Begins a group's windows.
    """

    batches: int
    nbytes: int
    begin: Callable[[], Windows]


@dataclass(frozen=True)
class Steps(Generic[T]):
    """Callbacks that make each batch.

    Args:
        source: Samples the batches.
        fetch: Reads the rows of a sampled batch, through windows if any; in any thread.
        deliver: The finished batch, of the data's present version, in the reader's thread.
        windows: Called when an epoch begins; gives the reader of several batches' rows, or None
            to read batch by batch.
        on_start: Called with the worker's number in each thread.
        before_first_batch: Called when an epoch begins.
        after_first_step: Called once, when the second batch is requested, so after the first
            training step.
        fill: Fills the cache; called once, after that.
        fills_beside: Whether a thread may fill it while batches are made, with windows.
        mark: Records an event in the reader's stream before and after each batch, to measure how
            long a device waited.
        settle: Called when an epoch ends, to wait for a device's work and count it.
        program: Makes each batch by one launch on a device, in the reader's thread; None: threads
            make them.
        shrink: Frees half of the cache on a device; returns whether anything was cached.
    """

    source: BatchSource[T]
    fetch: Callable[[Sampled, EpochRecorder, Windows | None], Fetched]
    deliver: Callable[[Fetched, EpochRecorder], T | FailedBatch]
    windows: Callable[[], WindowReader | None] = lambda: None
    on_start: Callable[[int], object] | None = None
    before_first_batch: Callable[[], object] | None = None
    after_first_step: Callable[[], object] | None = None
    fill: Callable[[], object] | None = None
    fills_beside: bool = False
    mark: Callable[[], Event] | None = None
    settle: Callable[[], object] | None = None
    shrink: Callable[[], bool] | None = None
    program: DeviceProgram | None = None
