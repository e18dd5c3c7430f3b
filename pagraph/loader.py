"""The core loader: a graph's mini-batches with their rows, as plain tensors, for any framework."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np
import torch
from torch import Tensor

from .accelerator.cuda import resolve_accelerator, samples_on_device
from .cache.choice import Role
from .engine import PipelineOptions, parse_lookahead
from .engine.accelerate import launched
from .engine.block_source import BlockSource, Column, sizes_of
from .engine.engine import Engine, LoaderControls
from .engine.envelope import are_fixed, trial_tickets
from .engine.program import DeviceProgram
from .features.narrow import parse_cache_dtype
from .graph.conversion import way_of
from .graph.csc import as_ids, check_range, no_ids
from .graph.fields import nearest
from .graph.graph import Graph
from .ranking.policies import resolve_policy
from .ranking.policy import RowType, turned
from .ranking.workload import Sampled, Workload
from .sampling import BlockSampler, EdgeBatches
from .sampling.block_sampler import foreign_sampler
from .sampling.fixed_shapes import Sizes, largest_sizes
from .seeds.keys import check_key, process_ranks
from .seeds.order import SeedOrder
from .system.budget import Budget, memory_budget
from .system.checks import as_integer, as_names

if TYPE_CHECKING:
    from .accelerator import Accelerator
    from .cache.fields import FieldSet
    from .cache.plan import CachePlan, CachePlans
    from .graph.graph import EdgeType
    from .graph.minibatch import HeteroMiniBatch, MiniBatch
    from .sampling.gpu.sampler import DeviceSampler
    from .typing import (
        CacheDtype,
        CachePolicy,
        CacheSize,
        DeviceLike,
        FieldNames,
        Ids,
        MemorySize,
        Pairs,
        TypedSeeds,
    )

__all__ = ["Loader"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", bound=Ids | Pairs | TypedSeeds, covariant=True, default=Ids)
else:
    # Before Python 3.13 a variable of the standard library has no default.
    from typing import TypeVar

    S = TypeVar("S", covariant=True)


class Loader(LoaderControls, Generic[S]):
    """Iterates over mini-batches of a graph; each ``iter()`` is an epoch.

    Seeds, sampling, feature fetch and delivery run as stages, ``prefetch`` batches ahead of the
    reader. With a ``seed``, every batch is bit-identical for any ``num_workers`` and ``prefetch``.
    For a graph with one vertex type and one edge type, a batch is a ``MiniBatch``; else it is a
    ``HeteroMiniBatch``, which holds everything by type. Type checkers, which cannot see the graph,
    assume a ``HeteroMiniBatch`` if ``seeds`` is a mapping.

    Args:
        graph: The graph, with one or several vertex and edge types.
        seeds: Vertex ids, shape ``(n,)``: a list, an array or a tensor of integers, or a mask of
            all vertices; with several vertex types, a mapping from type to any of these. Ids in
            batches have their dtype, int32 or int64. With ``EdgeBatches``: edge ids, or pairs of a
            source and a destination, shape ``(n, 2)``; with several edge types, a mapping from edge
            type.
        sampler: Samples the blocks; one of ``pagraph.sampling``. ``EdgeBatches`` takes edges as
            seeds, and adds their ends and negative pairs as ``batch.links``.
        fields: Vertex fields to read for the input nodes (``batch.features``); with several vertex
            types, a mapping from type to names.
        labels: Vertex fields to read for the output nodes (``batch.labels``), in the same form.
        batch_size: Seeds per batch, over all types together.
        shuffle: Shuffle the seeds in every epoch.
        drop_last: Leave out an incomplete last batch.
        device: Where batches are delivered: ``"cpu"``, or a CUDA device, on which they are then
            made concurrently with the computation. (In tests also an ``Accelerator``.)
        sampling_device: ``"cpu"``, or the CUDA device that is also ``device``, which then samples;
            batches are the same. For ``NeighborSampler``, uniform or by weight, with fan-outs up to
            128 or -1, on one type or several; also for ``EdgeBatches`` without ``exclude``.
        sampling_budget: Memory for the graph on the sampling device, in the same form as ``cache``.
            Arrays that do not fit stay in pinned host memory and are read over the bus. ``"auto"``:
            at most half of the free memory.
        transfer: How uncached rows reach a CUDA device: ``"zero-copy"`` (a kernel reads pinned host
            memory), ``"staging"`` (the CPU gathers them into pinned buffers), or ``"auto"``:
            zero-copy, unless staging is measured to be twice as fast.
        cache: Size of the static feature cache: ``"2GiB"``, bytes, a fraction, ``"auto"``, or 0 for
            none.
        cache_policy: Ranking of the vertices: a name in ``pagraph.ranking.POLICIES`` or a
            ``pagraph.ranking.Policy``.
        cache_dtype: ``"float16"``, ``"bfloat16"`` or ``"int8"``: the form of cached float fields,
            so that 2x or 4x more rows fit. All rows of fields that the cache may serve are rounded
            (see ``pagraph.features.narrow``), and delivered in the field's dtype.
        num_workers: Threads; 0 lets the loader choose.
        prefetch: Maximum number of finished batches that wait. 0 makes each batch on request,
            without threads.
        lookahead: Batches of a graph on disk to sample ahead, so that the rows they miss are read
            once and in file order; ``"auto"``, or 0 for none.
        memory: Host memory for caches, graph and batches together, such as ``"4GiB"``; see
            ``memory_plan``. ``"auto"``: free memory, less a reserve. Without effect (and with a
            warning) for a graph that is entirely in memory.
        shapes: ``"fixed"`` pads batches to one of at most three sizes, nearly always the first, so
            that compiled and recorded steps see the same shapes; for graphs with one vertex type
            and one edge type. See ``envelope``. ``"sampled"`` does not pad.
        seed: Makes order and sampling a function of (seed, epoch). Default: the global generators
            of NumPy and torch are used.
        use_ddp: Split the seeds evenly between the processes of ``torch.distributed``, or of
            Hugging Face accelerate, anew in each epoch. ``False``: the seeds are for this process
            only. Default: ``False``, with a warning if there are several processes. Required under
            accelerate, whose ``Accelerator.prepare`` leaves this loader as it is.

    Raises:
        KeyError, IndexError: The graph does not have a field or a type, or a seed is outside it.
        TypeError: Seeds are not integers, or the sampler is of another kind, such as one of DGL's.
        ValueError: Seeds or names have no types although the graph has several; seeds are pairs
            although edges are to be excluded; or fixed shapes are requested for links or for a
            graph with several types.
        TypeError, ValueError: See ``SeedOrder``, ``PipelineOptions``, ``Budget`` and
            ``DeviceSampler``; also for a device that this machine does not have.
        MissingDependencyError: ``sampling_device`` is a GPU, and Triton is not installed.

    Example:
        >>> from pagraph import Graph, Loader, NeighborSampler
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 3], ndata={"feat": torch.eye(4)})
        >>> seeds = torch.tensor([3, 1])
        >>> loader = Loader(graph, seeds, NeighborSampler([2]), fields=["feat"], batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.input_nodes.tolist(), tuple(batch.features["feat"].shape)
        ([3, 1, 2, 0], (4, 4))
    """

    def __init__(
        self,
        graph: Graph,
        seeds: S,
        sampler: BlockSampler | EdgeBatches,
        *,
        fields: FieldNames = (),
        labels: FieldNames = (),
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        device: DeviceLike = "cpu",
        sampling_device: DeviceLike = "cpu",
        sampling_budget: CacheSize = "auto",
        transfer: str = "auto",
        cache: CacheSize = "auto",
        cache_policy: CachePolicy = "auto",
        cache_dtype: CacheDtype = None,
        num_workers: int = 0,
        prefetch: int = 2,
        lookahead: int | str = "auto",
        memory: MemorySize = "auto",
        shapes: str = "sampled",
        seed: int | None = None,
        use_ddp: bool | None = None,
    ) -> None:
        # For pickling: a loader is made again with what was given, as it was given.
        self._arguments = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        if not isinstance(graph, Graph):
            raise TypeError(f"graph must be a pagraph.Graph, got {way_of(graph)}")
        check_sampler(sampler, graph)
        self.graph = graph
        self.sampler = sampler
        self.device: torch.device
        self.device, accelerator = resolve_accelerator(device)
        room = Budget.parse(sampling_budget, name="sampling_budget")
        samples_there = samples_on_device(sampling_device, self.device, accelerator)
        self.cache_dtype: torch.dtype | None = parse_cache_dtype(cache_dtype)
        # Names are checked before the engine is made, which may reserve memory on a device.
        features = _columns(graph, "fields", fields)
        outputs = _columns(graph, "labels", labels)
        options = PipelineOptions(
            as_integer("num_workers", num_workers, least=0), prefetch, parse_lookahead(lookahead)
        )
        ids = loader_seeds(graph, seeds, sampler)
        fixed = are_fixed(shapes) and _check_fixed(graph, sampler)
        self.use_ddp = use_ddp
        ranks = None
        if use_ddp:
            ranks = launched() or process_ranks(0)
        order = SeedOrder(
            ids, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed, ranks=ranks
        )
        self._engine: Engine[Any] = Engine(
            _workload(graph, sampler, order),
            policy=resolve_policy(cache_policy),
            budget=Budget.parse(cache),
            options=options,
            device=self.device,
            accelerator=accelerator,
            cache_dtype=self.cache_dtype,
            transfer=transfer,
            memory=memory_budget(memory),
        )
        rows = self._engine.fields
        _add_columns(rows, graph, features, Role.INPUT)
        _add_columns(rows, graph, outputs, Role.OUTPUT)
        usual = None
        if isinstance(sampler, BlockSampler):  # the ends of edges differ in number
            usual = _usual_seeds(ids, order.batch_size)
        self._device_sampler: DeviceSampler | None = None
        if accelerator is not None and samples_there:
            self._device_sampler = _device_sampler(graph, sampler, accelerator, room, usual)
        envelope = None
        if fixed:
            size = order.batch_size
            envelope = self._engine.fix_shapes(
                partial(_trials, graph, sampler, order.ids, size, order.shuffle),
                partial(largest_sizes, sampler.hops, graph, size),
            )
        self._source = BlockSource(
            graph,
            sampler,
            rows,
            features,
            outputs,
            self._engine.pools,
            self._device_sampler,
            envelope,
        )
        # What the CPU samples is padded there.
        may_record = graph.is_homogeneous and (samples_there or not fixed)
        if samples_there and usual is not None:  # of several types, all seeds are of one
            may_record = True
        self._program: DeviceProgram | None = None
        if accelerator is not None and may_record and isinstance(sampler, BlockSampler):
            self._program = DeviceProgram(
                self._device_sampler,
                sampler.num_hops,
                rows,
                order.batch_size,
                options.threads + options.prefetch,
                envelope,
            )
        self._engine.use(self._source, program=self._program)

    def __len__(self) -> int:
        return len(self._engine.epochs)

    # What is iterated depends on the graph; a checker of types sees the seeds alone.
    # The first also answers for seeds of a type that an editor cannot see.
    @overload
    def __iter__(self: Loader[Ids | Pairs]) -> Iterator[MiniBatch]: ...
    @overload
    def __iter__(self: Loader[TypedSeeds]) -> Iterator[HeteroMiniBatch]: ...
    def __iter__(self) -> Iterator[Any]:
        if self.use_ddp is None:
            _check_divided()
        return iter(self._engine.epochs)

    @overload
    def batch(self: Loader[Ids | Pairs], seeds: Ids | Pairs, *, key: int = 0) -> MiniBatch: ...
    @overload
    def batch(self: Loader[TypedSeeds], seeds: TypedSeeds, *, key: int = 0) -> HeteroMiniBatch: ...
    def batch(self, seeds: Any, *, key: int = 0) -> Any:
        """Make one batch of any seeds, outside of epochs, for inference services.

        The calling thread makes it, through the loader's cache. Any number of threads may call,
        also while an epoch runs. Equal seeds and keys give equal batches, whatever was requested
        before. The first two requests fill the cache, and others wait for that.

        Args:
            seeds: Seeds, in any form that the loader accepts. They need not be among the loader's
                own seeds. A repeated seed is in the batch twice, with the same neighbours.
            key: Key of the random numbers, at least 0: another key draws other neighbours.

        Raises:
            TypeError, ValueError, KeyError, IndexError: As in the constructor; also if ``key`` is
                not an integer of at least 0, or for more than ``batch_size`` seeds with fixed
                shapes.

        Example:
            >>> from pagraph import Graph, Loader, NeighborSampler
            >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 3])
            >>> loader = Loader(graph, [0], NeighborSampler([2]))
            >>> loader.batch([3]).input_nodes.tolist()
            [3, 2]
        """
        ids = loader_seeds(self.graph, seeds, self.sampler)
        known = self._engine.request_key(check_key(key))
        return self._engine.on_request(self._source, ids, known)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._arguments, self._engine.state_of_copy())

    # A graph of one vertex type has one plan.
    @property
    def cache_plan(self) -> CachePlan | CachePlans:  # type: ignore[override]
        """The static cache's rows and bytes by field, and its expected savings; prints as a table.

        With several vertex types there is one plan for each.
        """
        fields = self._engine.fields
        return fields.plan if len(self.graph.node_types) == 1 else fields.plans

    @property
    def sampling_placement(self) -> str:
        """Where the sampled graph is, such as "host" or "device", and on a device how batches are
        made there."""
        place = "host" if self._device_sampler is None else self._device_sampler.placement
        return place if self._program is None else f"{place}; {self._program}"

    @property
    def transfers(self) -> dict[str, str]:
        """How each field's uncached rows reach the device, and why; empty on the CPU."""
        return {str(key): str(transfer) for key, transfer in self._engine.fields.transfers.items()}

    def close(self) -> None:
        """Unpin host memory and free the graph on a device; also done when the loader is freed.

        Ends the newest epoch, if it is not finished. The loader cannot be used again. Rows cached
        on a device, which other loaders may share, are freed with the last loader that uses them.
        """
        super().close()
        if self._program is not None:
            self._program.close()
        if self._device_sampler is not None:
            self._device_sampler.close()


def _add_columns(fields: FieldSet, graph: Graph, columns: Sequence[Column], role: Role) -> None:
    """Have the fields of a loader's columns read."""
    for key, ntype, name in columns:
        kind = graph.only_node_type if ntype is None else ntype
        # Asked for by each read: a field may be replaced.
        source = partial(graph.node_fields(kind).__getitem__, name)
        fields.add_source(key, source, row_type=kind, role=role)


def _device_sampler(
    graph: Graph,
    sampler: BlockSampler | EdgeBatches,
    accelerator: Accelerator,
    budget: Budget | None,
    usual: tuple[int | Mapping[str, int], torch.dtype] | None,
) -> DeviceSampler:
    """Samples the blocks on a device; ValueError for edges that are left out of them."""
    # Imported here: on the CPU nobody needs the device's kernels.
    from .sampling.gpu.sampler import DeviceSampler

    blocks: Any = sampler
    if isinstance(sampler, EdgeBatches):
        if sampler.exclude:
            raise ValueError(
                "exclude must be False for sampling on a device, got True; use "
                "sampling_device='cpu'"
            )
        blocks = sampler.blocks
    return DeviceSampler(graph, blocks, accelerator, budget, usual)


def _check_fixed(graph: Graph, sampler: BlockSampler | EdgeBatches) -> bool:
    """Raise ValueError for batches that are never padded."""
    if not isinstance(sampler, BlockSampler):
        raise ValueError(
            "shapes='fixed' needs vertices as seeds, got EdgeBatches: the ends of links differ in "
            "number from batch to batch"
        )
    if not graph.is_homogeneous:
        raise ValueError(
            "shapes='fixed' needs a graph with one vertex type and one edge type, got "
            f"{graph.node_types} and {graph.edge_types}"
        )
    return True


def _trials(
    graph: Graph, sampler: Any, seeds: Any, batch_size: int, shuffle: bool, count: int
) -> Iterator[Sizes]:
    """The sizes of trial batches."""
    for ticket in trial_tickets(seeds, batch_size, shuffle, count):
        yield sizes_of(sampler.sample(graph, ticket.seeds, ticket.key))


def _check_divided() -> None:
    """Warn where several processes would each read all seeds; ValueError where accelerate runs
    them, as it divides the seeds of all other loaders."""
    launch = launched()
    if launch is not None and launch.size > 1:
        raise ValueError(
            f"use_ddp must be given where accelerate runs {launch.size} processes: True "
            "divides the seeds between them, False says that they are this process's own; got "
            "None"
        )
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    size = torch.distributed.get_world_size()
    if size > 1:
        warnings.warn(
            f"each of {size} processes reads all seeds of its loader: use_ddp=True divides them, "
            "use_ddp=False says that they are this process's own",
            RuntimeWarning,
            stacklevel=3,
        )


def _rebuild(cls: type[Loader], arguments: Mapping[str, Any], state: dict[str, Any]) -> Loader:
    """A pickled or copied loader: made anew with the same arguments, in the same epoch."""
    loader = cls(**arguments)
    loader.load_state_dict(state)
    return loader


def loader_seeds(
    graph: Graph, seeds: Any, sampler: BlockSampler | EdgeBatches
) -> Tensor | dict[Any, Tensor]:
    """Checked seeds of a loader: by type, or a tensor for a graph with one vertex type and one edge
    type.

    Raises:
        TypeError, ValueError, IndexError: As :func:`seed_ids`, for every type.
        ValueError: They have no types and there are several; pairs, of which to exclude edges.
        KeyError: The graph does not have a type.
    """
    of_links = isinstance(sampler, EdgeBatches)
    sizes: dict[Any, int] = graph.num_nodes_by_type
    if of_links:
        sizes = {etype: graph.csc_of(etype).num_edges for etype in graph.edge_types}
    what = "edge" if of_links else "vertex"
    by_type = seeds
    if not isinstance(seeds, Mapping):
        if len(sizes) > 1:
            raise ValueError(
                f"seeds must be a mapping from {what} type for the types {list(sizes)}, got none"
            )
        by_type = {next(iter(sizes)): seeds}
    checked = {}
    for kind, given in by_type.items():
        name = f"seeds[{kind!r}]" if isinstance(seeds, Mapping) else "seeds"
        if kind not in sizes:
            raise KeyError(f"seeds must be of {what} types among {list(sizes)}, got {kind!r}")
        # Of an edge seeds are either its id, or a pair of vertices that need not be an edge.
        pairs = _pairs(name, given, graph, kind) if of_links else None
        if pairs is not None and sampler.exclude:  # type: ignore[union-attr]
            raise ValueError(
                f"{name} must be ids of edges, of which some are to be excluded, got pairs"
            )
        checked[kind] = seed_ids(given, sizes[kind], name, what) if pairs is None else pairs
    # Batches of one type are plain; an empty mapping has no tensor to give.
    if graph.is_homogeneous and checked:
        return next(iter(checked.values()))
    return checked


def _usual_seeds(
    seeds: Tensor | Mapping[Any, Tensor], batch_size: int
) -> tuple[int | Mapping[str, int], torch.dtype] | None:
    """Number and dtype of the seeds of most batches; None where batches mix types."""
    if isinstance(seeds, torch.Tensor):
        return batch_size, seeds.dtype
    if len(seeds) != 1:
        return None
    ((kind, ids),) = seeds.items()
    return {kind: batch_size}, ids.dtype


def _pairs(name: str, seeds: Any, graph: Graph, edge_type: EdgeType) -> Tensor | None:
    """Seeds that are pairs of a source and a destination; None where they have another number of
    dimensions."""
    table = seeds if isinstance(seeds, Tensor) else np.array(seeds)
    if table.ndim != 2:
        return None
    if table.shape[1] != 2:
        raise ValueError(
            f"{name} must have shape (n, 2) as pairs of a source and a destination, got "
            f"{tuple(table.shape)}"
        )
    ends = [as_ids(name, table[:, side], IndexError) for side in (0, 1)]
    for ids, ntype in zip(ends, (edge_type[0], edge_type[2]), strict=True):
        check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
    return torch.stack(ends, 1)


def seed_ids(seeds: Any, count: int, name: str = "seeds", what: str = "vertex") -> Tensor:
    """Seeds in any form as a 1-D int32 or int64 tensor on their device.

    Raises:
        TypeError: They are no integers, nor a mask.
        ValueError: They are not 1-D, or a mask is not of all ``count`` vertices.
        IndexError: One is outside ``[0, count)``.
    """
    mask = seeds if isinstance(seeds, Tensor) else None
    if not isinstance(seeds, Tensor):
        array = np.asarray(seeds)
        mask = torch.from_numpy(array) if array.dtype == np.bool_ else None
    if mask is not None and mask.dtype == torch.bool:
        if mask.shape != (count,):
            every = {"vertex": "vertices", "edge": "edges"}[what]
            raise ValueError(
                f"{name} must have shape ({count},) as a mask of all {every}, got "
                f"{tuple(mask.shape)}"
            )
        return mask.nonzero().squeeze(1)
    ids = as_ids(name, seeds, IndexError)
    check_range(name, ids, count, IndexError)
    return ids


def _columns(graph: Graph, argument: str, names: Any) -> list[Column]:
    """The fields of an argument of names, or a mapping from vertex type to them; see ``Loader`` for
    what it raises."""
    if isinstance(names, Mapping):
        by_type = {
            ntype: as_names(f"{argument}[{ntype!r}]", of_type) for ntype, of_type in names.items()
        }
    else:
        given = as_names(argument, names)
        if given and len(graph.node_types) > 1:
            raise ValueError(
                f"{argument} must be a mapping from vertex type for the types {graph.node_types}, "
                f"got {names!r}"
            )
        by_type = {graph.node_types[0]: given}
    columns = []
    for ntype, of_type in by_type.items():
        if ntype not in graph.node_types:
            raise KeyError(
                f"{argument} must be of vertex types among {graph.node_types}, got {ntype!r}"
            )
        for name in of_type:
            if name not in (have := graph.node_fields(ntype)):
                of = "" if len(graph.node_types) == 1 else f" of {ntype!r}"
                near = nearest(name, have)
                raise KeyError(f"{argument} must be among {sorted(have)}{of}, got {name!r}{near}")
            key = name if len(graph.node_types) == 1 else f"{ntype}/{name}"
            columns.append(Column(key, None if graph.is_homogeneous else ntype, name))
    return columns


def check_sampler(sampler: Any, graph: Graph) -> None:
    """Raise TypeError for what makes no blocks, and name the loader that takes it; ValueError for
    other edges."""
    if isinstance(sampler, EdgeBatches):
        sampler.check_reverse(graph)
        if sampler.ends is not None:
            raise ValueError("sampler.ends must be None: the edges are those of the loader's graph")
        sampler = sampler.blocks
    if isinstance(sampler, BlockSampler):
        return
    advice = foreign_sampler(sampler, "pagraph") or "see pagraph.sampling"
    kind = f"the class {sampler.__name__}" if isinstance(sampler, type) else type(sampler).__name__
    raise TypeError(
        f"sampler must be a pagraph sampler of blocks, such as NeighborSampler, got {kind}: "
        f"{advice}"
    )


def _workload(graph: Graph, sampler: BlockSampler | EdgeBatches, order: SeedOrder) -> Workload:
    """The loader's workload, as cache policies see it."""
    known = replace(sampler, ends=graph) if isinstance(sampler, EdgeBatches) else sampler
    edge_dir = known.hops.edge_dir
    # The seeds of links are edges: how often each end is read as one is unknown.
    are_vertices = known.seeds_are_vertices
    seed_reads = partial(_seed_reads, graph, order) if are_vertices else _unknown_reads
    return Workload(
        order,
        {ntype: graph.num_nodes_of(ntype) for ntype in graph.node_types},
        known,
        lambda: Sampled(turned(graph, edge_dir), order.ids, known.with_in_edges()),
        source=graph,
        edge_dir=edge_dir,
        seeds=order,
        seed_reads=seed_reads,
    )


def _unknown_reads(row_type: RowType) -> None:
    """In place of :func:`_seed_reads`."""


def _seed_reads(graph: Graph, order: SeedOrder, row_type: RowType) -> Tensor:
    """Counts of each vertex of a type as a seed in an epoch."""
    assert isinstance(row_type, str)
    ids = order.ids if isinstance(order.ids, Mapping) else {graph.only_node_type: order.ids}
    return torch.bincount(
        ids.get(row_type, no_ids()).long().cpu(), minlength=graph.num_nodes_of(row_type)
    )
