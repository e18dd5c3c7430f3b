"""Batches from any sampler's own ``sample``, behind our feature fetch."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover
from ..engine.steps import Sampled
from ..features.field import Read
from ..system.threads import lock_of as _lock_of
from .columns import Columns, awaited
from .deferred import (
    LazyColumn,
    find_lazy,
    map_leaves,
    materialise,
    moved,
    parent_columns,
    parent_storages,
    repoint,
)
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import LazyFeature  # noqa: E402

if TYPE_CHECKING:
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder


class _Drawn(NamedTuple):
    """A sampler's item, what else is to be filled in, and the leaves that a user's storages have
    fetched."""

    item: Any
    waiting: list[tuple[Any, Any]]
    """Columns that wait to be gathered from the graph."""
    columns: Sequence[LazyColumn] = ()
    """Columns that reads fill."""
    leaves: Handover | None = None


class ForeignSource:
    """Batches from any sampler's own ``sample``, one call at a time, behind our feature fetch.

    DGL's samplers are not all thread-safe (NeighborSampler's fused path is not): calls of one
    sampler object are serialised over all loaders that share it.

    Args:
        graph: Whatever the sampler can sample from.
        sampler: Anything with ``sample(graph, indices)``.
        columns: Reads the columns.
        storages: Storages that LazyFeature leaves name (the loader's ``attach_data``).
        device: Device that batches are delivered on.
        move_seeds: Move seeds to ``device`` before sampling (graphs on a GPU).
        threads: Batches are sampled in other threads than the reader's.
        accelerator: The accelerator of ``device``, if any.
    """

    is_pure = False
    looks_ahead = True
    rereads = False

    def __init__(
        self,
        graph: Any,
        sampler: Any,
        *,
        columns: Columns,
        storages: Mapping[str, Any],
        device: torch.device,
        move_seeds: bool,
        threads: bool,
        accelerator: Accelerator | None = None,
    ) -> None:
        self._graph = graph
        self._sampler = sampler
        self._columns = columns
        self._storages = storages
        self._device = device
        self._move_seeds = move_seeds
        self._threads = threads
        self._accelerator = accelerator
        self._lock = lock_of(sampler)

    def draw(self, ticket: Ticket, recorder: EpochRecorder) -> _Drawn:
        """The sampler's own sampling."""
        seeds = ticket.seeds
        if self._move_seeds:
            seeds = map_leaves(seeds, lambda x: x.to(self._device))
        if self._threads:
            materialise(self._graph)
        # Looked at before the sampler runs: another thread may replace a column meanwhile, and the
        # batch would hold one that the graph does not have any more.
        before = parent_storages(self._graph)
        with self._lock, recorder.time("sampling"):
            item = self._sampler.sample(self._graph, seeds)
        waiting = []
        for graph in _graphs(item):
            waiting += parent_columns(graph, self._graph, before)
        return _Drawn(item, waiting)

    def sample(self, drawn: _Drawn, recorder: EpochRecorder) -> Sampled:
        """The sampler has drawn the batch already; reads are the lazy columns of its graphs."""
        columns = [column for graph in _graphs(drawn.item) for column in find_lazy(graph)]
        reads = [Read(self._columns.key_of(c.kind, c.type, c.name), c.ids) for c in columns]
        after = None
        device = getattr(self._graph, "device", None)
        if self._accelerator is not None and device is not None and device.type != "cpu":
            # Ids that DGL has drawn there, or a column that the user writes, may be on their way.
            after = self._accelerator.current_stream.record()
        return Sampled(drawn._replace(columns=columns), reads, after)

    def build(self, drawn: _Drawn, rows: object) -> _Drawn:
        """Fetch what the sampler's leaves ask a user's storages for."""
        leaves: list[Tensor] = []

        def fetched(leaf: Any) -> Any:
            if not isinstance(leaf, LazyFeature):
                return leaf
            leaves.append(awaited(self._storages[leaf.name].fetch(leaf.id_, self._device, False)))
            return leaves[-1]

        item = map_leaves(drawn.item, fetched)
        return drawn._replace(item=item, leaves=Handover.here(leaves, self._accelerator))

    def deliver(self, drawn: _Drawn, rows: Sequence[Tensor] | None, recorder: EpochRecorder) -> Any:
        """The sampler's structure with every column filled in and every leaf on the device."""
        assert drawn.leaves is not None and rows is not None
        with recorder.time("building"):
            repoint(drawn.waiting)
            drawn.leaves.arrive()
            item = map_leaves(drawn.item, partial(moved, device=self._device))
            columns = drawn.columns
            # Moving made new graphs, whose lazy columns come in the same order.
            if self._device.type != "cpu":
                columns = [column for graph in _graphs(item) for column in find_lazy(graph)]
            for column, read in zip(columns, rows, strict=True):
                column.frame[column.key] = read
        graphs = _graphs(item)
        blocks = [graph for graph in graphs if graph.is_block]
        # Edges of the blocks; where there are none, of the last graph, the sampled subgraph.
        recorder.delivered(edges=sum(graph.num_edges() for graph in blocks or graphs[-1:]))
        return item


def _graphs(item: Any) -> list[Any]:
    """The DGL graphs in a sampler's item."""
    graphs: list[Any] = []
    map_leaves(item, lambda leaf: graphs.append(leaf) if isinstance(leaf, dgl.DGLGraph) else None)
    return graphs


def lock_of(sampler: Any) -> threading.RLock:
    """The lock of a sampler object, the same for all loaders; a new one where it cannot be told
    apart.

    DGL's edge samplers wrap a node sampler, which is where the state is: the innermost one counts.
    """
    while isinstance(inner := getattr(sampler, "sampler", None), dgl.dataloading.Sampler):
        sampler = inner
    return _lock_of(sampler)
