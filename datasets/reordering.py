"""Reordering of a graph for locality, in bounded memory: the orders, and the pages they touch."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ..graph.fields import FieldValue, stored_row_bytes
from ..graph.graph import Graph
from ..graph.minibatch import HeteroMiniBatch, MiniBatch
from ..options.names import ORDERS
from ..ranking.vip import seed_chances
from ..sampling.sampler import MiniBatchSampler
from ..seeds.order import SeedOrder, num_seeds
from ..system.arrays import Array
from ..system.atomic import check_absent
from ..system.budget import work_memory
from ..system.checks import StrPath
from ..system.progress import Progress, Ticks
from .moved_graph import new_indptr, write_moved
from .native import check_storable
from .original_ids import ORIGINAL_ID

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import EdgeType
    from ..sampling.sampler import HopSampler

_A_VERTEX = 40
"""Bytes per vertex for finding an order; 12 of them stay."""
_FIXED = 192 * 2**20
"""Bytes for chunks, kernels and sampled batches."""
# With smaller buckets, the disk would seek more than write.
_LEAST_BUCKET = 16 * 2**20
_OF_A_PART = "global_ids"
_Ranges = Mapping[str, tuple[int, int]]
"""Vertex type to its range in one numbering of all vertices."""

# Each round of grouping saves less: cnr-2000 with shuffled ids and "both" needs 5.6, 5.4 and 5.3
# thousand pages per batch after 1, 2 and 4 rounds.
_ROUNDS = 4
_STEPS = 64  # per factor of two of expected reads
# 16-bit keys, which a counting sort handles in one pass.
_MOST_KEY = 2**16 - 1
# A class of "both" spans a factor of two. Pages read over pages needed by 8 batches, for a half,
# one, two and four factors (rows of 512 bytes): cnr-2000 2.73, 2.68, 2.67, 2.68; soc-slashdot0902
# 2.28, 2.29, 2.29, 2.41; RMAT-20 3.41, 3.41, 3.42, 3.84.
_TIER = 64
# Batches that are read together: vertices in nearly every window need not be told apart.
_WINDOW = 8
_PIECE = 2**24  # edges between two reports of progress
_LARGEST = np.float32(1 - 2.0**-24)  # probability below 1, so that log(1 - p) is finite


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


def vertex_places(
    graph: Graph,
    by: str,
    *,
    seeds: Any,
    sampler: MiniBatchSampler,
    batch_size: int,
    tick: Callable[[int], object] = lambda count: None,
) -> dict[str, Array]:
    """The place of each vertex, among those of its type, in the order ``by``.

    ``reads`` sorts by the probability to be in a batch. ``community`` groups vertices by their most
    likely reader and orders the groups like the readers, in four rounds. ``both`` starts from
    ``reads``, does the same, and then sorts by classes of reads (each a factor of two); vertices
    that are never read come last. Ties keep the graph's order. Takes about 40 bytes per vertex.

    Args:
        graph: The graph. Its edges are read once per hop, and once more for ``community`` and
            ``both``.
        by: One of ``ORDERS``.
        seeds: In a form that the sampler accepts.
        sampler: Draws mini-batches along in-edges with fanouts.
        batch_size: Seeds per batch.
        tick: Called with numbers of edges read.

    Returns:
        Places by vertex type, shape ``(num_nodes,)``, int32, or int64 from 2**31 vertices on.
    """
    ranges = _ranges(graph)
    known = expected_known(
        graph, ranges, seeds=seeds, sampler=sampler, batch_size=batch_size, tick=tick
    )
    keys = _keys(known[-1])
    # int32 halves the memory for all but the largest graphs.
    ids = np.dtype(np.int32 if known.shape[1] < 2**31 else np.int64)
    order = np.arange(known.shape[1], dtype=ids)
    if by != "community":
        order = _sorted(order, keys, _MOST_KEY + 1)
    if by != "reads":
        hops = sampler.hops
        assert hops is not None
        reader = _readers(graph, ranges, hops, known[:-1], tick)
        del known
        order = _grouped(order, reader)
    if by == "both":
        order = _sorted(order, _classes(keys), _MOST_KEY + 1)
    return {ntype: _places(order, begin, end) for ntype, (begin, end) in ranges.items()}


def expected_known(
    graph: Graph,
    ranges: _Ranges,
    *,
    seeds: Any,
    sampler: MiniBatchSampler,
    batch_size: int,
    tick: Callable[[int], object] = lambda count: None,
) -> npt.NDArray[np.float32]:
    """Probability of each vertex to be known in a batch before each hop, and after the last.

    Vertices of all types share one numbering. This is VIP's recursion (:mod:`pagraph.ranking.vip`)
    in float32, with one number per vertex and hop. It assumes that edges are drawn independently.
    VIP's correction for edges back to a vertex would need the transposed graph in memory. Without
    it, batches of cnr-2000 and soc-slashdot read 0.2 and 0.6 % more pages.

    Returns:
        Shape ``(hops + 1, num_vertices)``.
    """
    hops = sampler.hops
    assert hops is not None
    total = sum(graph.num_nodes_by_type.values())
    known = np.zeros((hops.num_hops + 1, total), np.float32)
    of_seeds = seed_chances(graph, seeds, sampler, min(batch_size, num_seeds(seeds)))
    for ntype, chances in of_seeds.items():
        known[0, slice(*ranges[ntype])] = chances.numpy()
    for hop in range(hops.num_hops):
        logs = known[hop + 1]
        np.minimum(known[hop], _LARGEST, out=known[hop])
        for etype in graph.edge_types:
            _push(graph, etype, ranges, hops.fanout(hop, etype), known[hop], logs, tick)
        # 1 - (1 - known) * P(no edge drawn): known before this hop, or drawn by it.
        np.exp(logs, out=logs)
        logs *= 1 - known[hop]
        np.subtract(1, logs, out=logs)
    return known


def _push(
    graph: Graph,
    etype: EdgeType,
    ranges: _Ranges,
    fanout: int,
    known: Array,
    logs: Array,
    tick: Callable[[int], object],
) -> None:
    from . import _orders

    csc = graph.csc_of(etype)
    indptr, indices = csc.arrays
    sources = logs[slice(*ranges[etype[0]])]
    targets = known[slice(*ranges[etype[2]])]
    for begin, end, edges in _pieces(csc):
        _orders.push_misses(indptr, indices, begin, end, targets, fanout, sources)
        tick(edges)


def _readers(
    graph: Graph, ranges: _Ranges, hops: HopSampler, known: Array, tick: Callable[[int], object]
) -> Array:
    """The most likely reader of each vertex, or else the vertex itself."""
    from . import _orders

    total = known.shape[1]
    reader = np.arange(total, dtype=np.int32 if total < 2**31 else np.int64)
    best = np.zeros(total, np.float32)
    for etype in graph.edge_types:
        csc = graph.csc_of(etype)
        fanouts = np.array([hops.fanout(hop, etype) for hop in range(hops.num_hops)], np.int64)
        rows = csc.arrays
        first_source, _ = ranges[etype[0]]
        first_target, _ = ranges[etype[2]]
        firsts = (first_target, first_source)
        for begin, end, edges in _pieces(csc):
            _orders.find_readers(*rows, begin, end, known, fanouts, *firsts, best, reader)
            tick(edges)
    return reader


def _grouped(order: Array, reader: Array) -> Array:
    """The order with vertices grouped by reader, in the order of the readers."""
    from ..graph import _csc
    from . import _orders

    place = np.empty_like(order)
    keys = np.empty_like(order)
    ends = np.empty_like(order)
    for _ in range(_ROUNDS):
        _csc.number(order, place)
        _orders.read_together(place, reader, keys)
        out = place  # reused, to save an array
        _orders.sort_by_key(order, keys, ends, out)
        order, place = out, order
    return order


def _keys(chances: Array) -> npt.NDArray[np.uint16]:
    """Logarithmic sort keys of probabilities, highest first; the last key means never."""
    keys = np.full(len(chances), _MOST_KEY, np.uint16)
    for begin in range(0, len(chances), _PIECE):  # the scratch of a piece
        some = chances[begin : begin + _PIECE]
        logs = np.log2(some, out=np.full_like(some, -np.inf), where=some > 0)
        np.minimum(-_STEPS * logs, _MOST_KEY, out=logs)
        keys[begin : begin + _PIECE] = logs.astype(np.uint16)
    return keys


def _classes(keys: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Classes of the probability to be in a window of batches; the last class is never read."""
    chances = np.exp2(-np.arange(_MOST_KEY + 1) / _STEPS)
    # 1 - (1 - p)**_WINDOW, exact for small p.
    misses = np.log1p(-np.minimum(chances, _LARGEST))
    window = -np.expm1(_WINDOW * misses)
    factors = np.log2(np.maximum(window, 2.0**-500))
    table = (-_STEPS / _TIER * factors).astype(np.uint16)
    table[-1] = _MOST_KEY
    classes: npt.NDArray[np.uint16] = table[keys]
    return classes


def _sorted(order: Array, keys: Array, limit: int) -> Array:
    from . import _orders

    out = np.empty_like(order)
    _orders.sort_by_key(order, keys, np.empty(limit, np.int64), out)
    return out


def _places(order: Array, begin: int, end: int) -> Array:
    """Places of the vertices ``begin`` to ``end``, among themselves."""
    from ..graph import _csc

    own = order
    if end - begin != len(order):
        is_own = (order >= begin) & (order < end)
        own = order[is_own] - order.dtype.type(begin)
    place = np.empty_like(own)
    _csc.number(own, place)
    return place


def _ranges(graph: Graph) -> _Ranges:
    ends = np.cumsum([0, *graph.num_nodes_by_type.values()]).tolist()
    return dict(zip(graph.node_types, pairwise(ends), strict=True))


def _pieces(csc: CSC) -> Iterator[tuple[int, int, int]]:
    """Ranges of destinations with about ``_PIECE`` edges, and their edges."""
    begin = 0
    while begin < csc.num_dst:
        first = int(csc.indptr[begin])
        limit = torch.tensor(first + _PIECE, dtype=csc.indptr.dtype, device="cpu")
        end = max(begin + 1, int(torch.searchsorted(csc.indptr, limit, right=True)) - 1)
        yield begin, end, int(csc.indptr[end]) - first
        begin = end
