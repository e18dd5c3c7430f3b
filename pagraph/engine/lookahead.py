"""Look-ahead: batches are sampled without their rows, those of a group are read at once, then each
gets its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from .stage import SerialStage, Stage

if TYPE_CHECKING:
    from ..cache.windows import Windows
    from ..stats.stats import EpochRecorder
    from .steps import Steps, WindowReader


GROUPS = 3
"""Groups whose rows are in memory at once: one is read, one fetched from, one has batches left in
other threads."""

Item = tuple[int, Any]
"""Number of a batch, and the batch as far as it is made."""


class LookedAhead:
    """The batches of an epoch, in order, through three stages: sampling, reading groups, fetching
    from what was read.

    Groups begin with one batch and double, so that the first batch is there soon.

    Args:
        source: Numbered tickets.
        steps, recorder: The epoch's.
        reader: Gives the windows.
        threads: Threads that sample, and as many that fetch; 0: the reader of the batches does all.
        ahead: Finished batches that may be in work or waiting.
        finish: See ``Stage``; not without threads.
    """

    def __init__(
        self,
        source: Iterator[Item],
        steps: Steps[Any],
        recorder: EpochRecorder,
        reader: WindowReader,
        *,
        threads: int,
        ahead: int,
        finish: Callable[[int, Any], Any] | None = None,
    ) -> None:
        sample = partial(_sample, steps, recorder)
        load = _Loading(recorder)
        fetch = partial(_fetch, steps, recorder)
        if not threads:
            self._sampled: Any = SerialStage(source, sample)
            self._loaded: Any = SerialStage(
                _groups(self._sampled, steps, reader, load.finish), load
            )
            self._fetched: Any = SerialStage(_each(self._loaded), fetch)
            return
        # Sampling fills the next group while the one before it is loaded; and each thread has one.
        most = 2 * reader.batches + threads
        self._sampled = Stage(source, sample, workers=threads, ahead=most, on_start=steps.on_start)
        self._loaded = Stage(
            _groups(self._sampled, steps, reader, load.finish), load, workers=1, ahead=1
        )
        depth = recorder.trace.depth
        self._fetched = Stage(
            _each(self._loaded),
            fetch,
            workers=threads,
            ahead=ahead,
            on_change=depth,
            finish=finish,
        )

    def __iter__(self) -> LookedAhead:
        return self

    def __next__(self) -> Any:
        return next(self._fetched)

    def close(self) -> None:
        """End all stages.

        All are told to stop before any is joined: a thread of one stage, which draws its items from
        the stage before, waits there until that one is stopped.
        """
        for stage in (self._sampled, self._loaded, self._fetched):
            stage.stop()
        for stage in (self._fetched, self._loaded, self._sampled):
            stage.close()


def _sample(steps: Steps[Any], recorder: EpochRecorder, item: Item) -> Item:
    index, drawn = item
    recorder.trace.at(index)
    return index, steps.sample(drawn, recorder)


def _groups(
    sampled: Iterator[Item], steps: Steps[Any], reader: WindowReader, at_end: Callable[[], object]
) -> Iterator[tuple[Windows, list[Item]]]:
    """Groups of sampled batches with the windows that their reads were added to; an error comes
    after its group."""
    size = 1
    while True:
        windows = reader.begin()
        items: list[Item] = []
        error: Exception | None = None
        while len(items) < size and windows.nbytes < reader.nbytes:
            try:
                item = next(sampled)
                windows.add(item[1].reads)
            except Exception as problem:
                # Raised at the batch's own place: those that were sampled before it come first.
                error = problem
                break
            items.append(item)
        if items:
            yield windows, items
        if isinstance(error, StopIteration):
            at_end()
            return
        if error is not None:
            raise error
        size = min(2 * size, reader.batches)


class _Loading:
    """Reads the rows of one group after the other; those that the group before had are kept."""

    def __init__(self, recorder: EpochRecorder) -> None:
        self._recorder = recorder
        self._before: Windows | None = None

    def __call__(self, group: tuple[Windows, list[Item]]) -> tuple[Windows, list[Item]]:
        windows, _ = group
        self._recorder.trace.at(-1)
        with self._recorder.time("window"):
            rows, nbytes = windows.load(self._before)
            self.finish()
        self._before = windows
        self._recorder.count(window_rows=rows, window_bytes=nbytes)
        return group

    def finish(self) -> None:
        """Let caches have the last group's rows, which most of its batches have read as misses;
        keep it no longer."""
        before = self._before
        self._before = None
        if before is not None:
            before.feed()


def _each(loaded: Iterator[tuple[Windows, list[Item]]]) -> Iterator[tuple[Item, Windows]]:
    for windows, items in loaded:
        while items:  # Popped, so that a batch that was handed on is not kept alive here.
            yield items.pop(0), windows


def _fetch(steps: Steps[Any], recorder: EpochRecorder, work: tuple[Item, Windows]) -> Any:
    (index, sampled), windows = work
    begin = recorder.trace.begin(index)
    try:
        return steps.fetch(sampled, recorder, windows)
    finally:
        recorder.trace.end("preparing", begin)
