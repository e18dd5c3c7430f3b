"""Look-ahead: sample a group of batches, read their rows at once, then give each batch its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ..system.stage import SerialStage, Stage

if TYPE_CHECKING:
    from ..cache.windows import Windows
    from ..stats.stats import EpochRecorder
    from .steps import Steps, WindowReader


GROUPS = 3
"""Groups in memory at once: one being read, one fetched from, one with batches left in threads."""

Item = tuple[int, Any]
"""A batch's number, and the batch so far."""


class LookedAhead:
    """The batches of an epoch, in order, by three stages: sample, read groups, fetch from them.

    Group sizes start at one batch and double, so that the first batch comes soon.

    Args:
        source: Numbered tickets.
        steps, recorder: The epoch's.
        reader: Makes the windows.
        threads: Threads that sample, and the same number that fetch; 0: the reader does both.
        ahead: Batches that may be in fetching or waiting.
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
        # One group is loaded while the next is sampled; each thread has one more batch in work.
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

        All are stopped before any is joined: a stage's thread may be waiting in the stage before
        it, and wakes only when that one stops.
        """
        for stage in (self._sampled, self._loaded, self._fetched):
            stage.stop()
        for stage in (self._fetched, self._loaded, self._sampled):
            stage.close()


def _sample(steps: Steps[Any], recorder: EpochRecorder, item: Item) -> Item:
    index, drawn = item
    recorder.trace.at(index)
    return index, steps.source.sample(drawn, recorder)


def _groups(
    sampled: Iterator[Item], steps: Steps[Any], reader: WindowReader, at_end: Callable[[], object]
) -> Iterator[tuple[Windows, list[Item]]]:
    """Groups of sampled batches with windows of their reads; an error comes after its group."""
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
                # Raised in order: batches sampled before it come first.
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
    """Reads the rows of each group; reuses those shared with the previous group."""

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
        """Feed the last group's rows to the caches and drop it; most batches missed them."""
        before = self._before
        self._before = None
        if before is not None:
            before.feed()


def _each(loaded: Iterator[tuple[Windows, list[Item]]]) -> Iterator[tuple[Item, Windows]]:
    for windows, items in loaded:
        while items:  # popped, to not keep a delivered batch alive
            yield items.pop(0), windows


def _fetch(steps: Steps[Any], recorder: EpochRecorder, work: tuple[Item, Windows]) -> Any:
    (index, sampled), windows = work
    begin = recorder.trace.begin(index)
    try:
        return steps.fetch(sampled, recorder, windows)
    finally:
        recorder.trace.end("preparing", begin)
