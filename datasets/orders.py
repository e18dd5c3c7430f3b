"""Vertex orders that place vertices together if mini-batches read them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ..ranking.vip import seed_chances
from ..seeds.order import num_seeds
from ..system.arrays import Array

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import EdgeType, Graph
    from ..sampling.sampler import HopSampler, MiniBatchSampler

Ranges = Mapping[str, tuple[int, int]]
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
    ranges: Ranges,
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
    ranges: Ranges,
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
    graph: Graph, ranges: Ranges, hops: HopSampler, known: Array, tick: Callable[[int], object]
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


def _ranges(graph: Graph) -> Ranges:
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
