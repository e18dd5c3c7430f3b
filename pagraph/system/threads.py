"""Locks, CPU affinity and start-up of worker threads and forked processes."""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

THREAD_NAME = "pagraph"
"""Name of the loader's threads, followed by their number."""


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ForkLock:
    """A lock that is free in a forked child; for what forked workers call as well, or threads hold
    for long.

    Do not fork inside. What it guards must be sound wherever a thread may be cut off: change one
    reference last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _alive.add(self)

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take it; whether that was possible, where it should not wait."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


_alive: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in _alive:
        lock._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def lock_of(item: Any) -> threading.RLock:
    """The lock of an object, the same for all loaders; a new one where it cannot be told apart."""
    with _guard:
        try:
            return _locks.setdefault(item, threading.RLock())
        except TypeError:  # not hashable, or no weak references
            return threading.RLock()


@contextmanager
def starting_workers(loader: Any, start: Callable[[int], object]) -> Iterator[None]:
    """Call ``start`` with the worker's number in each thread of passes that begin inside, before
    the user's function.

    It stands before the loader's ``worker_init_fn`` for that time.
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
    """One of the ``allowed`` hardware threads of each core of the first NUMA node; all allowed ones
    if those are few.

    ``nodes`` maps a NUMA node to its cores, each with its hardware threads, as DGL and PyG list
    them.
    """
    near = [next((cpu for cpu in cpus if cpu in allowed), None) for _, cpus in nodes.get(0, [])]
    cores = [cpu for cpu in near if cpu is not None]
    return cores if len(cores) > workers else sorted(allowed)


_lock = threading.Lock()


def run_worker_init(worker_init_fn: Callable[[int], object], worker: int) -> None:
    """Run the user's function in a worker thread, and restore Python's, NumPy's and torch's global
    generators.

    Functions written for worker processes seed them, and here they are the training loop's.
    """
    # Here: options are checked, and threads counted, before torch is imported.
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
