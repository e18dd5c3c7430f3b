"""The core loader: a graph's mini-batches with their rows, as plain tensors, for any framework."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .accelerator import StagingRing
from .batch_source import FieldNames, HostSource
from .buffers import BufferPools
from .cache.auto import Learned, refills
from .cache.budget import Budget
from .cache.direction import turned
from .cache.policies import ranks_all, resolve_policy
from .cache.policy import Policy, Ranking, apply_policy
from .cache.sharing import share_of
from .cache.stats import CacheStats
from .csc import check_range
from .device import resolve_accelerator, samples_on_device
from .device_source import DeviceSource
from .features.candidate import Role, RowType
from .features.fields import FieldSet
from .features.first_epoch import FirstEpoch
from .features.precision import parse_cache_dtype
from .graph import Graph
from .pipeline import EpochControls, Epochs, LoaderStats, PipelineOptions, Steps
from .sampling.accesses import most_repeats
from .sampling.seeds import SeedOrder

if TYPE_CHECKING:
    from .accelerator import Accelerator, Event
    from .cache.plan import CachePlan
    from .minibatch import MiniBatch
    from .sampling import NeighborSampler
    from .sampling.device_sampler import DeviceSampler

__all__ = ["Loader"]

_BLOCK_SLOT_BYTES = 2 << 20


class Loader(EpochControls):
    """Iterates over mini-batches of a homogeneous graph; each ``iter()`` is an epoch.

    Seeds, sampling, feature fetch and delivery run as stages, ``prefetch`` batches ahead of the reader. For one
    ``seed`` every batch is bit-identical whatever ``num_workers`` and ``prefetch`` are.

    Args:
        graph: A homogeneous graph.
        seeds: Vertex ids, shape ``(n,)``, int32 or int64; batches have their dtype.
        sampler: Draws the blocks.
        fields: Vertex fields to read for the input nodes (``batch.features``).
        labels: Vertex fields to read for the output nodes (``batch.labels``).
        batch_size: Seeds a batch.
        shuffle: New order every epoch.
        drop_last: Leave out an incomplete last batch.
        device: Where batches are delivered: ``"cpu"``, or a CUDA device, on which they are then made beside the
            computation. (For tests also an ``Accelerator``.)
        sampling_device: ``"cpu"``, or the CUDA device that is also ``device``: it samples itself, with the same result.
            For uniform sampling with fan-outs up to 128 and -1.
        sampling_budget: What the graph may take on the sampling device, as ``cache`` is given: what does not fit stays
            in host memory, pinned, and is read over the bus. ``"auto"``: at most half of what is free.
        transfer: How rows that are not cached reach a CUDA device: ``"zero-copy"`` (a kernel reads pinned host memory),
            ``"staging"`` (the CPU gathers them into pinned buffers), or ``"auto"``: the faster one, as measured.
        cache: What the static feature cache may take: ``"2GiB"``, bytes, a fraction, ``"auto"``, or 0 for none.
        cache_policy: Ranks the vertices: ``"auto"``, or see ``pagraph.cache.policies``; or a callable, see
            ``pagraph.cache.policy``.
        cache_dtype: ``"float16"`` or ``"bfloat16"``: float32 and float64 rows are cached so, twice as many. All rows of
            fields that a cache may serve are delivered rounded, in the field's dtype; see
            ``pagraph.features.precision`` for how much that changes. Default: as they are.
        num_workers: Threads; 0 lets the loader choose.
        prefetch: Finished batches that may wait; 0 prepares each when it is asked for, without threads.
        seed: Makes order and sampling reproducible. Default: the global generators of NumPy and torch.

    Raises:
        KeyError: A field that the graph does not have.
        IndexError: A seed outside the graph.
        TypeError, ValueError: See ``SeedOrder``, ``PipelineOptions``, ``Budget`` and ``DeviceSampler``; a device that
            this machine does not have.
        MissingDependencyError: ``sampling_device`` is a GPU, and Triton is not installed.

    Example:
        >>> from pagraph import Graph, Loader, NeighborSampler
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 3], ndata={"feat": torch.eye(4)})
        >>> loader = Loader(graph, torch.tensor([3, 1]), NeighborSampler([2]), fields=["feat"], batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.input_nodes.tolist(), tuple(batch.features["feat"].shape)
        ([3, 1, 2, 0], (4, 4))
    """

    def __init__(
        self,
        graph: Graph,
        seeds: Tensor,
        sampler: NeighborSampler,
        *,
        fields: Sequence[str] = (),
        labels: Sequence[str] = (),
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        device: str | torch.device | Accelerator = "cpu",
        sampling_device: str | torch.device | Accelerator = "cpu",
        sampling_budget: Any = "auto",
        transfer: str = "auto",
        cache: Any = "auto",
        cache_policy: str | Policy = "auto",
        cache_dtype: str | torch.dtype | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        seed: int | None = None,
    ) -> None:
        if not isinstance(graph, Graph):
            raise TypeError(f"graph must be a pagraph.Graph (see its from_pyg, from_dgl), got {type(graph).__name__}")
        self.graph, self.sampler = graph, sampler
        self.device, accelerator = resolve_accelerator(device)
        room = Budget.parse(sampling_budget, name="sampling_budget")
        samples_there = samples_on_device(sampling_device, self.device, accelerator)
        self.cache_dtype = parse_cache_dtype(cache_dtype)
        _check_fields(graph, [*fields, *labels])
        _check_seeds(graph, seeds)
        options = PipelineOptions(num_workers, prefetch)
        order = SeedOrder(seeds, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        policy = resolve_policy(cache_policy)
        pools = BufferPools(options.max_batches)
        self._fields = FieldSet(
            {},
            device=self.device,
            budget=Budget.parse(cache),
            rank=partial(_rank, policy, graph, sampler, order),
            pool_of=pools,
            num_nodes=graph.num_nodes,
            outputs=partial(_seed_reads, graph, order),
            ranks_all=ranks_all(policy),
            first_epoch=_first_epoch(graph, sampler, order) if refills(policy, sampler) else None,
            share=share_of(policy, graph=graph, edge_dir=sampler.edge_dir, sampler=sampler, order=order),
            cache_dtype=self.cache_dtype,
            accelerator=accelerator,
            transfer=transfer,
        )
        for names, role in ((fields, Role.INPUT), (labels, Role.OUTPUT)):
            for name in names:
                self._fields.add_source(name, partial(graph.ndata.__getitem__, name), role=role)
        self.stats = LoaderStats(partial(_counters, self._fields), accelerator)
        named = FieldNames(tuple(fields), tuple(labels))
        self._device_sampler: DeviceSampler | None = None
        if accelerator is not None and samples_there:
            self._device_sampler = _device_sampler(graph, sampler, accelerator, room)
        source: HostSource | DeviceSource = HostSource(graph, sampler, self._fields, named, pools)
        if accelerator is not None:
            ring = StagingRing(accelerator, slot_bytes=_BLOCK_SLOT_BYTES)
            given = (graph, sampler, self._fields, named, pools, accelerator, ring, self._device_sampler)
            source = DeviceSource(*given)
        steps: Steps[MiniBatch] = Steps(
            source.prepare,
            source.deliver,
            before_first_batch=self._fields.prepare,
            after_first_step=self._fields.after_first_step,
            mark=None if accelerator is None else partial(_mark, accelerator),
            settle=None if accelerator is None else self._fields.settle,
            shrink=None if accelerator is None else self._fields.shrink,
        )
        self._epochs = Epochs(order, steps, options=options, stats=self.stats)
        self._fields.observe(self._epochs.tracing.read)

    def __len__(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[MiniBatch]:
        return iter(self._epochs)

    @property
    def cache_plan(self) -> CachePlan:
        """What the static cache holds: rows, bytes and what they should save, by field; prints as a table."""
        return self._fields.plan

    @property
    def sampling_placement(self) -> str:
        """Where the graph is that is sampled, such as "host" or "device"."""
        return "host" if self._device_sampler is None else self._device_sampler.placement

    @property
    def transfers(self) -> dict[str, str]:
        """How the rows of each field that are not cached reach the device, and why; empty on the CPU."""
        return {str(key): str(transfer) for key, transfer in self._fields.transfers.items()}

    def close(self) -> None:
        """Unpin host memory and free the graph on a device; also done when nobody has the loader any more.

        Ends the newest pass, if it is not over. The loader cannot be used again. Rows cached on a device, which other
        loaders may use too, are freed when nobody has it any more.
        """
        self._epochs.close()
        self._fields.close()
        if self._device_sampler is not None:
            self._device_sampler.close()

    def invalidate_cache(self) -> None:
        """Forget cached rows: for changes nobody can see (writes through NumPy views, by other processes)."""
        self._fields.invalidate()


def _rank(
    policy: Policy, graph: Graph, sampler: NeighborSampler, order: SeedOrder, types: Collection[RowType]
) -> Mapping[RowType, Ranking]:
    """All vertices by the policy, in the direction that is sampled."""
    graph, sampler = turned(graph, sampler.edge_dir), sampler.with_in_edges()
    settings: dict[str, Any] = {"batch_size": order.batch_size, "shuffle": order.shuffle}
    ranked = apply_policy(policy, graph, order.ids, sampler, order.seed or 0, **settings)
    return {t: ranked[t] for t in types if isinstance(t, str)}


def _first_epoch(graph: Graph, sampler: NeighborSampler, order: SeedOrder) -> FirstEpoch:
    """Ranks by what was read."""
    return FirstEpoch(
        {graph.only_node_type: graph.num_nodes},
        num_hops=sampler.num_hops,
        batches=len(order),
        repeats=most_repeats(order),
        rank=lambda counts: partial(_rank, Learned(counts, len(order)), graph, sampler, order),
    )


def _seed_reads(graph: Graph, order: SeedOrder, row_type: RowType) -> Tensor:
    """How often each vertex is a seed in an epoch."""
    ids = order.ids
    assert isinstance(ids, Tensor)
    return torch.bincount(ids.long().cpu(), minlength=graph.num_nodes)


def _device_sampler(
    graph: Graph, sampler: NeighborSampler, accelerator: Accelerator, budget: Budget | None
) -> DeviceSampler:
    from .sampling.device_sampler import DeviceSampler  # a module that nobody needs on the CPU

    return DeviceSampler(graph, sampler, accelerator, budget)


def _mark(accelerator: Accelerator) -> Event:
    return accelerator.current_stream.record()


def _counters(fields: FieldSet) -> CacheStats:
    return fields.counters


def _check_fields(graph: Graph, names: list[str]) -> None:
    for name in names:
        if name not in graph.ndata:
            raise KeyError(f"fields must be among {sorted(graph.ndata)}, got {name!r}")


def _check_seeds(graph: Graph, seeds: Any) -> None:
    if not isinstance(seeds, Tensor) or seeds.dtype not in (torch.int32, torch.int64):
        got = seeds.dtype if isinstance(seeds, Tensor) else type(seeds).__name__
        raise TypeError(f"seeds must be an int32 or int64 tensor, got {got}")
    if seeds.dim() != 1:
        raise ValueError(f"seeds must be 1-D, got shape {tuple(seeds.shape)}")
    check_range("seeds", seeds, graph.num_nodes, IndexError)
