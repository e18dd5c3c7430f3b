"""Replacement of DGL's DataLoader."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, overload

import torch
from torch.utils.data import IterableDataset

from ..accelerator.cuda import check_named, sampler_where_wanted
from ..engine import PipelineOptions, parse_lookahead
from ..engine.accelerate import Prepared
from ..engine.engine import Engine, LoaderControls
from ..engine.steps import BatchSource
from ..features.narrow import parse_cache_dtype
from ..graph.graph import Graph
from ..ranking.policies import resolve_policy
from ..sampling import BlockSampler, NeighborSampler
from ..seeds.keys import Ranks, process_ranks
from ..seeds.order import DatasetOrder, EpochPlan, SeedOrder
from ..seeds.torch_order import DatasetStream, UsersOrder
from ..system.budget import Budget, memory_budget
from ..system.checks import as_integer
from ..system.threads import near_cores, starting_workers
from .arguments import (
    batch_device,
    check_devices,
    check_keywords,
    check_parts,
    check_seeds,
    gpu_cache_budget,
    recreated,
    tensor_indices,
)
from .columns import Columns, edge_column
from .convert import core_graph, dgl_graph, restore_structures, structures_of
from .graphbolt import import_dgl
from .native_sources import NodeSource, SubgraphSource
from .sources import EdgeSource, ForeignSource
from .workload import is_edge_sampler, native_sampler, runs_users_code, sharing_sampler, workload_of

dgl = import_dgl()
from dgl.dataloading import DataLoader as _DGLDataLoader  # noqa: E402
from dgl.dataloading.dataloader import CollateWrapper  # noqa: E402
from dgl.utils import get_num_threads, get_numa_nodes_cores, set_num_threads  # noqa: E402

if TYPE_CHECKING:
    from dgl import DGLGraph
    from dgl.dataloading import BlockSampler as DGLBlockSampler
    from dgl.dataloading import ClusterGCNSampler, SAINTSampler, ShaDowKHopSampler
    from torch import Tensor
    from torch.utils.data import Dataset
    from typing_extensions import TypeVar, Unpack

    from ..accelerator import Accelerator
    from ..graph.graph import EdgeType
    from ..sampling.gpu.sampler import DeviceSampler
    from ..sampling.sampler import MiniBatchSampler
    from ..typing import (
        CacheDtype,
        CachePolicy,
        CacheSize,
        DeviceLike,
        Ids,
        ItemOptions,
        MemorySize,
    )
    from .typing import (
        NegativePairBatch,
        NegativePairSampler,
        NodeBatch,
        NodeGraph,
        PairBatch,
        PairSampler,
    )

    S = TypeVar("S", bound=Any, covariant=True, default=DGLBlockSampler)
else:
    # Before Python 3.13 a variable of the standard library has no default.
    from typing import TypeVar

    S = TypeVar("S", covariant=True)

logger = logging.getLogger(__name__)


def _divide(
    allowed: set[int], workers: int, loader_cores: list[int] | None, compute_cores: list[int] | None
) -> tuple[list[int], list[int]]:
    """Cores of the loader's workers, one each, and of the computation: all others, or all where
    none is left."""
    if loader_cores and len(loader_cores) != workers:
        raise Exception(
            f"loader_cores must name one core per worker ({workers}), got {loader_cores}"
        )
    for name, cores in {"loader_cores": loader_cores, "compute_cores": compute_cores}.items():
        if not allowed.issuperset(cores or []):
            raise Exception(
                f"{name} must be among the cores of this process, {sorted(allowed)}; got {cores}"
            )
    cores = near_cores(allowed, workers, get_numa_nodes_cores())
    left = [core for core in cores if core not in (compute_cores or [])]
    loading = list(loader_cores or left[:workers])
    if len(loading) < workers:
        raise Exception(
            f"num_workers must be at most the number of cores to pin them to ({len(loading)}), got "
            f"{workers}"
        )
    return loading, list(compute_cores or [core for core in cores if core not in loading] or cores)


class DataLoader(LoaderControls, Prepared, _DGLDataLoader, Generic[S]):
    """Drop-in for ``dgl.dataloading.DataLoader`` (DGL 2): the same arguments, the same
    batches.

    Our kernels sample for DGL's neighbour, LABOR, ShaDow, Cluster-GCN and GraphSAINT samplers, for
    ``pagraph.dgl.LayerSampler``, and for edge samplers around them, in threads, ahead of the
    training loop. Any other sampler runs its own ``sample``. Graphs may have any number of vertex
    and edge types. Prefetched columns are read through a static cache. Threads replace DGL's worker
    processes, and batches always come in order.

    Args:
        graph: The graph to sample from. It may also be a ``pagraph.Graph``, such as that of a part.
            All its loaders then share one DGL graph (``loader.graph``), and each epoch uses the
            fields that the graph has when the epoch begins.
        indices: Seeds: a tensor, a sequence, a mapping from type, or a dataset whose items are
            whole batches, map-style or iterable (also endless).
        graph_sampler: A DGL sampler, or anything with ``sample(graph, indices)``.
        device: Where batches are delivered. Default: the graph's device.
        use_ddp: Split the indices evenly between the processes of ``torch.distributed``: each gets
            a slice of the indices, or with ``shuffle`` a slice of an order that is the same in all
            processes and new in every epoch.
        ddp_seed: Without a ``seed``, that order is a function of (``ddp_seed``, epoch). (DGL
            ignores it.)
        batch_size: Seeds per batch.
        drop_last: Leave out an incomplete last batch, and indices that cannot be split evenly
            between the processes.
        shuffle: Shuffle the indices in every epoch: by ``seed``, or else with NumPy's global
            generator, as in DGL.
        use_prefetch_thread: Checked as in DGL, but without effect: ``prefetch`` decides.
        use_alternate_streams: Ignored.
        pin_prefetcher: Checked as in DGL, but without effect.
        use_uva: Accepted on machines with CUDA, but without effect: ``sampling_device`` decides.
        gpu_cache: DGL's row counts by column; if ``cache`` is ``"auto"``, their bytes become the
            cache's budget.
        cache: Size of the static feature cache: ``"2GiB"``, bytes, a fraction, ``"auto"``, or 0 for
            none. On a CUDA device it caches columns in host memory; on the CPU, those on disk.
        cache_policy: Ranking of the vertices: ``"auto"``, ``"adaptive"``, ``"degree"`` (PaGraph),
            ``"presample"``, ``"presample:K"``, ``"vip"``, ``"random"``, or a callable, see
            ``pagraph.ranking.policy``.
        cache_dtype: ``"float16"``, ``"bfloat16"`` or ``"int8"``: the form of cached float columns,
            so that 2x or 4x more rows fit. All prefetched rows of columns that the cache may serve
            are rounded, and delivered in the column's dtype. For the errors see
            ``pagraph.features.narrow``. Default: unchanged.
        prefetch: Maximum number of finished batches that wait. 0 makes each batch on request,
            without threads.
        lookahead: Batches of a graph on disk to sample ahead, so that the rows they miss are read
            once and in file order; ``"auto"``, or 0 for none.
        memory: Host memory for caches, graph and batches together, such as ``"4GiB"``; see
            ``memory_plan``. ``"auto"``: free memory, less a reserve. Without effect (and with a
            warning) for a graph that is entirely in memory.
        seed: Makes order and sampling a function of (seed, epoch). Without it, sampling follows
            ``torch.manual_seed`` and the order ``numpy.random.seed``.
        sampling_device: ``"cpu"``, or the CUDA device that is also ``device``, which then samples;
            blocks are the same, bit for bit. That needs a ``NeighborSampler`` with fan-outs of at
            most 128 or -1, without ``prefetch_edge_feats``. The default, ``"auto"``, is the device
            if possible, for a graph of one type without ``prob``; see :attr:`sampling_placement`.
            Batches that exclude edges are sampled on the CPU.
        batch_dependency: Number of batches of an epoch for which a vertex keeps its draws, so that
            successive batches share many rows. 1: independent batches. For neighbour and LABOR
            samplers; DGL's ``LaborSampler`` has its own argument. See
            ``pagraph.sampling.NeighborSampler``.
        **kwargs: ``num_workers`` (threads; 0 lets the loader choose), ``worker_init_fn`` (called in
            each thread), ``generator``, and ``sampler``, the order of the items where ``indices``
            is a map-style dataset. ``persistent_workers``, ``prefetch_factor``, ``timeout``
            and ``multiprocessing_context`` are checked as in torch, but have no effect on threads.

    Raises:
        ValueError, TypeError, AttributeError, AssertionError, DGLError: As in DGL, but earlier.

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
        graph: DGLGraph | Graph,
        indices: Ids | Mapping[str, Ids] | Mapping[EdgeType, Ids] | Dataset[Any],
        graph_sampler: S,
        device: str | torch.device | None = None,
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
        cache: CacheSize = "auto",
        cache_policy: CachePolicy = "auto",
        cache_dtype: CacheDtype = None,
        prefetch: int = 2,
        lookahead: int | str = "auto",
        memory: MemorySize = "auto",
        seed: int | None = None,
        batch_dependency: int = 1,
        sampling_device: DeviceLike = "auto",
        **kwargs: Unpack[ItemOptions],
    ) -> None:
        given = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "kwargs", "__class__")
        }
        keywords: dict[str, Any] = {**kwargs}
        if isinstance(keywords.get("collate_fn"), CollateWrapper):
            batch_size, drop_last = recreated(keywords, indices)
            given.update(batch_size=batch_size, drop_last=drop_last)
        check_keywords(keywords)
        self._core = graph if isinstance(graph, Graph) else None
        graph = given["graph"] = graph if self._core is None else dgl_graph(self._core)
        keywords["num_workers"] = as_integer("num_workers", keywords.get("num_workers", 0))
        self._arguments = given | keywords  # for pickling
        check_parts(graph, graph_sampler)
        self.graph: DGLGraph = graph
        self.indices = indices
        self.graph_sampler: Any = graph_sampler
        self.use_ddp = use_ddp
        self.ddp_seed = ddp_seed
        self.use_uva = use_uva
        self.gpu_cache = gpu_cache
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.cpu_affinity_enabled: bool = False
        self.cache = cache
        self.cache_policy = cache_policy
        self.seed = seed
        self.lookahead = lookahead
        self.memory = memory
        self.cache_dtype: torch.dtype | None = parse_cache_dtype(cache_dtype)
        self.prefetch: int = as_integer("prefetch", prefetch)
        self.device: torch.device = batch_device(device, graph, use_uva)
        self.other_storages: dict[str, Any] = {}
        self.batch_dependency = batch_dependency
        self.sampling_device = sampling_device
        ids = tensor_indices(indices)
        flags = {
            "use_prefetch_thread": use_prefetch_thread,
            "use_alternate_streams": use_alternate_streams,
            "pin_prefetcher": pin_prefetcher,
        }
        self._set_flags(ids, flags, keywords["num_workers"])
        ranks = process_ranks(ddp_seed) if use_ddp else None
        self._order = _order_of(
            ids,
            keywords.get("sampler"),
            batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            generator=keywords.get("generator"),
            ranks=ranks,
        )
        # Refuses bad fan-outs, and a wrong `batch_dependency`, now and not with the first batch.
        recognised = native_sampler(graph, graph_sampler)
        native = recognised if isinstance(self._order, SeedOrder) else None
        shared = sharing_sampler(native, batch_dependency)
        check_seeds(graph, ids, graph_sampler, recognised)
        budget = self._cache_budget()
        self._init_torch(keywords)
        self._init_engine(native, shared, budget)

    def _set_flags(self, ids: Any, flags: Mapping[str, Any], num_workers: int) -> None:
        """Check DGL's rules on devices, and set its prefetch flags, with defaults filled in."""
        checked = check_devices(
            self.graph,
            ids,
            self.device,
            use_uva=self.use_uva,
            num_workers=num_workers,
            flags=flags,
        )
        self.use_prefetch_thread: bool = checked["use_prefetch_thread"]
        self.use_alternate_streams: bool = checked["use_alternate_streams"]
        self.pin_prefetcher: bool = checked["pin_prefetcher"]

    def _cache_budget(self) -> Budget | None:
        """The cache's budget: ``cache``, or if that is "auto", what ``gpu_cache`` asks for.

        None: no cache.
        """
        if self.gpu_cache is None:
            return Budget.parse(self.cache)
        asked = gpu_cache_budget(self.graph, self.gpu_cache, self.device)
        if self.cache == "auto":
            return Budget.parse(asked)
        return Budget.parse(self.cache)

    def _init_torch(self, keywords: Mapping[str, Any]) -> None:
        """Call torch's own constructor, not DGL's: it checks the keywords that mean the same to
        every loader."""
        sample = self.graph_sampler.sample
        order = self._order
        torch.utils.data.DataLoader.__init__(
            self,
            _Order(order) if isinstance(order, SeedOrder) else order.dataset,
            batch_size=None,
            collate_fn=CollateWrapper(sample, self.graph, self.use_uva, self.device),
            pin_memory=self.pin_prefetcher,
            **keywords,
        )

    def _init_engine(
        self,
        native: MiniBatchSampler | None,
        shared: MiniBatchSampler | None,
        budget: Budget | None,
    ) -> None:
        """Wire the parts that make batches.

        ``native`` is our sampler that replaces the sampler, ``shared`` the same with
        ``batch_dependency``.
        """
        self._device_sampler: DeviceSampler | None = None
        # What that samples, and how.
        self._sampled_there: tuple[Graph, NeighborSampler] | None = None
        self._placement = "host"
        lookahead = parse_lookahead(self.lookahead)
        self._options = PipelineOptions(self.num_workers, self.prefetch, lookahead)
        self._engine: Engine[Any] = Engine(
            workload_of(self.graph, self.graph_sampler, self._order, native),
            policy=resolve_policy(self.cache_policy),
            budget=budget,
            options=self._options,
            device=self.device,
            cache_dtype=self.cache_dtype,
            memory=memory_budget(self.memory),
        )
        self._columns = Columns(self.graph, self._engine.fields, self.device)
        self._engine.use(self._source(shared), options=self._epoch_options(shared))

    # Batches are the sampler's. Whether an EdgePredictionSampler of DGL's own function draws
    # negatives is not in its type; see `pagraph.dgl.as_edge_prediction_sampler`.
    @overload
    def __iter__(self: DataLoader[DGLBlockSampler]) -> Iterator[NodeBatch]: ...
    @overload
    def __iter__(
        self: DataLoader[ShaDowKHopSampler],
    ) -> Iterator[tuple[Tensor, Tensor, NodeGraph]]: ...
    @overload
    def __iter__(self: DataLoader[ClusterGCNSampler | SAINTSampler]) -> Iterator[NodeGraph]: ...
    @overload
    def __iter__(self: DataLoader[PairSampler]) -> Iterator[PairBatch]: ...
    @overload
    def __iter__(self: DataLoader[NegativePairSampler]) -> Iterator[NegativePairBatch]: ...
    @overload
    def __iter__(self: DataLoader[Any]) -> Iterator[Any]: ...
    def __iter__(self) -> Iterator[Any]:
        if self._core is not None:
            dgl_graph(self._core)
        # Both may have been set since.
        self._order.shuffle = bool(self.shuffle)
        worker_init_fn = self.worker_init_fn if self.num_workers else None
        native = None
        if isinstance(self._order, SeedOrder):  # A dataset's items mean what the sampler says.
            native = native_sampler(self.graph, self.graph_sampler)
        native = sharing_sampler(native, self.batch_dependency)
        batches = self._engine.start(
            self._source(native),
            options=self._epoch_options(native),
            worker_init_fn=worker_init_fn,
        )
        return self._told(batches)

    def _share_seeds(self, ranks: Ranks) -> None:
        if not self.use_ddp:
            made = DataLoader(**(self._arguments | {"use_ddp": True}))
            vars(self).update(vars(made))

    def _epoch_options(self, native: MiniBatchSampler | None) -> PipelineOptions:
        """Options of a pass; user code stays in the reader's thread, on its RNG, unless workers are
        asked for."""
        if self._options.workers:
            return self._options
        if native is None or runs_users_code(self.graph_sampler):
            return PipelineOptions(0, 0, 0)
        return self._options

    def _source(self, native: MiniBatchSampler | None) -> BatchSource[Any]:
        """Makes the batches of graph and sampler as they are now; by our kernels where there is a
        ``native`` sampler."""
        graph = self.graph
        sampler = self.graph_sampler
        engine = self._engine
        if native is not None:
            edge_wise = is_edge_sampler(sampler)
            inner = sampler.sampler if edge_wise else sampler
            settings = {
                "columns": self._columns,
                "engine": engine,
                "device": self.device,
                "ahead": self._epoch_options(native).threads > 0,
            }
            there = self._samples_there(native, inner, edge_wise)
            source: NodeSource | SubgraphSource
            if isinstance(native, BlockSampler):
                source = NodeSource(graph, inner, native, there, **settings)
            else:
                source = SubgraphSource(graph, inner, native, **settings)
            return EdgeSource(graph, sampler, source) if edge_wise else source
        self._samples_there(None, sampler, False)
        return ForeignSource(
            graph,
            sampler,
            columns=self._columns,
            storages=self.other_storages,
            device=self.device,
            move_seeds=self.use_uva or graph.device.type != "cpu",
            threads=self._options.workers > 0,
            accelerator=engine.accelerator,
        )

    @property
    def sampling_placement(self) -> str:
        """Where the sampled graph is; if a device could sample but does not, also why."""
        return self._placement

    def _samples_there(
        self, native: MiniBatchSampler | None, sampler: Any, edge_wise: bool
    ) -> DeviceSampler | None:
        """What samples on the batches' device; None: the CPU samples.

        ValueError, MissingDependencyError, OutOfMemory: ``sampling_device`` names the device, which
        cannot.
        """
        make = partial(self._sampler_there, native, sampler, edge_wise)
        there, self._placement = sampler_where_wanted(
            self.sampling_device, self.device, self._engine.accelerator, make
        )
        return there

    def _sampler_there(
        self,
        native: MiniBatchSampler | None,
        sampler: Any,
        edge_wise: bool,
        accelerator: Accelerator,
    ) -> DeviceSampler:
        """Samples on the accelerator; ValueError where only the CPU can."""
        needs = "sampling on a device needs "
        if not isinstance(native, NeighborSampler):
            raise ValueError(f"{needs}a NeighborSampler, got {type(sampler).__name__}")
        if sampler.prefetch_edge_feats:
            raise ValueError(
                f"{needs}a sampler without prefetch_edge_feats, got {sampler.prefetch_edge_feats}"
            )
        core = core_graph(self.graph, native.edge_dir)
        if not core.is_homogeneous:
            check_named(self.sampling_device)
        if native.prob is not None:
            check_named(self.sampling_device, "weighted edges")
        wanted = core, native.with_in_edges()
        if self._device_sampler is not None:
            # Graph and sampler may have been changed since the last pass.
            if self._sampled_there == wanted:
                return self._device_sampler
            self._device_sampler.close()
            self._device_sampler = None
        # Imported here: on the CPU nobody needs the device's kernels.
        from ..sampling.gpu.sampler import DeviceSampler

        usual = None
        size = self._order.batch_size
        # The ends of edges differ in number, and so do seeds of each of several types.
        if size and not edge_wise and len(core.node_types) == 1:
            usual = {core.only_node_type: size}, self.graph.idtype
        room = Budget.parse("auto", name="sampling_budget")
        column = partial(edge_column, self.graph)
        self._device_sampler = DeviceSampler(*wanted, accelerator, room, usual, field=column)
        self._sampled_there = wanted
        return self._device_sampler

    def close(self) -> None:
        """See ``LoaderControls.close``; frees the graph on a device, too."""
        super().close()
        if self._device_sampler is not None:
            self._device_sampler.close()
            self._device_sampler = None

    def __len__(self) -> int:
        return len(self._order)

    def __reduce__(self) -> tuple[Any, ...]:
        known = structures_of(self.graph) if isinstance(self.graph, dgl.DGLGraph) else {}
        return _rebuild, (
            type(self),
            # As in the present epoch; what was set since counts from the next one on.
            self._arguments | {"shuffle": self._order.shuffle},
            self.shuffle,
            self.other_storages,
            self._engine.state_of_copy(),
            known,
        )

    def check_worker_number_rationality(self) -> None:
        """Warn of nothing: workers are threads (torch would warn of so many processes)."""

    @contextmanager
    def enable_cpu_affinity(
        self,
        loader_cores: list[int] | None = None,
        compute_cores: list[int] | None = None,
        verbose: bool = True,
    ) -> Iterator[None]:
        """Pin the calling thread, and the threads of epochs that begin inside the context;
        everything is restored at its end.

        Does nothing if batches go to a GPU, or if the system cannot pin threads.

        Raises:
            Exception: There is no worker, the number of loader cores is not the number of workers,
                there are more workers than cores, or this process may not use a core (DGL's own
                type).
        """
        if self.device.type != "cpu":
            yield
            return
        if not self.num_workers:
            raise Exception("enable_cpu_affinity needs num_workers of at least 1, got 0")
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        allowed = os.sched_getaffinity(0)
        threads = get_num_threads()
        loading, computing = _divide(allowed, self.num_workers, loader_cores, compute_cores)
        try:
            os.sched_setaffinity(0, computing)
            set_num_threads(len(computing))
            self.cpu_affinity_enabled = True
            if verbose:
                logger.info(
                    "%d loader threads on cores %s, computation on %s",
                    self.num_workers,
                    loading,
                    computing,
                )
            # 0 is the calling thread
            with starting_workers(self, lambda worker: os.sched_setaffinity(0, [loading[worker]])):
                yield
        finally:
            os.sched_setaffinity(0, allowed)
            set_num_threads(threads)
            self.cpu_affinity_enabled = False


def _order_of(
    ids: Any,
    sampler: Any,
    batch_size: int,
    *,
    shuffle: bool,
    drop_last: bool,
    seed: int | None,
    generator: torch.Generator | None,
    ranks: Ranks | None,
) -> SeedOrder | UsersOrder:
    """The order of seeds, or of a dataset's items, which are whole batches.

    Raises:
        ValueError: There is a ``sampler`` for what is not a map-style dataset.
    """
    is_dataset = not isinstance(ids, torch.Tensor | Mapping)
    is_iterable = isinstance(ids, IterableDataset)
    if sampler is not None and (not is_dataset or is_iterable):
        raise ValueError(
            "sampler is not supported except for indices that are a map-style dataset, whose order "
            f"it sets; got {type(sampler).__name__} for a {type(ids).__name__}"
        )
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "generator": generator}
    if is_iterable or sampler is not None:
        return DatasetStream(ids, sampler, **options)
    if is_dataset:
        return DatasetOrder(ids, ranks=ranks, **options)
    return SeedOrder(ids, batch_size, drop_last=drop_last, ranks=ranks, **options)


class _Order(IterableDataset[Any]):
    """Dataset of a loader of ids: iterating over it gives the batches of indices, unshuffled."""

    def __init__(self, order: SeedOrder) -> None:
        self.order = order

    def __iter__(self) -> Iterator[Any]:
        # As given: looking must neither draw numbers nor advance the shuffle.
        plan = EpochPlan(0, 0, None)
        return (self.order.ticket(plan, i).seeds for i in range(len(self.order)))

    def __len__(self) -> int:
        return len(self.order)


def _rebuild(
    cls: type[DataLoader],
    arguments: dict[str, Any],
    shuffle: bool,
    storages: dict[str, Any],
    state: dict[str, Any] | None,
    structures: dict[str, Graph],
) -> DataLoader:
    """A pickled or copied loader: made anew with the same arguments, in the same epoch."""
    if structures:
        restore_structures(arguments["graph"], structures)
    loader = cls(**arguments)
    loader.other_storages.update(storages)
    if state is not None:
        loader.load_state_dict(state)
    loader.shuffle = shuffle
    return loader
