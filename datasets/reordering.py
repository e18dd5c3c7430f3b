"""Writes a graph in an order in which rows that are read together lie together, in bounded memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from ..graph.indexed_rows import FieldValue
from ..sampling.sampler import MiniBatchSampler
from ..seeds.order import num_seeds
from ..system.atomic import check_absent, new_folder
from ..system.budget import Budget
from ..system.memory import host_available
from ..system.units import bytes_text
from .locality import PagesRead, sample_rows
from .manifest import EdgeEntry, Manifest, NodeEntry
from .moved_rows import MovedRows, Places, Scratch, source_rows
from .native import ArrayWriter, Progress, check_storable
from .orders import ORDERS, vertex_places
from .original_ids import ORIGINAL_ID

__all__ = ["Reordered", "memory_needed", "reorder"]

Array = npt.NDArray[Any]

_A_VERTEX = 40
"""Bytes that finding an order takes; 12 of them stay."""
_FIXED = 192 * 2**20
"""Chunks that are on their way, and sampled batches: measured 110 MiB on RMAT scale 22 in buckets of 64 MiB."""
_LEAST_BUCKET = 16 * 2**20
_OF_A_PART = "global_ids"


@dataclass(frozen=True)
class Reordered:
    """What reordering changed, by the same sampled batches.

    Attributes:
        by: The order.
        batch_size: Seeds of the batches.
        batches: How many were sampled.
        fields: Vertex type to its widest field.
        before, after: ``"features"``, the rows of these fields, and ``"topology"``, the edges drawn: the pages read.
    """

    by: str
    batch_size: int
    batches: int
    fields: Mapping[str, str]
    before: Mapping[str, PagesRead]
    after: Mapping[str, PagesRead]

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON holds them."""
        pages = {
            name: {what: pages.to_json() for what, pages in getattr(self, name).items()} for name in ("before", "after")
        }
        return {
            "by": self.by,
            "batch_size": self.batch_size,
            "batches": self.batches,
            "fields": dict(self.fields),
            **pages,
        }


def memory_needed(graph: Graph) -> int:
    """The least ``memory`` of :func:`reorder` in bytes."""
    return _A_VERTEX * graph.num_nodes + _FIXED + 2 * _LEAST_BUCKET


def reorder(
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    by: str,
    seeds: Any,
    sampler: MiniBatchSampler,
    batch_size: int,
    memory: str | int | None = None,
    seed: int = 0,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Reordered:
    """Write a graph with its vertices in another order as a native folder, whole or not at all.

    Vertices, their fields and masks are renumbered; edges and their fields lie in the order of their destinations, and
    edge ids are positions. The field ``original_id`` of each vertex type keeps the ids, unless the graph has a field of
    that name, which moves along; so it does for edges that have ids or fields. :func:`pagraph.datasets.new_ids` turns
    ids of the original into those of the copy. Seeds in another order make other batches: a copy trains as well as its
    original, not in the same bits.

    Args:
        graph: The graph; may be larger than memory.
        folder: Must not exist yet. Arrays that exceed ``memory`` are in it a second time while they are written.
        by: ``"reads"``: what is expected to be read most lies first. ``"community"``: what one vertex draws lies
            together. ``"both"``: by classes of expected reads, in each class by community.
        seeds: Training vertices (or edges), as the sampler takes them.
        sampler: Draws mini-batches along in-edges with fan-outs.
        batch_size: Seeds a batch.
        memory: Bytes to take, as a number or ``"2GiB"``, at least :func:`memory_needed`; besides pages of files, which
            the system takes back. Default: half of what is free.
        seed: Of the batches that are sampled to count pages.
        origin: Where the graph is from, for people.
        progress: Called with the bytes that were gone through and all of them.

    Returns:
        The pages of 4 KiB that batches touch before and after.

    Raises:
        FileExistsError: ``folder`` exists.
        TypeError, ValueError: An argument is none of these, the memory too small, the graph damaged or a part of a
            partition, or a field cannot be stored.

    Example:
        >>> import tempfile
        >>> from pagraph import NeighborSampler
        >>> graph = Graph.from_coo([3, 3, 1], [1, 2, 2])
        >>> out = os.path.join(tempfile.mkdtemp(), "out")
        >>> _ = reorder(graph, out, by="reads", seeds=torch.tensor([2]), sampler=NeighborSampler([1]), batch_size=1)
        >>> Graph.open(out).ndata["original_id"].tolist()
        [2, 1, 3, 0]
    """
    check_absent(folder)
    budget = _check(graph, by, seeds, sampler, memory)
    json.dumps(dict(origin or {}))  # before the long work
    ticks = _Ticks(progress, _work(graph, by, sampler))
    for etype in graph.edge_types:
        graph.csc_of(etype).validate()
        ticks(graph.csc_of(etype).indices.nbytes)
    read = sample_rows(graph, seeds, sampler, batch_size=batch_size, seed=seed)
    task: dict[str, Any] = {"seeds": seeds, "sampler": sampler, "batch_size": batch_size}
    places = vertex_places(graph, by, **task, tick=lambda edges: ticks(4 * edges))
    offsets = {etype: _offsets(graph, etype, places[etype[2]]) for etype in graph.edge_types}
    widest = {t: name for t in graph.node_types if (name := _widest(graph.node_fields(t)))}
    widths = {t: _row_bytes(graph.node_fields(t)[name]) for t, name in widest.items()}
    before = {"features": read.features(widths), "topology": read.topology()}
    after = {"features": read.features(widths, places), "topology": read.topology(places, offsets)}
    with new_folder(folder) as part:
        scratch_folder = part / "buckets"
        scratch_folder.mkdir()
        held = sum(values.nbytes for values in [*places.values(), *offsets.values()])
        bucket = max(_LEAST_BUCKET, (budget - held - _FIXED) // 2)  # two: of a field, and of its edges' new places
        writer = _Writer(part, graph, places, offsets, Scratch(scratch_folder, bucket, ticks), ticks)
        manifest = Manifest(
            [writer.node_type(name) for name in graph.node_types],
            [writer.edge_type(etype) for etype in graph.edge_types],
            dict(origin or {}),
        )
        scratch_folder.rmdir()
        manifest.write(part)
    return Reordered(by, batch_size, len(read.batches), widest, before, after)


class _Ticks:
    """Adds up the bytes that were gone through."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def __call__(self, count: int) -> None:
        self._done = min(self._done + count, self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)


def _check(graph: Graph, by: str, seeds: Any, sampler: MiniBatchSampler, memory: str | int | None) -> int:
    """Check the arguments; returns the memory in bytes."""
    if by not in ORDERS:
        raise ValueError(f"by must be one of {', '.join(ORDERS)}, got {by!r}")
    hops = sampler.hops
    if hops is None or not hops.has_fanouts or hops.edge_dir != "in" or hops.disjoint:
        raise ValueError(f"sampler must draw in-edges with fan-outs, trees not apart, got {type(sampler).__name__}")
    if not num_seeds(seeds):
        raise ValueError("seeds must hold at least 1, got 0")
    if any(_OF_A_PART in graph.node_fields(ntype) for ntype in graph.node_types):
        raise ValueError("graph must be a whole one, got a part of a partition: reorder first, then divide")
    for owner in [*map(graph.node_fields, graph.node_types), *map(graph.edge_fields, graph.edge_types)]:
        for name, values in owner.items():
            check_storable(name, values)
    budget = Budget.parse(host_available() // 2 if memory is None else memory, name="memory")
    if budget is None or budget.limit is None:
        raise ValueError(f'memory must be bytes (1048576, "500MB", "2GiB"), got {memory!r}')
    least = memory_needed(graph)
    if budget.limit < least:
        raise ValueError(
            f"memory must be at least {bytes_text(least)} for {graph.num_nodes} vertices, got {bytes_text(budget.limit)}"
        )
    return budget.limit


def _work(graph: Graph, by: str, sampler: MiniBatchSampler) -> int:
    """About the bytes that are gone through: passes over the edges, and each array read and written."""
    passes = sampler.num_hops + (by != "reads")
    edges = sum(4 * passes * graph.csc_of(t).num_edges + graph.csc_of(t).indices.nbytes for t in graph.edge_types)
    arrays = 0
    for ntype in graph.node_types:
        fields = graph.node_fields(ntype)
        arrays += sum(values.numel() * values.element_size() for values in fields.values())
        arrays += 0 if ORIGINAL_ID in fields else 8 * graph.num_nodes_of(ntype)
    for etype in graph.edge_types:
        csc, own = graph.csc_of(etype), graph.edge_fields(etype)
        arrays += csc.indices.nbytes + sum(values.numel() * values.element_size() for values in own.values())
        if ORIGINAL_ID not in own and (own or csc.edge_ids is not None):
            arrays += csc.indices.nbytes
    return edges + 2 * arrays


def _offsets(graph: Graph, etype: EdgeType, place: Array) -> Array:
    """The new ``indptr`` of an edge type."""
    from . import _moved_rows

    indptr = graph.csc_of(etype).indptr.numpy()
    out = np.empty_like(indptr)
    _moved_rows.new_offsets(indptr, place, out)
    return out


def _widest(fields: Mapping[str, FieldValue]) -> str | None:
    return max(fields, key=lambda name: _row_bytes(fields[name]), default=None)


def _row_bytes(values: FieldValue) -> int:
    return values.shape[1:].numel() * values.element_size()


class _Writer:
    """Writes the arrays of one graph at their new places, and returns the manifest's entries."""

    def __init__(
        self,
        folder: Path,
        graph: Graph,
        places: Mapping[str, Array],
        offsets: Mapping[EdgeType, Array],
        scratch: Scratch,
        written: Callable[[int], None],
    ) -> None:
        self._graph, self._places, self._offsets, self._scratch = graph, places, offsets, scratch
        self._arrays = ArrayWriter(folder, written)

    def node_type(self, name: str) -> NodeEntry:
        """Write the fields of a vertex type."""
        prefix = "node" if name == NODE_TYPE else f"node-{name}"
        place, fields = self._places[name], self._graph.node_fields(name)
        where: Places = lambda begin, end: place[begin:end]  # noqa: E731
        entries = {key: self._field(f"{prefix}-{key}", value, where) for key, value in fields.items()}
        if ORIGINAL_ID not in fields:
            rows = self._moved(_counting, where, (len(place),), torch.int64, f"{prefix}-{ORIGINAL_ID}")
            entries[ORIGINAL_ID] = self._write(f"{prefix}-{ORIGINAL_ID}", rows)
        return NodeEntry(name, len(place), entries)

    def edge_type(self, etype: EdgeType) -> EdgeEntry:
        """Write the edges of a type, and their fields."""
        prefix = "edge" if etype == EDGE_TYPE else "edge-" + "-".join(etype)
        csc, fields = self._graph.csc_of(etype), self._graph.edge_fields(etype)
        where = _edge_places(csc.indptr.numpy(), self._places[etype[2]], self._offsets[etype])
        sources, read = torch.from_numpy(self._places[etype[0]]), source_rows(csc.indices)
        indices = self._moved(
            lambda begin, end: sources[read(begin, end).long()].to(csc.indices.dtype),
            *(where, (csc.num_edges,), csc.indices.dtype, "edges"),
        )
        by_id, inverse = where, None
        if csc.edge_ids is not None and fields:
            inverse = self._inverse(csc.edge_ids, where)
            by_id = _read_places(inverse)
        entries = {key: self._field(f"{prefix}-field-{key}", value, by_id) for key, value in fields.items()}
        if inverse is not None:
            inverse.close()
        if ORIGINAL_ID not in fields and (fields or csc.edge_ids is not None):
            ids = _counting if csc.edge_ids is None else source_rows(csc.edge_ids)
            dtype = torch.int64 if csc.edge_ids is None else csc.edge_ids.dtype
            rows = self._moved(ids, where, (csc.num_edges,), dtype, "edges")
            entries[ORIGINAL_ID] = self._write(f"{prefix}-field-{ORIGINAL_ID}", rows)
        indptr = self._arrays.write(f"{prefix}-indptr", torch.from_numpy(self._offsets[etype]))
        return EdgeEntry(etype, csc.num_edges, indptr, self._write(f"{prefix}-indices", indices), None, entries)

    def _inverse(self, edge_ids: Tensor, where: Places) -> MovedRows:
        """New places of edges in the order of their ids."""
        read, ids = source_rows(edge_ids), "edge ids of a graph with edge fields"
        places = lambda begin, end: _in_range(read(begin, end).numpy(), len(edge_ids))  # noqa: E731
        new = lambda begin, end: torch.from_numpy(where(begin, end))  # noqa: E731
        return self._moved(new, places, (len(edge_ids),), torch.int64, ids)

    def _field(self, label: str, values: FieldValue, where: Places) -> Any:
        return self._write(label, self._moved(source_rows(values), where, tuple(values.shape), values.dtype, label))

    def _moved(
        self, source: Callable[[int, int], Tensor], where: Places, shape: tuple[int, ...], dtype: torch.dtype, name: str
    ) -> MovedRows:
        return MovedRows(source, where, shape, dtype, self._scratch, name=name)

    def _write(self, label: str, rows: MovedRows) -> Any:
        entry = self._arrays.write(label, rows)
        rows.close()
        return entry


def _counting(begin: int, end: int) -> Tensor:
    return torch.arange(begin, end, device="cpu")


def _in_range(ids: Array, limit: int) -> Array:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < limit:
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise ValueError(f"edge ids of a graph with edge fields must be in [0, {limit}), got {wrong}")
    return ids


def _read_places(inverse: MovedRows) -> Places:
    return lambda begin, end: inverse[begin:end].numpy()


def _edge_places(indptr: Array, place: Array, offsets: Array) -> Places:
    from . import _moved_rows

    def where(begin: int, end: int) -> Array:
        out = np.empty(end - begin, np.int64)
        vertex = int(np.searchsorted(indptr, indptr.dtype.type(begin), side="right")) - 1
        _moved_rows.edge_places(indptr, place, offsets, vertex, begin, out)
        return out

    return where
