"""Stages: iterators that map work over a source in threads, in order, ahead of the reader."""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from .._postponed import finalize
from ..errors import PipelineError
from .thread_use import ThreadUse
from .threads import THREAD_NAME, try_lock, usable_cpus

S = TypeVar("S")
T = TypeVar("T")

_LOOK_SECONDS = 1.0
"""Wait after which the reader checks that the threads are alive; one that runs out of memory may
end without notifying."""


_PATIENCE = 0.5
"""Seconds to wait for the threads of a stage that was dropped."""

_FORKED = "an iterator made before os.fork() must be read in the process that made it"


class OwnReaderError(PipelineError):
    """A stage was read in one of its own threads; that item fails, the stage goes on."""


@dataclass(frozen=True)
class _Failure:
    """An exception on its way from a worker to the reader."""

    error: BaseException


class SerialStage(Generic[S, T]):
    """A :class:`Stage` without threads: works on demand, in the caller's thread."""

    def __init__(self, source: Iterator[S], work: Callable[[S], T]) -> None:
        self._source = source
        self._work = work

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return _run(self._work, next(self._source))
        except BaseException:
            self.close()
            raise

    @property
    def is_ready(self) -> bool:
        """True: there is no thread to wait for."""
        return True

    def close(self) -> None:
        """End the stage; further reading raises StopIteration."""
        self._source = iter(())

    stop = close


class Relay:
    """Chains two stages: the results of the first, then those of the second.

    Args:
        first: Its results come first.
        follow: Makes the second stage, in the reader's thread, once the first has ended.
    """

    def __init__(self, first: Iterator[Any], follow: Callable[[], Iterator[Any]]) -> None:
        self._now: Any = first
        self._follow: Callable[[], Iterator[Any]] | None = follow

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._follow is not None:
            try:
                return next(self._now)
            except StopIteration:
                follow = self._follow
            if follow is None:  # the stage was closed while it was read
                raise StopIteration
            self._follow = None
            self._now = follow()
        return next(self._now)

    @property
    def is_ready(self) -> bool:
        """Whether the next result is ready."""
        return bool(self._now.is_ready)

    def close(self) -> None:
        """End the stage."""
        self._follow = None
        self._now.close()

    stop = close


class AheadStage:
    """A :class:`Stage` for asynchronous work, as on a device: the caller's thread begins it some
    items ahead.

    Args:
        source: Drawn from in order.
        begin: Begins an item's work; returns None if it cannot.
        work: Does the work of an item that could not be begun, in its turn.
        abandon: Called with begun items that will not be taken.
        ahead: Items begun beyond the one that is taken.
    """

    def __init__(
        self,
        source: Iterator[Any],
        begin: Callable[[Any], Any],
        work: Callable[[Any], Any],
        abandon: Callable[[Any], object],
        *,
        ahead: int,
    ) -> None:
        self._source = source
        self._begin = begin
        self._work = work
        self._ahead = ahead
        self._pid = os.getpid()
        self._ended = False
        # (whether it was begun, item)
        self._begun: deque[tuple[bool, Any]] = deque()
        self._abandon_all = partial(_abandon, self._begun, abandon, self._pid)
        finalize(self, self._abandon_all)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._pid != os.getpid():
            raise PipelineError(_FORKED)
        try:
            while not self._ended and len(self._begun) <= self._ahead:
                self._draw()
            if not self._begun:
                raise StopIteration
            is_begun, item = self._begun.popleft()
            if is_begun:
                return item
            if isinstance(item, _Failure):
                raise item.error
            return _run(self._work, item)
        except BaseException:
            self.close()
            raise

    def _draw(self) -> None:
        """Begin the next item."""
        try:
            item = next(self._source)
            begun = self._begin(item)
        except StopIteration:
            self._ended = True
        except Exception as error:
            # Raised in order, after the items before it.
            self._ended = True
            self._begun.append((False, _Failure(error)))
        else:
            self._begun.append((False, item) if begun is None else (True, begun))

    @property
    def is_ready(self) -> bool:
        """True: there is no thread to wait for."""
        return True

    def close(self) -> None:
        """End the stage; further reading raises StopIteration. Waits for what was begun."""
        self._ended = True
        self._abandon_all()

    stop = close


def _abandon(
    begun: deque[tuple[bool, Any]], abandon: Callable[[Any], object], process: int
) -> None:
    while begun:
        is_begun, item = begun.popleft()
        # A forked child cannot use the device.
        if is_begun and os.getpid() == process:
            abandon(item)


class Stage(Generic[S, T]):
    """Maps ``work`` over ``source`` with threads; results come in the source's order.

    Items are drawn from the source one at a time, in order; ``work`` runs concurrently. An
    exception of the source or of ``work`` is raised by ``next()`` at its own position, with its own
    traceback, after everything before it. Threads end when the source does, on an exception, on
    :meth:`close`, and at interpreter exit. If the stage is only dropped, they end after their
    current item. Ctrl-C in the reader, at any moment, closes the stage.

    Args:
        source: Drawn from by the worker threads.
        work: A pure function.
        workers: Number of threads, at least 1.
        ahead: Maximum items in work or waiting to be read, at least ``workers``.
        on_start: Called with the worker's number in each thread. The constructor waits for all, so
            the reader never sees global state that they change and restore.
        on_change: Called under a lock with the numbers of waiting results and of items in work,
            when these change.
        use: Lets a reader that would wait work on an item itself, if a CPU is free, and decides
            when it works on all of them.
        finish: Called with each result's number and the result, in order, one at a time, by
            whichever thread has the next one; returns what the reader gets. Not together with
            ``use``. Default: results are unchanged.
    """

    def __init__(
        self,
        source: Iterator[S],
        work: Callable[[S], T],
        *,
        workers: int,
        ahead: int,
        on_start: Callable[[int], object] | None = None,
        on_change: Callable[[int, int], object] | None = None,
        use: ThreadUse | None = None,
        finish: Callable[[int, Any], T] | None = None,
    ) -> None:
        # A third thread on two processors took a tenth longer than two (sampling batches of 2.4
        # ms).
        helps = use is not None and workers < usable_cpus()
        self._shared: _Shared[S, T] = _Shared(
            source, work, workers, ahead, on_start, on_change, use, helps, finish
        )
        # Threads refer to the shared state, not to the stage, so dropping the stage ends them. The
        # callback is C: whatever interrupts the wait of `_wait_for`, a thread sees it.
        finalize(self, partial(_wait_for, self._shared))
        self._shared.stage = weakref.ref(self, self._shared.wake_thread)
        _running.add(self._shared)
        self._shared.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._shared.pid != os.getpid():
            raise PipelineError(_FORKED)
        if threading.current_thread() in self._shared.threads:
            # It would wait for itself: the next result needs this call to return.
            raise OwnReaderError(
                "an iterator must not be read by code that prepares its batches, such as a "
                "transform"
            )
        try:
            result = self._shared.take()
        except BaseException:  # the end, and Ctrl-C while waiting
            self.close()
            raise
        if isinstance(result, _Failure):
            self.close()
            raise result.error
        return result  # type: ignore[no-any-return]

    @property
    def is_ready(self) -> bool:
        """Whether the next result is ready, or a failure in its place."""
        return self._shared.is_ready

    def stop(self) -> None:
        """Tell threads and reader to end, without waiting for them."""
        self._shared.stop()

    def close(self) -> None:
        """Stop and join all threads; safe to call twice."""
        self._shared.stop()
        self._shared.join()


@dataclass(eq=False)
class _Shared(Generic[S, T]):
    """State shared by the threads of a stage and its reader.

    A signal's handler may raise in the reader between any two calls. So the reader waits only in C:
    it takes a plain lock by ``with``, and waits at a ``SimpleQueue``. Entering a
    ``Condition`` is Python: Ctrl-C after its lock was acquired, and before the block began, could
    leave the lock held forever. A token that Ctrl-C loses does no harm, as the stage then closes.

    - The *state lock* guards the fields, for short times. ``on_change`` is called under it, and
      must not call back.
    - ``_room`` has a token for each item that threads may draw, ``_own_room`` those of the reader
      while the threads rest.
    - ``_turn`` has one token, whose holder draws: drawing and numbering an item is one step.
      ``source`` may take long meanwhile (a user's sampler) or wait for another stage (look-ahead).
      The reader never waits for a token of either, but for a change of state. That change comes,
      because the thread that draws puts a result or ends the stage.
    - ``_woken`` gets a token at a change of state if the reader waits.
    - ``_alive`` is locked while there are threads.

    No lock is held while an item is worked on.

    With ``finish``, a thread adds its result to the *unfinished* ones. The thread with the next
    result finishes it, and all that follow without a gap, while the others draw items. So no thread
    waits for its turn, and no lock is held while ``finish`` runs.

    Threads call :meth:`draw`, :meth:`hand_over`, :meth:`ready` and :meth:`fail`. Only the reader
    calls :meth:`start` and :meth:`take`, which may draw as well. Any thread may call :meth:`stop`,
    even from the garbage collector.
    """

    source: Iterator[S]
    work: Callable[[S], T]
    workers: int
    ahead: int
    on_start: Callable[[int], object] | None
    on_change: Callable[[int, int], object] | None
    use: ThreadUse | None
    helps: bool  # the reader works instead of waiting
    finish: Callable[[int, Any], T] | None

    def __post_init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.pid = os.getpid()
        self._got = time.perf_counter()  # when the reader got its last result
        # Reentrant: the garbage collector may run `stop` in a thread that holds it.
        self._lock = threading.RLock()
        self._rests = self.use is not None and self.use.rests  # the reader draws all items
        self._room: SimpleQueue[Any] = SimpleQueue()
        self._own_room: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self.ahead):
            (self._own_room if self._rests else self._room).put(None)
        self._turn: SimpleQueue[None] = SimpleQueue()
        self._turn.put(None)
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._ready: SimpleQueue[BaseException | None] = SimpleQueue()
        self._alive = threading.Lock()
        self._living = 0
        # The stage itself, None once it was dropped; also, what to call with anything then.
        self.stage: Callable[[], object]
        self.wake_thread: Callable[[Any], object] = self._room.put
        self._waits = False  # the reader, for a change of state
        self._results: dict[int, Any] = {}  # By number; waiting for the reader.
        self._unfinished: dict[int, Any] = {}  # By number; waiting for ``finish``.
        self._next_to_finish = 0
        self._is_finishing = False  # A thread runs ``finish``.
        self._started = 0  # Items drawn.
        self._delivered = 0
        self._ended = False  # Nothing more will be drawn.
        self._stopped = False  # Nothing more will be read.

    def start(self) -> None:
        """Start the threads; returns once they run, and have run ``on_start``."""
        self.threads = [
            threading.Thread(target=_worker, args=(self, i), name=f"{THREAD_NAME}-{i}", daemon=True)
            for i in range(self.workers)
        ]
        # In a thread of its own: `Thread.start` waits at a Condition, and the new thread for its
        # lock.
        _thread.start_new_thread(self._start_all, ())
        for _ in range(1 if self.on_start is None else 1 + self.workers):
            error = self._ready.get()
            if error is not None:
                raise error

    def _start_all(self) -> None:
        self._living = self.workers
        self._alive.acquire()
        error: BaseException | None = None
        for number, thread in enumerate(self.threads):
            try:
                thread.start()
            except BaseException as problem:  # the system has no more threads
                error = problem
                self.leave(self.workers - number)
                break
        self._ready.put(error)

    def ready(self) -> None:
        """Note that a thread has run ``on_start``, or failed."""
        self._ready.put(None)

    def leave(self, threads: int = 1) -> None:
        """Note that threads end."""
        with self._lock:
            self._living -= threads
            if not self._living:
                self._alive.release()

    def draw(self) -> tuple[int, Any] | None:
        """The next item with its number, once there is room for it; None at the end."""
        self._room.get()
        self._turn.get()
        try:
            if self.stage() is None:
                self.stop()  # it was dropped
            return None if self._stopped or self._ended else self._drawn()
        finally:
            self._turn.put(None)

    @property
    def is_ready(self) -> bool:
        return self._delivered in self._results

    def _wake(self) -> None:
        """Wake the reader if it waits; needs the state lock."""
        if self._waits:
            self._waits = False
            self._woken.put(None)

    def _drawn(self) -> tuple[int, Any] | None:
        """The next item with its number, None at the end; needs the turn."""
        try:
            item = next(self.source)
        except StopIteration:
            with self._lock:
                self._end()
            return None
        except BaseException as error:
            self.put(self._count(), _Failure(error))
            return None
        return self._count(), item

    def _end(self) -> None:
        """Draw nothing more; needs the state lock."""
        self._ended = True
        for _ in range(self.workers):  # those that wait for room
            self._room.put(None)
        self._wake()

    def result_of(self, item: Any, work: Callable[[Any], Any] | None = None) -> Any:
        """The result of an item's work, or its failure."""
        try:
            return _run(work or self.work, item)
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() not in self.threads:
                raise  # Ctrl-C in the reader's own work is raised at once, out of order
            return _Failure(error)

    def hand_over(self, number: int, result: Any) -> None:
        """Put a thread's result, finished if needed; finish the next ones unless another thread
        does."""
        if self.finish is None:
            self.put(number, result)
            return
        with self._lock:
            self._unfinished[number] = result
            # Checked and set under one lock: a finishing thread sees this result, or has left.
            if self._is_finishing:
                return
            self._is_finishing = True
        while (next_number := self._take_unfinished()) is not None:
            number, result = next_number
            if isinstance(result, _Failure):
                # Nothing after a failure is read, so nothing is finished.
                self.put(number, result)
                return
            self.put(number, self.result_of(result, partial(self.finish, number)))
            del next_number, result  # to not keep a delivered batch alive

    def _take_unfinished(self) -> tuple[int, Any] | None:
        """The next result to finish with its number; None if it is not ready."""
        with self._lock:
            number = self._next_to_finish
            if self._stopped or number not in self._unfinished:
                self._is_finishing = False
                return None
            self._next_to_finish += 1
            return number, self._unfinished.pop(number)

    def put(self, number: int, result: Any) -> None:
        """Make a result available to the reader; after a failure nothing more is drawn."""
        with self._lock:
            if not self._stopped:
                self._results[number] = result
                self._tell()
            if isinstance(result, _Failure):
                self._end()
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Fail outside any item; the error takes the place of the next one."""
        self._turn.get()
        try:
            self.put(self._count(), _Failure(error))
        finally:
            self._turn.put(None)

    def take(self) -> Any:
        """The next result in order; waits for it, or works on an item meanwhile."""
        begin = time.perf_counter()
        while True:
            with self._lock:
                if self.is_ready:
                    return self._deliver(self._results.pop(self._delivered), begin)
                if self._has_nothing_more:
                    raise StopIteration
            drawn = self._drawn_by_reader()
            if drawn is None:
                self._wait()
                continue
            number, item = drawn
            result = self.result_of(item)
            with self._lock:
                if number == self._delivered and not isinstance(result, _Failure):
                    return self._deliver(result, begin)
            self.put(number, result)

    @property
    def _has_nothing_more(self) -> bool:
        return self._stopped or (self._ended and self._delivered >= self._started)

    def _drawn_by_reader(self) -> tuple[int, Any] | None:
        """An item for the reader to work on, with its number; None if the reader must wait."""
        if not (self.helps or self._rests):
            return None
        room = self._own_room if self._rests else self._room
        try:
            room.get_nowait()
        except Empty:
            return None
        try:
            self._turn.get_nowait()
        except Empty:
            room.put(None)
            return None
        try:
            return None if self._stopped or self._ended else self._drawn()
        finally:
            self._turn.put(None)

    def _wait(self) -> None:
        """Wait for a change of state; after a while, check that all threads are alive."""
        with self._lock:
            # Checked again: what changed since the last check woke nobody.
            if self.is_ready or self._has_nothing_more:
                return
            self._waits = True
        try:
            self._woken.get(timeout=_LOOK_SECONDS)
        except Empty:
            self._look()

    def _look(self) -> None:
        """Raise PipelineError if a thread died with its batch."""
        with self._lock:
            self._waits = False
            if self._stopped or self.is_ready:
                return
            living = sum(thread.is_alive() for thread in self.threads)
            needed = 1 if self._ended else len(self.threads)
            if living < needed:
                raise PipelineError(
                    "a thread of the loader has died with its batch: is there memory left?"
                )

    def _deliver(self, result: Any, asked: float) -> Any:
        """Count a delivered result and make its room free; needs the state lock."""
        self._delivered += 1
        self._tell()
        if self.use is not None:
            before = asked - self._got
            self._got = time.perf_counter()
            self.use.note(self._got - asked, before, self.ahead)
            # Looked at each time: another pass of the same loader may have changed it.
            if self.use.rests != self._rests:
                self._rests = self.use.rests
                self._move_room()
        (self._own_room if self._rests else self._room).put(None)
        return result

    def _move_room(self) -> None:
        """Give the free room to those who draw from now on, the reader alone or the threads."""
        old, new = self._room, self._own_room
        if not self._rests:
            old, new = new, old
        with suppress(Empty):  # threads take some meanwhile
            while True:
                new.put(old.get_nowait())

    def stop(self) -> None:
        """Tell the threads to end, without waiting; no-op in a forked child, which has none."""
        if self.pid == os.getpid():
            with self._lock:
                self._stopped = True
                self._results.clear()
                self._unfinished.clear()
                # Ctrl-C may have lost the token between two calls of the reader's.
                for _ in range(self.workers):
                    self._turn.put(None)
                self._end()

    def join(self, patience: float = -1) -> None:
        """Wait until the threads have ended, at most ``patience`` seconds if that is not -1."""
        if self.pid != os.getpid() or threading.current_thread() in self.threads:
            return
        deadline = None if patience < 0 else time.monotonic() + patience
        # In C first: Ctrl-C while `Thread.join` waits marks a living thread as ended.
        held: list[bool] = []
        try:
            if not try_lock(self._alive, held, patience):
                return
        finally:
            if held:
                self._alive.release()
        for thread in self.threads:
            if thread.is_alive():
                # Bounded as well: the garbage collector may run this under a lock of `threading`.
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _count(self) -> int:
        """The number of the item just drawn; needs the turn."""
        with self._lock:
            self._started += 1
            self._tell()
            return self._started - 1

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change(len(self._results), self._started - self._delivered - len(self._results))


def _worker(shared: _Shared[Any, Any], index: int) -> None:
    """The loop of one thread."""
    try:
        _work(shared, index)
    finally:
        shared.leave()


def _work(shared: _Shared[Any, Any], index: int) -> None:
    try:
        if shared.on_start is not None:
            shared.on_start(index)
    except BaseException as error:
        shared.fail(error)
        return
    finally:
        if shared.on_start is not None:
            shared.ready()
    while (drawn := shared.draw()) is not None:
        number, item = drawn
        shared.hand_over(number, shared.result_of(item))
        del drawn, item  # a waiting thread must not keep a batch alive


def _run(work: Callable[[S], T], item: S) -> T:
    """Do the work; a StopIteration in it must not look like the end of the source."""
    try:
        return work(item)
    except StopIteration as error:
        raise RuntimeError("a stage's work raised StopIteration") from error


_running: weakref.WeakSet[_Shared[Any, Any]] = weakref.WeakSet()


def _wait_for(shared: _Shared[Any, Any]) -> None:
    """End the threads of a stage that was dropped.

    After a ``break`` they have ended by the next line, unless an item takes longer. The wait is
    bounded: the garbage collector may run this in a thread that holds a lock the workers need.
    """
    shared.stop()
    shared.join(patience=_PATIENCE)


def end_dropped() -> None:
    """Wait until the threads of stages that were dropped have ended, half a second each at most."""
    while dropped := [shared for shared in list(_running) if shared.stage() is None]:
        for shared in dropped:
            shared.stop()
        for shared in dropped:
            shared.join(patience=_PATIENCE)
            _running.discard(shared)
        # One that another's source holds is only dropped now.
        del dropped, shared


@atexit.register
def _end_all() -> None:
    """Join all threads: at exit none may be in a kernel or in torch."""
    stages = list(_running)
    for shared in stages:
        shared.stop()
    for shared in stages:
        shared.join()
