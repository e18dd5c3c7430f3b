"""What an epoch is made by: the steps of a batch, and the windows that several batches are read through."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from ..accelerator import Event
    from ..cache.windows import Windows
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder

T = TypeVar("T")

__all__ = ["Steps", "WindowReader"]


@dataclass(frozen=True)
class WindowReader:
    """Source of windows, and how large they may be.

    Attributes:
        batches: Most batches of a group, at least 1.
        nbytes: Bytes of one group's rows, of ``GROUPS`` that may be in memory at once.
        begin: Begins a group's windows.
        using: Lets the calling thread read from windows.
    """

    batches: int
    nbytes: int
    begin: Callable[[], Windows]
    using: Callable[[Windows], Any]


@dataclass(frozen=True)
class Steps(Generic[T]):
    """Callbacks that make each batch.

    Args:
        sample, fetch, deliver, draw, is_pure, reads: See ``pagraph.engine.engine.BatchSource``.
        windows: Called when an epoch begins: where to read the rows of several batches at once; None: in each batch.
        on_start: Called with the worker's number in each thread.
        before_first_batch: Called when an epoch begins.
        after_first_step: Called once, when the second batch is asked for: the first has been computed with.
        fill: Called once, after that: fills the cache.
        fills_beside: Whether a thread may do so beside the batches, where rows are read for several of them.
        mark: Records an event in the reader's stream, before and after each batch, to tell how long a device waited.
        settle: Called when a pass ends, to wait for a device's work and count it.
        shrink: Gives up half of what is cached on a device; returns whether there was anything.
    """

    sample: Callable[[Any, EpochRecorder], Any]
    fetch: Callable[[Any, EpochRecorder], Any]
    deliver: Callable[[Any, EpochRecorder], T]
    draw: Callable[[Ticket, EpochRecorder], Any] | None = None
    is_pure: bool = False
    reads: Callable[[Any], Iterable[tuple[Hashable, Tensor]]] = lambda sampled: ()
    windows: Callable[[], WindowReader | None] = lambda: None
    on_start: Callable[[int], object] | None = None
    before_first_batch: Callable[[], object] | None = None
    after_first_step: Callable[[], object] | None = None
    fill: Callable[[], object] | None = None
    fills_beside: bool = False
    mark: Callable[[], Event] | None = None
    settle: Callable[[], object] | None = None
    shrink: Callable[[], bool] | None = None
