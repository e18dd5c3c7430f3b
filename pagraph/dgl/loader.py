"""DataLoader: takes what ``dgl.dataloading.DataLoader`` takes, yields what it yields, faster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..buffers import BufferPool
from ..cache.budget import Budget
from ..cache.policy import resolve_policy
from ..pipeline import Epochs, LoaderStats, PipelineOptions, Steps
from ..sampling import SamplingPools
from ..sampling.seeds import DatasetOrder
from .affinity import cpu_affinity
from .arguments import (
    batch_device,
    check_devices,
    check_keywords,
    check_native_seeds,
    make_order,
    tensor_indices,
)
from .columns import Columns
from .convert import core_graph
from .graphbolt import import_dgl
from .sources import ForeignSource, NativeSource, native_sampler

dgl = import_dgl()
from dgl.dataloading import DataLoader as _DGLDataLoader  # noqa: E402
from dgl.dataloading.dataloader import CollateWrapper  # noqa: E402

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..cache.plan import CachePlan

__all__ = ["DataLoader"]


class DataLoader(_DGLDataLoader):
    """Drop-in for ``dgl.dataloading.DataLoader`` (DGL 1.1 to 2.x): the same arguments, the same batches.

    ``NeighborSampler`` and ``MultiLayerFullNeighborSampler`` objects on homogeneous graphs are run by our kernels, in
    threads, ahead of the training loop; any other sampler runs its own ``sample``. Prefetched columns are read through
    a static cache. Threads take the place of DGL's worker processes: batches always come in order.

    Args:
        graph: The graph to sample from.
        indices: Seeds: a tensor, a sequence, a mapping from type, or a dataset whose items are whole batches.
        graph_sampler: A DGL sampler, or anything with ``sample(graph, indices)``.
        device: Where batches are delivered. Default: the graph's device.
        use_ddp: Hand each process of ``torch.distributed`` its own, equally long part of the indices.
        ddp_seed: Accepted; ignored, as by DGL.
        batch_size: Seeds a batch.
        drop_last: Leave out an incomplete last batch.
        shuffle: New order every epoch; from ``seed``, else from NumPy's global generator, as DGL does it.
        use_prefetch_thread: Accepted and checked as by DGL; ``prefetch`` decides.
        use_alternate_streams: Accepted.
        pin_prefetcher: Accepted and checked as by DGL.
        use_uva: Accepted on machines with CUDA; sampling stays on the CPU.
        gpu_cache: DGL's row counts by column; their bytes become the cache's budget where ``cache`` is not given.
        cache: What the static feature cache may take: ``"2GiB"``, bytes, a fraction, ``"auto"``, or 0 for none.
            On a CUDA device it holds columns that live in host memory; on the CPU those that lie on disk.
        cache_policy: Ranks the vertices: ``"degree"`` (PaGraph), or a callable as ``pagraph.cache.policy`` says.
        prefetch: Finished batches that may wait. 0 prepares each batch when it is asked for, without threads.
        seed: Makes the order and the sampling a function of (seed, epoch). Without it, the sampling follows
            ``torch.manual_seed`` and the order ``numpy.random.seed``.
        **kwargs: ``num_workers`` (threads; 0 lets the loader choose), ``worker_init_fn`` (called in each thread),
            ``generator``; ``persistent_workers``, ``prefetch_factor``, ``timeout`` and ``multiprocessing_context`` are
            checked as by torch and mean nothing to threads.

    Raises:
        ValueError, TypeError, AttributeError, AssertionError, DGLError: as DGL's loader, earlier.

    Example:
        >>> import pagraph.dgl, dgl, torch
        >>> graph = dgl.graph(([0, 1, 2], [1, 2, 3]))
        >>> sampler = dgl.dataloading.NeighborSampler([2, 2])
        >>> loader = pagraph.dgl.DataLoader(graph, torch.arange(4), sampler, batch_size=2)
        >>> [output_nodes.tolist() for input_nodes, output_nodes, blocks in loader]
        [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        graph: Any,
        indices: Any,
        graph_sampler: Any,
        device: Any = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        batch_size: int = 1,
        drop_last: bool = False,
        shuffle: bool = False,
        use_prefetch_thread: bool | None = None,
        use_alternate_streams: bool | None = None,
        pin_prefetcher: bool | None = None,
        use_uva: bool = False,
        gpu_cache: Mapping[str, Mapping[str, int]] | None = None,
        *,
        cache: Any = "auto",
        cache_policy: str | Callable[..., Tensor] = "degree",
        prefetch: int = 2,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_keywords(kwargs)
        if isinstance(graph, dgl.distributed.DistGraph):
            raise TypeError("graph must not be a DistGraph; use dgl.dataloading.DistNodeDataLoader for those")
        self.graph, self.indices, self.graph_sampler = graph, indices, graph_sampler
        self.device = batch_device(device, graph, use_uva)
        ids = tensor_indices(indices)
        flags = check_devices(
            graph,
            ids,
            self.device,
            use_uva=use_uva,
            num_workers=kwargs.get("num_workers", 0),
            flags={
                "use_prefetch_thread": use_prefetch_thread,
                "use_alternate_streams": use_alternate_streams,
                "pin_prefetcher": pin_prefetcher,
            },
        )
        self.use_ddp, self.ddp_seed, self.use_uva = use_ddp, ddp_seed, use_uva
        self.shuffle, self.drop_last = shuffle, drop_last
        for name, value in flags.items():
            setattr(self, name, value)
        self.cpu_affinity_enabled = False
        self.other_storages: dict[str, Any] = {}
        order = make_order(
            ids,
            batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            use_ddp=use_ddp,
            seed=seed,
            generator=kwargs.get("generator"),
        )
        if native_sampler(graph, graph_sampler) is not None and isinstance(ids, Tensor):
            check_native_seeds(graph, ids)
        budget = Budget.parse(cache if gpu_cache is None else _gpu_cache_budget(graph, gpu_cache, self.device))
        self._policy = resolve_policy(cache_policy)
        # torch's own constructor, not DGL's: it checks the keywords that mean the same to every loader.
        torch.utils.data.DataLoader.__init__(
            self,
            _Order(order),
            batch_size=None,
            collate_fn=CollateWrapper(getattr(graph_sampler, "sample", None), graph, use_uva, self.device),
            pin_memory=flags["pin_prefetcher"],
            **kwargs,
        )
        self._engine = _Engine(self, order, budget, prefetch)

    def __iter__(self) -> Iterator[Any]:
        return self._engine.start()

    def __len__(self) -> int:
        return len(self._engine.order)

    @property
    def stats(self) -> LoaderStats:
        """Rows, bytes, hits and seconds by stage, tier and field, for each epoch and in total; prints as a table."""
        return self._engine.stats

    @property
    def cache_plan(self) -> list[CachePlan]:
        """What the static cache holds: rows and bytes by field."""
        return self._engine.columns.plans

    def invalidate_cache(self) -> None:
        """Forget cached rows: for changes nobody can see (writes through NumPy views, by other processes)."""
        self._engine.columns.invalidate()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: pass it to ``load_state_dict`` to go on with the batch after the last one."""
        return self._engine.epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict()``, of this loader or of one made with the same arguments."""
        self._engine.epochs.load_state_dict(state)

    def check_worker_number_rationality(self) -> None:
        """Nothing to warn of: workers are threads (torch would warn of that many processes)."""

    def enable_cpu_affinity(
        self,
        loader_cores: list[int] | None = None,
        compute_cores: list[int] | None = None,
        verbose: bool = True,
    ) -> AbstractContextManager[None]:
        """Pin the loader's threads and the computation to different cores, as DGL's loader does on a CPU."""
        return cpu_affinity(self, loader_cores, compute_cores, verbose)


class _Order(torch.utils.data.IterableDataset[Any]):
    """What ``loader.dataset`` is: iterating over it gives the batches of indices."""

    def __init__(self, order: Any) -> None:
        self.order = order

    def __iter__(self) -> Iterator[Any]:
        plan = self.order.plan(0)
        return (self.order.ticket(plan, i).seeds for i in range(len(self.order)))

    def __len__(self) -> int:
        return len(self.order)


class _Engine:
    """What works behind a loader; made once, and its source anew where graph or sampler were changed."""

    def __init__(self, loader: DataLoader, order: Any, budget: Budget | None, prefetch: int) -> None:
        self._loader_options = PipelineOptions(loader.num_workers, prefetch)
        self._graph, self._sampler, self._device = loader.graph, loader.graph_sampler, loader.device
        self._storages = loader.other_storages
        self._seeds_native = not isinstance(order, DatasetOrder) and not isinstance(loader.indices, Mapping)
        self._move_seeds = loader.use_uva or self._graph.device.type != "cpu"
        self._worker_init_fn = loader.worker_init_fn if loader.num_workers else None
        self._block_pools = SamplingPools(self._loader_options.max_batches)
        self._pools: dict[str, BufferPool] = {}
        self._pools_lock = threading.Lock()
        self.order = order
        self.columns = Columns(
            self._graph,
            self._device,
            budget=budget,
            rank=lambda: self._rank(loader._policy),
            pool_of=self._pool_of,
        )
        self.stats = LoaderStats(self.columns.counters)
        self.epochs: Epochs[Any] = Epochs(order, self._steps(), options=self._options(), stats=self.stats)
        self._prepared = False

    def start(self) -> Iterator[Any]:
        """Begin an epoch, with graph and sampler as they are now."""
        self.epochs.steps, self.epochs.options = self._steps(), self._options()
        if not self._prepared and len(self.order):
            self.columns.prepare()
            self._prepared = True
        return iter(self.epochs)

    def _native(self) -> Any:
        return native_sampler(self._graph, self._sampler) if self._seeds_native else None

    def _options(self) -> PipelineOptions:
        """A user's own sampler stays in the reader's thread, with its random state, unless workers are asked for."""
        if self._native() is None and self._loader_options.workers == 0:
            return PipelineOptions(0, 0)
        return self._loader_options

    def _steps(self) -> Steps[Any]:
        sampler = self._native()
        source: NativeSource | ForeignSource
        if sampler is not None:
            source = NativeSource(
                self._graph,
                self._sampler,
                sampler,
                columns=self.columns,
                pools=self._block_pools,
                device=self._device,
            )
        else:
            if isinstance(self._graph, dgl.DGLGraph) and self._loader_options.workers:
                self._graph.create_formats_()
            source = ForeignSource(
                self._graph,
                self._sampler,
                columns=self.columns,
                storages=self._storages,
                device=self._device,
                move_seeds=self._move_seeds,
            )
        return Steps(
            source.prepare,
            source.deliver,
            draw=source.draw,
            on_start=self._worker_init_fn,
            after_first_step=self.columns.after_first_step,
        )

    def _rank(self, policy: Callable[..., Tensor]) -> Tensor:
        edge_dir = getattr(self._sampler, "edge_dir", "in")
        core = core_graph(self._graph, edge_dir)
        seeds = self._loader_seeds()
        return policy(core, seeds, self._native(), self.order.seed or 0)

    def _loader_seeds(self) -> Tensor:
        ids = getattr(self.order, "_ids", None)
        return ids if ids is not None else torch.empty(0, dtype=torch.int64)

    def _pool_of(self, key: str) -> BufferPool:
        with self._pools_lock:
            return self._pools.setdefault(key, BufferPool(self._loader_options.max_batches))


def _gpu_cache_budget(graph: Any, gpu_cache: Any, device: torch.device) -> int:
    """DGL's ``gpu_cache`` rows as bytes of the vertex columns it names.

    Raises:
        AssertionError: It is not a mapping (DGL's own type).
        ValueError: It asks for rows on a device that is not CUDA.
    """
    if not isinstance(gpu_cache, Mapping):
        raise AssertionError(f"gpu_cache must be a dict of dicts of row counts, got {type(gpu_cache).__name__}")
    rows = dict(gpu_cache.get("node", {}))
    if any(rows.values()) and device.type != "cuda":
        raise ValueError(f"gpu_cache needs a CUDA device, batches are delivered on {device}")
    columns = graph._node_frames[0]._columns
    return sum(n * columns[name].data[:1].nbytes for name, n in rows.items() if name in columns)
