"""CPU affinity: the loader's threads on some cores, the computation on the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.utils import get_num_threads, set_num_threads  # noqa: E402

logger = logging.getLogger(__name__)


@contextmanager
def cpu_affinity(
    loader: Any, loader_cores: list[int] | None, compute_cores: list[int] | None, verbose: bool
) -> Iterator[None]:
    """Pin the threads of ``loader``'s workers and the calling thread; everything is restored at the end.

    Mirrors ``dgl.dataloading.DataLoader.enable_cpu_affinity``, with threads for processes. Does nothing when batches
    go to a GPU.

    Raises:
        Exception: There is no worker, or the number of loader cores is not the number of workers (DGL's own type).
    """
    if loader.device.type != "cpu" or not hasattr(os, "sched_setaffinity"):
        yield
        return
    workers = loader.num_workers
    if not workers:
        raise Exception("enable_cpu_affinity needs num_workers of at least 1, got 0")
    available = sorted(os.sched_getaffinity(0))
    loader_cores = list(loader_cores or available[:workers])
    if len(loader_cores) != workers:
        raise Exception(f"loader_cores must name one core per worker ({workers}), got {loader_cores}")
    compute_cores = list(compute_cores or [c for c in available if c not in loader_cores] or available)
    engine, threads_before, init_before = loader._engine, get_num_threads(), loader._engine.worker_init_fn

    def pin(worker: int) -> None:
        os.sched_setaffinity(0, [loader_cores[worker]])  # 0 is the calling thread
        if init_before is not None:
            init_before(worker)

    try:
        os.sched_setaffinity(0, compute_cores)
        set_num_threads(len(compute_cores))
        engine.worker_init_fn, loader.cpu_affinity_enabled = pin, True
        if verbose:
            logger.info("%d loader threads on cores %s, computation on %s", workers, loader_cores, compute_cores)
        yield
    finally:
        os.sched_setaffinity(0, available)
        set_num_threads(threads_before)
        engine.worker_init_fn, loader.cpu_affinity_enabled = init_before, False
