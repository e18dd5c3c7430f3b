"""Postponing signals and garbage collection."""

from __future__ import annotations

import _thread
import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
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


def finalizer(work: Callable[..., object]) -> Callable[..., None]:
    """A finaliser that does ``work``, and after which Ctrl-C during it comes again.

    Python only prints what is raised in a finaliser, which would lose the interrupt.
    """

    def run(*args: Any) -> None:
        try:
            work(*args)
        except KeyboardInterrupt:
            _thread.start_new_thread(_interrupt_after, (sys._getframe(),))

    return run


def _interrupt_after(callback: FrameType) -> None:
    """Interrupt the main thread once it has left a function."""
    main = threading.main_thread().ident
    while callback in _frames_of(sys._current_frames().get(main or 0)):
        time.sleep(0.001)
    _thread.interrupt_main()


def _frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
