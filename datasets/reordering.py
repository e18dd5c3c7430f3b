"""Reordering of a graph for locality, in bounded memory, with counts of the pages touched."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.fields import FieldValue, stored_row_bytes
from ..graph.graph import Graph
from ..graph.minibatch import HeteroMiniBatch, MiniBatch
from ..options.names import ORDERS
from ..sampling.sampler import MiniBatchSampler
from ..seeds.order import SeedOrder, num_seeds
from ..system.arrays import Array
from ..system.atomic import check_absent
from ..system.budget import work_memory
from ..system.checks import StrPath
from ..system.progress import Progress, Ticks
from .moved_graph import new_indptr, write_moved
from .native import check_storable
from .orders import vertex_places
from .original_ids import ORIGINAL_ID

if TYPE_CHECKING:
    from ..graph.graph import EdgeType

_A_VERTEX = 40
"""Bytes per vertex for finding an order; 12 of them stay."""
_FIXED = 192 * 2**20
"""Bytes for chunks, kernels and sampled batches."""
# With smaller buckets, the disk would seek more than write.
_LEAST_BUCKET = 16 * 2**20
_OF_A_PART = "global_ids"


@dataclass(frozen=True)
class Reordered:
    """Pages before and after reordering, for the same sampled batches.

    Attributes:
        by: The order.
        batch_size: Seeds per batch.
        batches: Number of sampled batches.
        fields: The widest field of each vertex type.
        before, after: Pages read, of ``"features"`` (rows of these fields) and ``"topology"``
            (drawn edges).
    """

    by: str
    batch_size: int
    batches: int
    fields: Mapping[str, str]
    before: Mapping[str, PagesRead]
    after: Mapping[str, PagesRead]

    def to_json(self) -> dict[str, Any]:
        """The figures as a JSON object."""
        return asdict(self)


def memory_needed(graph: Graph) -> int:
    """Minimal bytes for :func:`reorder`, on top of what the process holds."""
    return _A_VERTEX * graph.num_nodes + _FIXED + 2 * _LEAST_BUCKET


def reorder(
    graph: Graph,
    folder: StrPath,
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
    """Write a graph with its vertices in another order as a native folder, atomically.

    Vertices, their fields and masks are renumbered. Edges and their fields are ordered by
    destination, and edge ids are positions. The field ``original_id`` of each vertex type, and of
    edges with ids or fields, keeps the old ids. If it exists already, it moves along.
    :func:`pagraph.datasets.new_ids` converts old ids to new ones. Since seeds have another order,
    batches differ: a copy trains as well as the original, but not bit-identically.

    Args:
        graph: The graph; may be larger than memory.
        folder: Must not exist yet. Arrays larger than ``memory`` are in it twice while they are
            written.
        by: ``"reads"``: most expected reads first. ``"community"``: vertices that one vertex draws
            together. ``"both"``: by classes of expected reads, and by community within a class.
        seeds: Training vertices (or edges), in a form that the sampler accepts.
        sampler: Draws mini-batches along in-edges with fanouts.
        batch_size: Seeds per batch.
        memory: Memory limit of the process, in bytes or as ``"2GiB"``, without the page cache. It
            includes what the process already holds beyond an eighth, and :func:`memory_needed`.
            Default: half of free memory.
        seed: Random seed of the batches that are sampled to count pages.
        origin: Where the graph is from, for people.
        progress: Called with the bytes processed and all bytes.

    Returns:
        The pages of 4 KiB that batches touch before and after.

    Raises:
        FileExistsError: ``folder`` exists.
        TypeError, ValueError: An argument is invalid, memory is too small, the graph is damaged or
            part of a partition, or a field is not storable.

    Example:
        >>> import os, tempfile, torch
        >>> from pagraph import NeighborSampler
        >>> graph = Graph.from_coo([3, 3, 1], [1, 2, 2])
        >>> out = os.path.join(tempfile.mkdtemp(), "out")
        >>> seeds = torch.tensor([2])
        >>> sampler = NeighborSampler([1])
        >>> _ = reorder(graph, out, by="reads", seeds=seeds, sampler=sampler, batch_size=1)
        >>> Graph.open(out).ndata["original_id"].tolist()
        [2, 1, 3, 0]
    """
    check_absent(folder)
    budget = _check(graph, by, seeds, sampler, memory)
    json.dumps(dict(origin or {}))  # before the long work
    ticks = Ticks(progress, _work(graph, by, sampler)).add
    # Refuse a damaged graph before the long work.
    for etype in graph.edge_types:
        graph.csc_of(etype).validate()
        ticks(graph.csc_of(etype).indices.nbytes)
    read = sample_rows(graph, seeds, sampler, batch_size=batch_size, seed=seed)
    task: dict[str, Any] = {"seeds": seeds, "sampler": sampler, "batch_size": batch_size}
    places = vertex_places(graph, by, **task, tick=lambda edges: ticks(4 * edges))
    offsets = {etype: new_indptr(graph, etype, places[etype[2]]) for etype in graph.edge_types}
    widest = {t: name for t in graph.node_types if (name := _widest(graph.node_fields(t)))}
    widths = {t: stored_row_bytes(graph.node_fields(t)[name]) for t, name in widest.items()}
    before = {"features": read.features(widths), "topology": read.topology()}
    after = {"features": read.features(widths, places), "topology": read.topology(places, offsets)}
    held = sum(values.nbytes for values in [*places.values(), *offsets.values()])
    # Two buckets: of a field, and of its edges' new places.
    bucket = max(_LEAST_BUCKET, (budget - held - _FIXED) // 2)
    write_moved(graph, folder, places, offsets, bucket_bytes=bucket, origin=origin, tick=ticks)
    return Reordered(by, batch_size, len(read.batches), widest, before, after)


def _check(
    graph: Graph, by: str, seeds: Any, sampler: MiniBatchSampler, memory: str | int | None
) -> int:
    """Check the arguments; returns the memory limit in bytes."""
    if by not in ORDERS:
        raise ValueError(f"by must be one of {', '.join(ORDERS)}, got {by!r}")
    hops = sampler.hops
    if hops is None or not hops.has_fanouts or hops.edge_dir != "in" or hops.disjoint:
        raise ValueError(
            "sampler must draw in-edges with fan-outs and without disjoint trees, got "
            f"{type(sampler).__name__}"
        )
    if not num_seeds(seeds):
        raise ValueError("seeds must hold at least 1, got 0")
    if any(_OF_A_PART in graph.node_fields(ntype) for ntype in graph.node_types):
        raise ValueError(
            "graph must be a whole graph, got a part of a partition: reorder first, then divide"
        )
    for owner in [
        *map(graph.node_fields, graph.node_types),
        *map(graph.edge_fields, graph.edge_types),
    ]:
        for name, values in owner.items():
            check_storable(name, values)
    return work_memory(memory, memory_needed(graph), whom=f"{graph.num_nodes:,} vertices")


def _work(graph: Graph, by: str, sampler: MiniBatchSampler) -> int:
    """Approximate bytes to process: passes over the edges, and each array read and written."""
    # One pass per hop, and one more to find readers for "community" and "both".
    passes = sampler.num_hops + (by != "reads")
    edges = sum(
        4 * passes * graph.csc_of(t).num_edges + graph.csc_of(t).indices.nbytes
        for t in graph.edge_types
    )
    arrays = 0
    for ntype in graph.node_types:
        fields = graph.node_fields(ntype)
        arrays += sum(len(values) * stored_row_bytes(values) for values in fields.values())
        arrays += 0 if ORIGINAL_ID in fields else 8 * graph.num_nodes_of(ntype)
    for etype in graph.edge_types:
        csc, own = graph.csc_of(etype), graph.edge_fields(etype)
        arrays += csc.indices.nbytes + sum(
            len(values) * stored_row_bytes(values) for values in own.values()
        )
        if ORIGINAL_ID not in own and (own or csc.edge_ids is not None):
            arrays += csc.indices.nbytes
    return edges + 2 * arrays


def _widest(fields: Mapping[str, FieldValue]) -> str | None:
    return max(fields, key=lambda name: stored_row_bytes(fields[name]), default=None)


WINDOW = 8
"""Batches whose rows are read together in a window."""


@dataclass(frozen=True)
class PagesRead:
    """Pages of files that batches touch, and their bytes over the needed bytes.

    Attributes:
        pages: Mean distinct pages per batch.
        batch_ratio: Their bytes over those of the batch's distinct rows.
        window_ratio: The same for :data:`WINDOW` batches together.
    """

    pages: float
    batch_ratio: float
    window_ratio: float

    def to_json(self) -> dict[str, float]:
        """The figures by name."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Reads of sampled batches: vertices and edges by type.

    Attributes:
        batches: For each batch, the distinct vertices by type; and by edge type, the distinct
            positions in the CSC with their destinations.
    """

    graph: Graph
    batches: list[tuple[dict[str, Array], dict[EdgeType, tuple[Array, Array]]]]

    def features(
        self, widths: Mapping[str, int], places: Mapping[str, Array] | None = None
    ) -> PagesRead:
        """Pages of rows of ``widths`` bytes by vertex type, at ``places`` or unmoved."""
        needed = [
            {
                t: ids if places is None else places[t][ids].astype(np.int64)
                for t, ids in vertices.items()
                if widths.get(t)
            }
            for vertices, _ in self.batches
        ]
        return _pages_read(
            [{t: (rows, widths[t]) for t, rows in batch.items()} for batch in needed]
        )

    def topology(
        self,
        places: Mapping[str, Array] | None = None,
        offsets: Mapping[EdgeType, Array] | None = None,
    ) -> PagesRead:
        """Pages of ``indptr`` and ``indices``, with rows at ``places`` and ``offsets``, if any."""
        counted = []
        for _, edges in self.batches:
            touched: dict[Any, tuple[Array, int]] = {}
            for etype, (positions, drew) in edges.items():
                csc = self.graph.csc_of(etype)
                width = csc.indices.element_size()
                rows = drew
                if places is not None and offsets is not None:
                    rows = places[etype[2]][drew].astype(np.int64)
                    # A row moves as a whole, so an edge keeps its offset in the row.
                    positions = offsets[etype][rows] + positions - csc.indptr.numpy()[drew]
                rows = np.unique(rows)
                # A sampler reads the start of a row and of the next one.
                touched[etype, "indptr"] = np.union1d(rows, rows + 1), csc.indptr.element_size()
                touched[etype, "indices"] = positions, width
            counted.append(touched)
        return _pages_read(counted)


def sample_rows(
    graph: Graph,
    seeds: Any,
    sampler: MiniBatchSampler,
    *,
    batch_size: int,
    seed: int = 0,
    batches: int = WINDOW,
) -> SampledRows:
    """Sample the first batches of a shuffled epoch, and keep their reads."""
    order = SeedOrder(seeds, batch_size, shuffle=True, seed=seed)
    plan = order.plan(0)
    found = []
    for index in range(min(batches, len(order))):
        ticket = order.ticket(plan, index)
        found.append(_rows_of(graph, sampler.sample(graph, ticket.seeds, ticket.key)))
    return SampledRows(graph, found)


def _rows_of(
    graph: Graph, batch: Any
) -> tuple[dict[str, Array], dict[EdgeType, tuple[Array, Array]]]:
    if isinstance(batch, MiniBatch):
        (ntype,), (etype,) = graph.node_types, graph.edge_types
        drawn = {
            etype: [(block.indptr, block.positions, block.dst_nodes) for block in batch.blocks]
        }
        vertices = {ntype: batch.input_nodes}
    else:
        assert isinstance(batch, HeteroMiniBatch)
        vertices = batch.input_nodes
        drawn = {
            etype: [
                (
                    block.relations[etype].indptr,
                    block.relations[etype].positions,
                    block.dst_nodes[etype[2]],
                )
                for block in batch.blocks
            ]
            for etype in graph.edge_types
        }
    edges = {}
    for etype, blocks in drawn.items():
        positions = np.concatenate([part.numpy().astype(np.int64) for _, part, _ in blocks])
        drew = np.concatenate(
            [np.repeat(ids.numpy(), np.diff(indptr.numpy())) for indptr, _, ids in blocks]
        )
        # An edge may be drawn in several hops, but its page is read once.
        positions, first = np.unique(positions, return_index=True)
        edges[etype] = positions, drew[first].astype(np.int64)
    distinct = {t: np.unique(ids.numpy()).astype(np.int64) for t, ids in vertices.items()}
    return distinct, edges


def _pages_read(batches: list[dict[Any, tuple[Array, int]]]) -> PagesRead:
    """Counts for rows and row bytes by file and batch; files are assumed to have no header."""
    one = [_count(batch) for batch in batches]
    windows = []
    for begin in range(0, len(batches), WINDOW):
        joined: dict[Any, tuple[Array, int]] = {}
        for batch in batches[begin : begin + WINDOW]:
            for file, (rows, width) in batch.items():
                before = joined[file][0] if file in joined else rows[:0]
                joined[file] = np.union1d(before, rows), width
        windows.append(_count(joined))
    return PagesRead(
        sum(pages for pages, _ in one) / max(1, len(one)), _ratio(one), _ratio(windows)
    )


def _count(batch: dict[Any, tuple[Array, int]]) -> tuple[int, int]:
    """Distinct pages, and needed bytes."""
    pages = 0
    for rows, width in batch.values():
        low = rows * width // mmap.PAGESIZE
        high = (rows * width + width - 1) // mmap.PAGESIZE
        # A row wider than a page also touches the pages in between.
        most = int((high - low).max(initial=0))
        inner = [low + step for step in range(most + 1)]
        touched = [np.minimum(some, high) for some in inner]
        pages += len(np.unique(np.concatenate(touched)))
    return pages, sum(len(rows) * width for rows, width in batch.values())


def _ratio(counted: list[tuple[int, int]]) -> float:
    needed = sum(nbytes for _, nbytes in counted)
    return sum(pages for pages, _ in counted) * mmap.PAGESIZE / needed if needed else 0.0
