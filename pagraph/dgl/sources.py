"""How batches come about: by our kernels for DGL's neighbour samplers, by the sampler's own code for all others."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..buffers import BufferPools
from ..sampling import NeighborSampler
from .blocks import BlockBuilder
from .columns import ColumnRows, Columns, awaited
from .convert import core_graph
from .graphbolt import import_dgl
from .lazy import LazyColumn, find_lazy, map_leaves, materialise, parent_columns, parent_storages, repoint

dgl = import_dgl()
from dgl.dataloading import BlockSampler  # noqa: E402
from dgl.frame import LazyFeature  # noqa: E402

if TYPE_CHECKING:
    from ..graph import EdgeType
    from ..minibatch import MiniBatch
    from ..pipeline.stats import EpochRecorder
    from ..sampling.seeds import Ticket

__all__ = ["ForeignSource", "NativeSource", "native_sampler"]

_sampler_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_sampler_locks_guard = threading.Lock()


def native_sampler(graph: Any, sampler: Any) -> NeighborSampler | None:
    """Our sampler with the same meaning as a DGL sampler object, or None where only its own code will do.

    Recognised are ``dgl.dataloading.NeighborSampler`` and ``MultiLayerFullNeighborSampler``, and subclasses that change
    nothing about sampling, on homogeneous graphs in CPU memory, without edge probabilities.

    Raises:
        ValueError: A fan-out is 0 or below -1.
    """
    base = dgl.dataloading.NeighborSampler
    if not isinstance(graph, dgl.DGLGraph) or not isinstance(sampler, base) or graph.device.type != "cpu":
        return None
    if not graph.is_homogeneous or graph.is_block or sampler.prob is not None:
        return None
    own = {"sample": BlockSampler, "sample_blocks": base, "assign_lazy_features": BlockSampler}
    for name, owner in own.items():
        if getattr(type(sampler), name) is not getattr(owner, name) or name in vars(sampler):
            return None
    if sampler.output_device is not None and torch.device(sampler.output_device).type != "cpu":
        return None
    fanouts = [_single_fanout(fanout, graph.canonical_etypes[0]) for fanout in sampler.fanouts]
    return NeighborSampler(fanouts, replace=bool(sampler.replace), edge_dir=sampler.edge_dir)


@dataclass(frozen=True, eq=False)
class _Sampled:
    """A natively sampled batch with its rows: column name to rows, by where they belong."""

    batch: MiniBatch
    src: dict[str, ColumnRows]
    dst: dict[str, ColumnRows]
    edges: list[dict[str, ColumnRows]]


class NativeSource:
    """Batches of DGL blocks, sampled by our kernels.

    Args:
        graph: A homogeneous DGL graph on the CPU.
        dgl_sampler: The user's sampler object: says which columns to prefetch.
        sampler: Ours.
        columns: Reads the columns.
        pools: Recycled memory for the blocks.
        device: Where batches are delivered.
    """

    def __init__(
        self,
        graph: Any,
        dgl_sampler: Any,
        sampler: NeighborSampler,
        *,
        columns: Columns,
        pools: BufferPools,
        device: torch.device,
    ) -> None:
        self._graph = graph
        self._columns = columns
        self._device = device
        self._pools = pools
        self._core = core_graph(graph, sampler.edge_dir)
        # core_graph already turned the edges round for "out": what is sampled are its in-edges.
        self._kernel = NeighborSampler(sampler.fanouts, replace=sampler.replace)
        self._blocks = BlockBuilder(graph, self._core.csc)
        self._ntype, self._etype = graph.ntypes[0], graph.canonical_etypes[0]
        self._src_names = _names(dgl_sampler.prefetch_node_feats, self._ntype)
        self._dst_names = _names(dgl_sampler.prefetch_labels, self._ntype)
        self._edge_names = _names(dgl_sampler.prefetch_edge_feats, self._etype, self._etype[1])
        materialise(graph)
        columns.declare([*self._src_names, *self._dst_names])

    draw = None

    def prepare(self, ticket: Ticket, recorder: EpochRecorder) -> _Sampled:
        """Sample, then read the prefetched columns."""
        with recorder.time("sampling"):
            batch = self._kernel.sample(
                self._core, ticket.seeds, ticket.key, dtype=self._graph.idtype, pools=self._pools
            )
        with recorder.time("fetching"):
            read = self._columns.read_ahead
            src = {n: read("node", n, self._ntype, batch.input_nodes) for n in self._src_names}
            dst = {n: read("node", n, self._ntype, batch.output_nodes) for n in self._dst_names}
            edges = [
                {n: read("edge", n, self._etype, self._blocks.edge_ids(block)) for n in self._edge_names}
                for block in batch.blocks
            ]
        return _Sampled(batch, src, dst, edges)

    def deliver(self, sampled: _Sampled, recorder: EpochRecorder) -> Any:
        """DGL's ``(input_nodes, output_nodes, blocks)`` with columns as the graph holds them now."""
        batch = sampled.batch
        with recorder.time("building"):
            # Sources of all blocks are prefixes of one array; DGL's do not share memory, and users write to ids.
            blocks = [self._blocks.build(block, own_ids=i > 0) for i, block in enumerate(batch.blocks)]
            _fill(blocks[0]._node_frames[0], sampled.src)
            _fill(blocks[-1]._node_frames[1], sampled.dst)
            for block, rows in zip(blocks, sampled.edges, strict=True):
                _fill(block._edge_frames[0], rows)
            item = (batch.input_nodes, batch.output_nodes, blocks)
            if self._device.type != "cpu":
                item = map_leaves(item, partial(_moved, device=self._device))
        recorder.delivered(
            seeds=len(batch.output_nodes),
            edges=sum(block.num_edges for block in batch.blocks),
            input_nodes=len(batch.input_nodes),
        )
        return item


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What a sampler returned, and its columns that wait to be gathered from the graph."""

    item: Any
    waiting: list[tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class _Fetched:
    """What a sampler returned, with the rows that go into its lazy columns and leaves."""

    item: Any
    columns: list[tuple[LazyColumn, ColumnRows]]
    waiting: list[tuple[Any, Any]]


class ForeignSource:
    """Batches from any sampler's own ``sample``, one call at a time, behind our feature fetch.

    DGL's samplers are not all thread-safe (NeighborSampler's fused path is not): calls of one sampler object are
    serialised over all loaders that share it.

    Args:
        graph: Whatever the sampler can sample from.
        sampler: Anything with ``sample(graph, indices)``.
        columns: Reads the columns.
        storages: What LazyFeature leaves name (the loader's ``attach_data``).
        device: Where batches are delivered.
        move_seeds: Move seeds to ``device`` before sampling (graphs on a GPU).
    """

    def __init__(
        self,
        graph: Any,
        sampler: Any,
        *,
        columns: Columns,
        storages: Mapping[str, Any],
        device: torch.device,
        move_seeds: bool,
    ) -> None:
        self._graph = graph
        self._sampler = sampler
        self._columns = columns
        self._storages = storages
        self._device = device
        self._move_seeds = move_seeds
        self._lock = _lock_of(sampler)

    def draw(self, ticket: Ticket, recorder: EpochRecorder) -> _Drawn:
        """The sampler's own sampling."""
        seeds = ticket.seeds
        if self._move_seeds:
            seeds = map_leaves(seeds, lambda x: x.to(self._device))
        materialise(self._graph)
        before = parent_storages(self._graph)
        with self._lock, recorder.time("sampling"):
            item = self._sampler.sample(self._graph, seeds)
        waiting: list[tuple[Any, Any]] = []

        def remember(leaf: Any) -> None:
            if isinstance(leaf, dgl.DGLGraph):
                waiting.extend(parent_columns(leaf, self._graph, before))

        map_leaves(item, remember)
        return _Drawn(item, waiting)

    def prepare(self, drawn: _Drawn, recorder: EpochRecorder) -> _Fetched:
        """Read what the lazy columns and leaves ask for."""
        columns: list[tuple[LazyColumn, ColumnRows]] = []

        def fetch(leaf: Any) -> Any:
            if isinstance(leaf, dgl.DGLGraph):
                columns.extend((c, self._columns.read_ahead(c.kind, c.name, c.type, c.ids)) for c in find_lazy(leaf))
            elif isinstance(leaf, LazyFeature):
                return awaited(self._storages[leaf.name].fetch(leaf.id_, self._device, False))
            return leaf

        with recorder.time("fetching"):
            return _Fetched(map_leaves(drawn.item, fetch), columns, drawn.waiting)

    def deliver(self, fetched: _Fetched, recorder: EpochRecorder) -> Any:
        """The sampler's structure with every column filled in and every leaf on the device."""
        with recorder.time("building"):
            repoint(fetched.waiting)
            item = map_leaves(fetched.item, partial(_moved, device=self._device))
            if self._device.type == "cpu":
                for column, rows in fetched.columns:
                    column.frame[column.key] = rows.current()
            else:
                self._fill_moved(fetched, item)
        recorder.delivered(**_counts(item))
        return item

    def _fill_moved(self, fetched: _Fetched, item: Any) -> None:
        """Moving made new graphs: find their lazy columns, which come in the same order."""
        moved: list[LazyColumn] = []
        map_leaves(item, lambda x: moved.extend(find_lazy(x)) if isinstance(x, dgl.DGLGraph) else None)
        for column, (_, rows) in zip(moved, fetched.columns, strict=True):
            column.frame[column.key] = rows.current()


def _counts(item: Any) -> dict[str, int]:
    """Sampled edges of a foreign batch, as far as it shows them: those of its blocks or of its subgraph."""
    graphs: list[Any] = []
    map_leaves(item, lambda leaf: graphs.append(leaf) if isinstance(leaf, dgl.DGLGraph) else None)
    blocks = [graph for graph in graphs if graph.is_block]
    return {"edges": sum(graph.num_edges() for graph in blocks or graphs[-1:])}


def _moved(leaf: Any, device: torch.device) -> Any:
    """A leaf on ``device``; a copy to the CPU is waited for."""
    return leaf.to(device, non_blocking=device.type != "cpu")


def _fill(frame: Any, rows: Mapping[str, ColumnRows]) -> None:
    for name, value in rows.items():
        frame[name] = value.current()


def _names(prefetch: Any, *types: Any) -> list[str]:
    """Column names of a sampler's prefetch argument: a list, or a mapping from type.

    Raises:
        DGLError: The mapping names a type that the graph does not have.
    """
    if not isinstance(prefetch, Mapping):
        return list(prefetch or [])
    for type_ in prefetch:
        if type_ not in types:
            raise dgl.DGLError(f"prefetch arguments must name types of the graph, {list(types)}; got {type_!r}")
    return [name for names in prefetch.values() for name in names]


def _single_fanout(fanout: Any, etype: EdgeType) -> Any:
    """A fan-out given as a mapping from edge type, for a graph with one."""
    if isinstance(fanout, Mapping):
        fanout = fanout.get(etype, fanout.get(etype[1], fanout))
    # DGL takes whatever int() takes; whole numbers only here.
    return int(fanout) if isinstance(fanout, Tensor | float) and float(fanout).is_integer() else fanout


def _lock_of(sampler: Any) -> threading.RLock:
    """The lock of a sampler object, the same for all loaders; a new one where it cannot be told apart.

    DGL's edge samplers wrap a node sampler, which is where the state is: the innermost one counts.
    """
    while isinstance(inner := getattr(sampler, "sampler", None), dgl.dataloading.Sampler):
        sampler = inner
    with _sampler_locks_guard:
        try:
            return _sampler_locks.setdefault(sampler, threading.RLock())
        except TypeError:  # not hashable, or no weak references
            return threading.RLock()
