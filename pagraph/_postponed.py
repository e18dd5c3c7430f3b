"""Postponing signals and garbage collection."""

from __future__ import annotations

import _thread
import contextlib
import gc
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any


@contextlib.contextmanager
def collection_later() -> Iterator[None]:
    """Postpone garbage collection, in all threads, to the end of the block."""
    # This is a switch of the process: if two threads are in such blocks at once, the first to end
    # turns collection on again for both.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Postpone Ctrl-C, and all other signals with Python handlers, to the end of the block.

    numba and llvmlite do not survive an exception while they load a kernel. When loads were
    interrupted at random, 8 of 40 processes crashed with a segmentation fault, and others lost the
    interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    handlers: dict[int, Any] = {
        number: signal.getsignal(number) for number in signal.valid_signals()
    }
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    waiting: dict[int, Any] = {}
    with contextlib.ExitStack() as late:  # runs all handlers, even if one raises
        for number in handlers:
            signal.signal(number, lambda *event: waiting.setdefault(event[0], event))
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for number, event in reversed(waiting.items()):
                late.callback(handlers[number], *event)


def finalize(item: object, work: Callable[[], object]) -> None:
    """Do ``work`` when ``item`` is gone, but not at exit; Ctrl-C meanwhile comes again after it.

    Python only prints what a weak reference's callback raises, which would lose the interrupt. A
    function's start is a place where it may come, before any ``try``. So the callback is the
    ``send`` of a generator that waits inside its ``try``.
    """
    while _over:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            del _references[_over.popleft()]
    key = object()
    steps = _finalizing(work, key)
    next(steps)
    _references[key] = weakref.ref(item, steps.send)


_references: dict[object, object] = {}  # to call back, a reference has to live
# Keys of those that called back, deleted by the next call of `finalize`.
_over: deque[object] = deque()


def _finalizing(work: Callable[[], object], key: object) -> Generator[None, object]:
    try:
        # Kept until the end: CPython calls with a reference that it does not count, and crashed
        # when another thread's `finalize` had deleted it meanwhile.
        reference = yield
        _over.append(key)
        work()
    except KeyboardInterrupt:
        interrupt_later()
    yield  # or `send` would raise StopIteration
    del reference


def interrupt_later() -> None:
    """Interrupt the main thread once it has left the finaliser that calls this."""
    _thread.start_new_thread(_interrupt, ())


def _interrupt() -> None:
    # A finaliser's last instructions take microseconds, and there is no way to see their end.
    time.sleep(0.02)
    # Of the default action the process would die.
    if callable(signal.getsignal(signal.SIGINT)):
        # A signal, so that a call that blocks in the main thread is broken off, too.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
