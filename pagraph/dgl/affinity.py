"""CPU affinity: the loader's threads on some cores, the computation on the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    allowed, threads, worker_init_fn = os.sched_getaffinity(0), get_num_threads(), loader.worker_init_fn
    loading, computing = _divide(allowed, loader.num_workers, loader_cores, compute_cores)

    def pin(worker: int) -> None:
        os.sched_setaffinity(0, [loading[worker]])  # 0 is the calling thread
        if worker_init_fn is not None:
            worker_init_fn(worker)

    try:
        os.sched_setaffinity(0, computing)
        set_num_threads(len(computing))
        loader.worker_init_fn, loader.cpu_affinity_enabled = pin, True
        if verbose:
            logger.info("%d loader threads on cores %s, computation on %s", loader.num_workers, loading, computing)
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        set_num_threads(threads)
        loader.worker_init_fn, loader.cpu_affinity_enabled = worker_init_fn, False


def _divide(
    allowed: set[int], workers: int, loader_cores: list[int] | None, compute_cores: list[int] | None
) -> tuple[list[int], list[int]]:
    """Cores of the loader's workers, one each, and of the computation: all others, or all where none is left."""
    if loader_cores and len(loader_cores) != workers:
        raise Exception(f"loader_cores must name one core per worker ({workers}), got {loader_cores}")
    for name, cores in {"loader_cores": loader_cores, "compute_cores": compute_cores}.items():
        if not allowed.issuperset(cores or []):
            raise Exception(f"{name} must be among the cores of this process, {sorted(allowed)}; got {cores}")
    cores = _near_cores(allowed, workers)
    loading = list(loader_cores or [core for core in cores if core not in (compute_cores or [])][:workers])
    if len(loading) < workers:
        raise Exception(
            f"num_workers must be at most the number of cores to pin them to ({len(loading)}), got {workers}"
        )
    return loading, list(compute_cores or [core for core in cores if core not in loading] or cores)


def _near_cores(allowed: set[int], workers: int) -> list[int]:
    """One hardware thread of each core of the first NUMA node, as DGL takes them; all allowed ones if they are few."""
    nodes = get_numa_nodes_cores()
    near = [next((cpu for cpu in cpus if cpu in allowed), None) for _, cpus in nodes.get(0, [])]
    cores = [cpu for cpu in near if cpu is not None]
    return cores if len(cores) > workers else sorted(allowed)
