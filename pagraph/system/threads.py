"""Locks, CPU affinity and start-up of worker threads and forked processes."""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

THREAD_NAME = "pagraph"
"""Name of the loader's threads, followed by their number."""

AHEAD = 2
"""Results of :func:`in_order` that wait for their turn, besides those that are worked on: else one
slow item would stop the other workers."""


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    run: Callable[[_T], _R],
    items: Iterable[_T],
    workers: int,
    stopped: threading.Event | None = None,
) -> Generator[_R]:
    """Results of ``run`` in the order of ``items``; threads work at most :data:`AHEAD` results
    ahead of the reader, and end when it does.

    Args:
        run: Called in a thread.
        items: Taken in this thread.
        workers: Number of threads.
        stopped: Set when nobody reads on: the reader waits for calls that have begun.
    """
    waiting: deque[Future[_R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(run, item))
                if len(waiting) >= workers + AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # A reader that stops early, or an error: what has not begun need not be done.
            for future in waiting:
                future.cancel()
            if stopped is not None:
                stopped.set()


def fork_lock() -> threading.Lock:
    """A lock that is free in a forked child, for what forked workers use too.

    A plain C lock, not a Python class: in a Python ``__enter__``, Ctrl-C could come after the lock
    was acquired and before the block began, and nobody would release it.

    Do not fork while holding it. A child forked while another thread holds it sees that thread's
    work half done: so the guarded data must be valid at every point. Change one reference last.
    """
    lock = threading.Lock()
    _fork_locks.add(lock)
    return lock


_fork_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def _renew() -> None:
    for lock in _fork_locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def try_lock(lock: threading.Lock | threading.RLock, held: list[bool], patience: float = 0) -> bool:
    """Acquire a lock if it is free within ``patience`` seconds (-1: any time); returns whether it
    was.

    For code that Ctrl-C may interrupt::

        held: list[bool] = []
        try:
            if try_lock(lock, held):
                ...
        finally:
            if held:
                lock.release()

    Args:
        lock: A ``threading.Lock`` or ``RLock``.
        held: Empty; gets an item if the lock was free, in the same C call that acquires it. So
            there is no moment at which the lock is held and ``held`` does not say so.
    """
    # A lock takes no timeout if it does not block.
    arguments = ([False],) if patience == 0 else ([True], [patience])
    held.extend(filter(None, map(lock.acquire, *arguments)))
    return bool(held)


_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def lock_of(item: Any) -> threading.RLock:
    """The lock of an object, shared by all loaders; a new one if the object cannot be a key."""
    with _guard:
        try:
            return _locks.setdefault(item, threading.RLock())
        except TypeError:  # not hashable, or no weak references
            return threading.RLock()


@contextmanager
def starting_workers(loader: Any, start: Callable[[int], object]) -> Iterator[None]:
    """Call ``start`` with the worker's number in each worker thread that starts inside the block.

    The loader's ``worker_init_fn`` is replaced meanwhile, and is called after ``start``.
    """
    before = loader.worker_init_fn

    def both(worker: int) -> None:
        start(worker)
        if before is not None:
            before(worker)

    loader.worker_init_fn = both
    try:
        yield
    finally:
        loader.worker_init_fn = before


def near_cores(
    allowed: Collection[int], workers: int, nodes: Mapping[int, Sequence[tuple[int, Sequence[int]]]]
) -> list[int]:
    """One allowed hardware thread per core of the first NUMA node.

    All ``allowed`` threads if that is not more than ``workers``. ``nodes`` maps a NUMA node to its
    cores, each with its hardware threads, as DGL and PyG list them.
    """
    cores = []
    for _, cpus in nodes.get(0, []):
        usable = [cpu for cpu in cpus if cpu in allowed]
        cores += usable[:1]
    return cores if len(cores) > workers else sorted(allowed)


# One worker at a time saves, changes and restores the global generators.
_lock = threading.Lock()


def run_worker_init(worker_init_fn: Callable[[int], object], worker: int) -> None:
    """Run the user's function in a worker thread and restore the global random generators.

    Functions written for worker processes seed Python's, NumPy's and torch's. In a thread these are
    the training loop's.
    """
    # Imported late, since options are checked and CPUs counted before torch is imported.
    import numpy as np
    import torch

    with _lock:
        state = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            worker_init_fn(worker)
        finally:
            random.setstate(state[0])
            np.random.set_state(state[1])
            torch.set_rng_state(state[2])
