"""What both faces need to pin a loader's threads to cores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["near_cores", "starting_workers"]


@contextmanager
def starting_workers(loader: Any, start: Callable[[int], object]) -> Iterator[None]:
    """Call ``start`` with the worker's number in each thread of passes that begin inside, before the user's function.

    Args:
        loader: Has a ``worker_init_fn``, None or a function; it is put back at the end.
        start: Run in the thread.
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
    """One hardware thread of each core of the first NUMA node, in order; all allowed ones if those are few.

    Args:
        allowed: What this process may use.
        workers: Threads that want one each.
        nodes: NUMA node to its cores, each with its hardware threads, as DGL and PyG list them.
    """
    near = [next((cpu for cpu in cpus if cpu in allowed), None) for _, cpus in nodes.get(0, [])]
    cores = [cpu for cpu in near if cpu is not None]
    return cores if len(cores) > workers else sorted(allowed)
