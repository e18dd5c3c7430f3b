"""Batches from any sampler's own ``sample``, behind our feature fetch."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover
from ..system.threads import lock_of as _lock_of
from .columns import ColumnRows, Columns, awaited
from .deferred import LazyColumn, find_lazy, map_leaves, materialise, moved, parent_columns, parent_storages, repoint
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import LazyFeature  # noqa: E402

if TYPE_CHECKING:
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder

__all__ = ["ForeignSource", "lock_of"]


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A sampler's item, and its columns that wait to be gathered from the graph."""

    item: Any
    waiting: list[tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class _Fetched:
    """A sampler's item, with the rows that go into its lazy columns and leaves."""

    item: Any
    columns: list[tuple[LazyColumn, ColumnRows]]
    waiting: list[tuple[Any, Any]]
    leaves: Handover


class ForeignSource:
    """Batches from any sampler's own ``sample``, one call at a time, behind our feature fetch.

    DGL's samplers are not all thread-safe (NeighborSampler's fused path is not): calls of one sampler object are
    serialised over all loaders that share it.

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
        before = parent_storages(self._graph)
        with self._lock, recorder.time("sampling"):
            item = self._sampler.sample(self._graph, seeds)
        return _Drawn(item, [pair for graph in _graphs(item) for pair in parent_columns(graph, self._graph, before)])

    def sample(self, drawn: _Drawn, recorder: EpochRecorder) -> _Drawn:
        """The sampler has drawn the batch already."""
        return drawn

    def reads(self, drawn: _Drawn) -> Iterator[tuple[Hashable, Tensor]]:
        """The lazy columns of the sampler's graphs."""
        columns = (column for graph in _graphs(drawn.item) for column in find_lazy(graph))
        return (((column.kind, column.type, column.name), column.ids) for column in columns)

    def fetch(self, drawn: _Drawn, recorder: EpochRecorder) -> _Fetched:
        """Read what the lazy columns and leaves ask for."""
        columns: list[tuple[LazyColumn, ColumnRows]] = []
        leaves: list[Tensor] = []

        def fetch(leaf: Any) -> Any:
            if isinstance(leaf, dgl.DGLGraph):
                columns.extend((c, self._columns.read_ahead(c.kind, c.name, c.type, c.ids)) for c in find_lazy(leaf))
            elif isinstance(leaf, LazyFeature):
                leaves.append(awaited(self._storages[leaf.name].fetch(leaf.id_, self._device, False)))
                return leaves[-1]
            return leaf

        with recorder.time("fetching"):
            item = map_leaves(drawn.item, fetch)
            return _Fetched(item, columns, drawn.waiting, Handover.here(leaves, self._accelerator))

    def deliver(self, fetched: _Fetched, recorder: EpochRecorder) -> Any:
        """The sampler's structure with every column filled in and every leaf on the device."""
        with recorder.time("building"):
            repoint(fetched.waiting)
            fetched.leaves.arrive()
            item = map_leaves(fetched.item, partial(moved, device=self._device))
            if self._device.type == "cpu":
                for column, rows in fetched.columns:
                    column.frame[column.key] = rows.current(recorder)
            else:  # moving made new graphs, whose lazy columns come in the same order
                there = [column for graph in _graphs(item) for column in find_lazy(graph)]
                for column, (_, rows) in zip(there, fetched.columns, strict=True):
                    column.frame[column.key] = rows.current(recorder)
        graphs = _graphs(item)
        blocks = [graph for graph in graphs if graph.is_block]
        recorder.delivered(edges=sum(graph.num_edges() for graph in blocks or graphs[-1:]))  # or of its subgraph
        return item


def _graphs(item: Any) -> list[Any]:
    """The DGL graphs in a sampler's item."""
    graphs: list[Any] = []
    map_leaves(item, lambda leaf: graphs.append(leaf) if isinstance(leaf, dgl.DGLGraph) else None)
    return graphs


def lock_of(sampler: Any) -> threading.RLock:
    """The lock of a sampler object, the same for all loaders; a new one where it cannot be told apart.

    DGL's edge samplers wrap a node sampler, which is where the state is: the innermost one counts.
    """
    while isinstance(inner := getattr(sampler, "sampler", None), dgl.dataloading.Sampler):
        sampler = inner
    return _lock_of(sampler)
