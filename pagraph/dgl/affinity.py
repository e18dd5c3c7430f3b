"""CPU affinity: the loader's threads on some cores, the computation on the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..pipeline.affinity import near_cores, starting_workers
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.utils import get_num_threads, get_numa_nodes_cores, set_num_threads  # noqa: E402

logger = logging.getLogger(__name__)


@contextmanager
def cpu_affinity(
    loader: Any, loader_cores: list[int] | None, compute_cores: list[int] | None, verbose: bool
) -> Iterator[None]:
    """Pin the threads of ``loader``'s workers and the calling thread; everything is restored at the end.

    Mirrors ``dgl.dataloading.DataLoader.enable_cpu_affinity``, with threads for processes: passes that begin inside
    are pinned. Does nothing when batches go to a GPU, or where the system cannot pin.

    Raises:
        Exception: There is no worker, the number of loader cores is not the number of workers, there are more workers
            than cores, or a core is not this process's to use (DGL's own type).
    """
    if loader.device.type != "cpu":
        yield
        return
    if not loader.num_workers:
        raise Exception("enable_cpu_affinity needs num_workers of at least 1, got 0")
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed, threads = os.sched_getaffinity(0), get_num_threads()
    loading, computing = _divide(allowed, loader.num_workers, loader_cores, compute_cores)
    try:
        os.sched_setaffinity(0, computing)
        set_num_threads(len(computing))
        loader.cpu_affinity_enabled = True
        if verbose:
            logger.info("%d loader threads on cores %s, computation on %s", loader.num_workers, loading, computing)
        # 0 is the calling thread
        with starting_workers(loader, lambda worker: os.sched_setaffinity(0, [loading[worker]])):
            yield
    finally:
        os.sched_setaffinity(0, allowed)
        set_num_threads(threads)
        loader.cpu_affinity_enabled = False


def _divide(
    allowed: set[int], workers: int, loader_cores: list[int] | None, compute_cores: list[int] | None
) -> tuple[list[int], list[int]]:
    """Cores of the loader's workers, one each, and of the computation: all others, or all where none is left."""
    if loader_cores and len(loader_cores) != workers:
        raise Exception(f"loader_cores must name one core per worker ({workers}), got {loader_cores}")
    for name, cores in {"loader_cores": loader_cores, "compute_cores": compute_cores}.items():
        if not allowed.issuperset(cores or []):
            raise Exception(f"{name} must be among the cores of this process, {sorted(allowed)}; got {cores}")
    cores = near_cores(allowed, workers, get_numa_nodes_cores())
    loading = list(loader_cores or [core for core in cores if core not in (compute_cores or [])][:workers])
    if len(loading) < workers:
        raise Exception(
            f"num_workers must be at most the number of cores to pin them to ({len(loading)}), got {workers}"
        )
    return loading, list(compute_cores or [core for core in cores if core not in loading] or cores)
