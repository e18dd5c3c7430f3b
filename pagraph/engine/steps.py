"""What an epoch is made by: the steps of a batch, and the windows that several batches are read
through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from ..accelerator import Event
    from ..cache.windows import Windows
    from ..features.field import FieldRows, Read
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from .program import DeviceProgram

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Build = Callable[[Any, "Sequence[FieldRows | None]"], Any]
"""Makes of a batch and its rows the batch that is delivered; see ``BatchSource.build``."""


class Sampled(NamedTuple):
    """A sampled batch, which knows what it reads.

    Attributes:
        batch: What the source has made so far.
        reads: The rows that it needs, in the order in which ``deliver`` takes them.
        after: The event that ids on an accelerator wait for.
    """

    batch: Any
    reads: Sequence[Read] = ()
    after: Event | None = None


class Fetched(NamedTuple):
    """A sampled batch with its rows; None for a field that could not be read then."""

    batch: Any
    sampled: Sampled
    rows: Sequence[FieldRows | None]


class FailedBatch(NamedTuple):
    """What ``deliver`` gives for a batch on which a user's own function failed: the pass goes on
    after it.

    Attributes:
        error: The function's error, which the reader gets.
    """

    error: Exception


Send = Callable[[Sampled], Sampled]
"""Copies a sampled batch to an accelerator; see ``BatchSource.send``."""

Finish = Callable[[Fetched, "EpochRecorder"], Fetched]
"""Makes of a batch and its rows what is delivered, as a user's functions say; see
``BatchSource.finish``."""


class BatchSource(Protocol[T_co]):
    """Makes the batches of one kind of loader; must not refer to the loader, which its threads
    would keep alive."""

    @property
    def draw(self) -> Callable[[Ticket, EpochRecorder], Any] | None:
        """Serial, in-order step for code that is not thread-safe; None if ``sample`` may begin with
        the ticket."""

    @property
    def is_pure(self) -> bool:
        """Whether preparing calls nothing that a user has written, so that the reader's thread may
        do it, too."""

    @property
    def looks_ahead(self) -> bool:
        """Whether several batches may be sampled before their rows are read: ids are on the CPU."""

    @property
    def rereads(self) -> bool:
        """Whether ``deliver`` finds out anew what to read where a read fails; else that is an
        error."""

    @property
    def send(self) -> Send | None:
        """Copies a batch that the CPU has sampled to an accelerator, in any thread before its rows
        are read: these find their ids there. None: there is nothing to copy, or it follows later.

        It may be repeated, where an accelerator's memory was short.
        """

    @property
    def build(self) -> Build | None:
        """Work in any thread once the rows are read, which gives the batch that ``deliver`` gets;
        None: there is none.

        It may be repeated, where an accelerator's memory was short.
        """

    @property
    def finish(self) -> Finish | None:
        """Serial, in-order step in the threads once a batch is built, for a user's functions of
        batches; None: there is none.

        Without threads it is not called: ``deliver`` does the same.
        """

    def sample(self, drawn: Any, recorder: EpochRecorder) -> Sampled:
        """Sample a batch and list its reads; a pure function, called by any thread."""

    def deliver(
        self, batch: Any, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> T_co | FailedBatch:
        """The finished batch; called by the reader, in order.

        ``rows`` are those of its reads as the fields are now; None with :attr:`rereads` where one
        failed.
        """


@dataclass(frozen=True)
class WindowReader:
    """Source of windows, and how large they may be.

    Attributes:
        batches: Most batches of a group, at least 1.
        nbytes: Bytes of one group's rows, of ``GROUPS`` that may be in memory at once.
        begin: Begins a group's windows.
    """

    batches: int
    nbytes: int
    begin: Callable[[], Windows]


@dataclass(frozen=True)
class Steps(Generic[T]):
    """Callbacks that make each batch.

    Args:
        sample, draw, is_pure, finish: See :class:`BatchSource`.
        fetch: Reads the rows of a sampled batch, through windows if there are any; in any thread.
        deliver: The finished batch, in the reader's thread.
        windows: Called when an epoch begins: where to read the rows of several batches at once;
            None: in each batch.
        on_start: Called with the worker's number in each thread.
        before_first_batch: Called when an epoch begins.
        after_first_step: Called once, when the second batch is asked for: the first has been
            computed with.
        fill: Called once, after that: fills the cache.
        fills_beside: Whether a thread may do so beside the batches, where rows are read for several
            of them.
        mark: Records an event in the reader's stream, before and after each batch, to tell how long
            a device waited.
        settle: Called when a pass ends, to wait for a device's work and count it.
        program: Makes batches in the reader's thread, by one launch on a device each; None: threads
            make them.
        shrink: Gives up half of what is cached on a device; returns whether there was anything.
    """

    sample: Callable[[Any, EpochRecorder], Sampled]
    fetch: Callable[[Sampled, EpochRecorder, Windows | None], Fetched]
    deliver: Callable[[Fetched, EpochRecorder], T | FailedBatch]
    draw: Callable[[Ticket, EpochRecorder], Any] | None = None
    is_pure: bool = False
    finish: Finish | None = None
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
