"""What PyG's loaders do to their worker processes, for worker threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..system.threads import near_cores, starting_workers
from .package import import_pyg

import_pyg()
from torch_geometric.loader.mixin import get_numa_nodes_cores  # noqa: E402

__all__ = ["ThreadWorkers"]

logger = logging.getLogger(__name__)


class ThreadWorkers:
    """The context managers of PyG's ``AffinityMixin``, ``MultithreadingMixin`` and ``LogMemoryMixin``."""

    num_workers: int
    worker_init_fn: Any

    @contextmanager
    def enable_cpu_affinity(self, loader_cores: Sequence[int | Sequence[int]] | None = None) -> Iterator[None]:
        """Pin the threads of passes that begin inside to cores; does nothing where the system cannot.

        Args:
            loader_cores: For each worker a core or several. Default: one each, of the first NUMA node.

        Raises:
            ValueError: There is no worker, the number of cores is not that of workers, there are fewer cores than
                workers, or a core is not this process's to use.
        """
        if self.num_workers < 1:
            raise ValueError(f"'enable_cpu_affinity' should be used with at least one worker (got {self.num_workers})")
        if loader_cores and len(loader_cores) != self.num_workers:
            raise ValueError(
                f"The number of loader cores (got {len(loader_cores)}) in 'enable_cpu_affinity' should match with the "
                f"number of workers (got {self.num_workers})"
            )
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        cores = self._cores(loader_cores)
        self.loader_cores = list(loader_cores) if loader_cores else [core for (core,) in cores]
        logger.debug("%d loader threads on cores %s", self.num_workers, cores)
        with starting_workers(self, lambda worker: os.sched_setaffinity(0, cores[worker])):  # 0 is the calling thread
            yield

    def _cores(self, loader_cores: Sequence[int | Sequence[int]] | None) -> list[list[int]]:
        allowed = os.sched_getaffinity(0)
        if not loader_cores:
            near = near_cores(allowed, self.num_workers, get_numa_nodes_cores())
            if len(near) < self.num_workers:
                raise ValueError(f"More workers (got {self.num_workers}) than available cores (got {len(near)})")
            return [[core] for core in near[: self.num_workers]]
        cores = [[core] if isinstance(core, int) else list(core) for core in loader_cores]
        for these in cores:
            if not these or not allowed.issuperset(these):
                raise ValueError(
                    f"loader_cores must be among the cores of this process, {sorted(allowed)}; got {loader_cores}"
                )
        return cores

    @contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:
        """Checks its argument as PyG does. A batch takes one thread; ``num_workers`` says how many are made at a time.

        Raises:
            ValueError: There is no worker, or ``worker_threads`` is more than torch has.
        """
        if self.num_workers < 1:
            raise ValueError(
                f"'enable_multithreading' needs to be performed with at least one worker (got {self.num_workers})"
            )
        if worker_threads is not None and worker_threads > torch.get_num_threads():
            raise ValueError(
                "'worker_threads' should be smaller than the total available number of threads "
                f"{torch.get_num_threads()} (got {worker_threads})"
            )
        yield

    @contextmanager
    def enable_memory_log(self) -> Iterator[None]:
        """Log, as debugging, how much memory the process has when a worker begins."""
        with starting_workers(self, _log_memory):
            yield


def _log_memory(worker: int) -> None:
    import psutil  # PyG needs it

    memory = psutil.Process().memory_info().rss / 2**20
    logger.debug("worker %d of process %d: %.2f MiB", worker, os.getpid(), memory)
