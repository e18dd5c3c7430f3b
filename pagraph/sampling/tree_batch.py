"""Whole batches of trees, with or without times or weights, in two kernel calls: one draws all hops
along all edge types, one writes the result.

Results are bit-identical to sampling hop by hop. :func:`sample_trees` returns None for batches that
it cannot draw (batches that may be huge, edges on disk).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.minibatch import SampledEdges, Subgraph
from ..system.arrays import Array, Int64Array
from .hop import FIRST_ROOM, Scratch, raise_reported
from .sampler import FanoutHops
from .times import MISSING
from .trees import TreeTimes, check_time_fields
from .uniform_batch import FRESH, WeightedEdges, can_hold, edges_for_kernels

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..system.buffers import BufferPools
    from .edge_values import EdgeField
    from .times import EdgeTimes

# Most scratch memory of a thread in bytes; pages are allocated when first written. Room for 4 M
# edges of a graph of one type, for 2 M of each of eight. Larger batches are sampled hop by hop.
_MOST_BYTES = 2**30
_NODES_IN_GROUP = 4096
"""Vertices of the trees that are sampled together. Their hash tables take 128 KiB, half of an L2
cache. For 512 trees of 21 vertices, all groups from 1024 vertices on were equally fast."""
_WEIGHTED_IN_GROUP = 32_768
"""The same for edges with weights. Reads of weights, sums and guides are cache misses, which only
overlap in passes over many rows: groups of 4096 took a fifth longer, of 16,384 a twentieth."""
# Most runs of all trees together; each needs 32 bytes for its bounds.
_MOST_BOUNDS = 2**18
# Columns of the kernels' `runs`.
_RUN = 5
_REPORT = 5  # as in the kernels
_UNTIMED: Array = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class TimedEdges:
    """Times of all edges that a sampler draws from, as the kernels take them.

    Attributes:
        table: The kernels' ``timed``, shape ``(num_edge_types, 4)``, int64.
        like: An empty array of the times' dtype.
        windows: Lengths of the time windows; window ``i`` is row ``i + 1`` of ``limits``. None: all
            known times.
        dtypes: Dtypes of the time fields, see ``check_time_fields``.
        held: Keeps the memory at the table's addresses alive.
    """

    table: Int64Array
    like: Array
    windows: Sequence[float | None]
    dtypes: Mapping[str, torch.dtype]
    held: Sequence[Any]

    @classmethod
    def of(cls, sampler: Any, graph: Graph, hops: FanoutHops, field: EdgeField) -> TimedEdges:
        """The times of the edge types that any hop draws from; raises as ``sample``."""
        name = sampler.time or ""
        dtypes = check_time_fields(graph, name, field, sampler.time_window)
        edge_types = graph.types.edges
        drawn = hops.fanouts.any(0).tolist()
        known: dict[int, EdgeTimes] = {}
        for place, etype in enumerate(edge_types):
            times = sampler.times(graph, etype, field) if drawn[place] else None
            if times is not None and times.num_edges:
                known[place] = times
        # The kernels take one dtype; if dtypes differ, narrow ones are converted.
        wide = any(times.values.dtype == torch.int64 for times in known.values())
        dtype = torch.int64 if wide else torch.int32
        table = np.zeros((len(edge_types), 4), dtype=np.int64)
        windows: dict[float | None, int] = {}
        held: list[Any] = []
        for place, times in known.items():
            values = times.values.to(dtype)
            marks = times.marks.to(dtype)
            held += [values, marks, times.edges]
            length = sampler.window(edge_types[place])
            row = 0
            if length is not None or times.has_missing:
                row = windows.setdefault(length, 1 + len(windows))
            pairs = 0 if times.edges is None else times.edges.data_ptr()
            table[place] = values.data_ptr(), marks.data_ptr(), pairs, row
        like = np.empty(0, np.int64 if wide else np.int32)
        return cls(table, like, list(windows), dtypes, held)

    def limits(self, trees: TreeTimes) -> Int64Array:
        """The kernels' ``limits`` for a batch's trees, shape ``(1 + windows, trees)``, int64."""
        limits = np.empty((1 + len(self.windows), len(trees.until)), dtype=np.int64)
        limits[0] = trees.until.numpy()
        for row, length in enumerate(self.windows, 1):
            starts = trees.starts(length)
            limits[row] = MISSING if starts is None else starts
        return limits


@lru_cache(maxsize=256)
def _runs_of(hops: FanoutHops, seeded: tuple[bool, ...], grouped: bool) -> Int64Array:
    """The kernels' ``runs``, if the vertex types in ``seeded`` have seeds; see there.

    ``grouped``: Whether trees are sampled in groups, with a run for each path of edge types.
    """
    runs: list[tuple[int, int, int, int, int]] = []
    before: list[list[int]] = [[] for _ in seeded]  # by vertex type, runs of the previous hop
    for ntype, has_seeds in enumerate(seeded):
        if has_seeds:
            before[ntype].append(len(runs))
            runs.append((-1, ntype, -1, 0, 0))
    for hop, fanouts in enumerate(hops.fanouts.tolist()):
        found: list[list[int]] = [[] for _ in seeded]
        for edge_type, (src, dst) in enumerate(hops.ends.tolist()):
            parents = before[dst]
            if not fanouts[edge_type] or not parents:
                continue
            all_in_one = [(parents[0], parents[-1])]
            together = zip(parents, parents, strict=True) if grouped else all_in_one
            for first, last in together:
                found[src].append(len(runs))
                runs.append((hop, src, edge_type, first, last))
        before = found
        # Paths of edge types may grow exponentially; the caller then samples without groups.
        if grouped and len(runs) > _MOST_BOUNDS:
            break
    return np.array(runs, dtype=np.int64).reshape(-1, _RUN)


def sample_trees(
    sampler: Any,  # a SubgraphSampler, whose file imports this one
    graph: Graph,
    seeds: Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype,
    pools: BufferPools | None,
    timed: tuple[FanoutHops, TimedEdges | None, TreeTimes | None],
    weighted: WeightedEdges | None = None,
) -> Subgraph | None:
    """Sample the trees of a batch; None if the kernels cannot, see the module.

    Args:
        sampler, graph, key, dtype, pools: See ``SubgraphSampler.sample``.
        seeds: Seeds by vertex type, already checked.
        timed: The hops; and the times of edges and trees, both None for sampling without times.
        weighted: The edges' weights; None: uniform.

    Raises:
        FormatError: The graph's arrays point outside the graph (a damaged file).
    """
    from .kernels import tree_batch

    hops, of_edges, of_trees = timed
    edges = edges_for_kernels(sampler, graph)
    node_types, edge_types, sizes = graph.types
    if edges is None or not can_hold(dtype, sizes):
        return None
    all_seeds, begins = _together([seeds.get(ntype) for ntype in node_types])
    total = len(all_seeds)
    seeded = tuple([begin < end for begin, end in pairwise(begins)])
    grouped = not sampler.share_trees
    runs = _runs_of(hops, seeded, grouped)
    if grouped and total * len(runs) > _MOST_BOUNDS:
        grouped = False
        runs = _runs_of(hops, seeded, grouped)
    in_group = 0
    num_groups = 1
    if grouped:
        in_group = _NODES_IN_GROUP if weighted is None else _WEIGHTED_IN_GROUP
        num_groups = total
    if of_edges is None or of_trees is None:
        trees_of = np.arange(total)
        times = np.zeros((len(edge_types), 4), np.int64), _UNTIMED, np.empty((1, 0), np.int64)
    else:
        trees_of = of_trees.of_seeds.numpy()
        times = of_edges.table, of_edges.like, of_edges.limits(of_trees)
    scratch = Scratch.of_this_thread()
    bounds = scratch.array("tree bounds", 4 * len(runs) * num_groups, np.int64)
    bounds = bounds.reshape(-1, max(1, len(runs)), 4)
    shape = hops.ends, np.array(sizes, dtype=np.int64), hops.fanouts, runs
    way = sampler.replace, sampler.latest, np.uint64(key % 2**64), in_group
    roots = all_seeds, np.array(begins), trees_of, dtype.itemsize
    counts = len(node_types), len(edge_types), len(runs)
    # Without the owners, which are held here until the kernels have run.
    given = edges[1:], times, shape, way
    drawn = _draw(scratch, hops, counts, weighted, given, roots, bounds)
    if drawn is None:
        return None
    report, memory = drawn
    found: list[int] = report.tolist()
    if found[0]:
        raise_reported(found, hops.ends, sizes)
    nbytes = -(-found[3] // 8) * 8  # whole int64 words
    pool = FRESH if pools is None else pools("batch")
    whole = pool.take((nbytes,), torch.uint8)
    ids = whole.view(dtype)
    longs = whole.view(torch.int64)
    out = ids.numpy(), longs.numpy()
    tree_batch.put_trees(*shape, memory[0], *memory[-2:], bounds, report, *out)
    return _subgraph(graph, seeds, found, (ids, longs))


def _draw(
    scratch: Scratch,
    hops: FanoutHops,
    counts: tuple[int, int, int],
    weighted: WeightedEdges | None,
    given: tuple[Any, Any, Any, Any],
    roots: tuple[Any, ...],
    bounds: Any,
) -> tuple[Int64Array, Any] | None:
    """Run the kernel ``sample_trees`` in memory that has room for the batch.

    Args:
        scratch: This thread's scratch.
        hops: The hops.
        counts: Numbers of vertex types, edge types and runs.
        weighted: The edges' weights; None: uniform.
        given: The kernel's arguments up to ``way``.
        roots, bounds: See the kernel.

    Returns:
        The kernel's ``report`` and ``memory``; None if the batch would need too much.
    """
    from .kernels import tree_batch

    num_types, num_edge_types, _ = counts
    num_hops = len(hops.fanouts)
    # Counts before and after each hop, then two parts of the result for each type.
    length = _REPORT + (num_hops + 3) * num_types + (num_hops + 2) * num_edge_types
    like = given[0][1]
    while True:
        memory = _memory(scratch, counts, hops, like.dtype)
        if memory is None:
            scratch.tree_room = FIRST_ROOM  # the next batch may be a small one
            return None
        weights = None
        if weighted is not None:
            weights = weighted.for_kernels(memory[0] + 1, memory[0], hops)
        report = np.zeros(length, dtype=np.int64)
        tree_batch.sample_trees(*given, weights, roots, memory, bounds, report)
        if report[0] != tree_batch.FULL:
            return report, memory
        scratch.tree_room = 1 << max(scratch.tree_room, int(report[1])).bit_length()


def _together(given: Sequence[Tensor | None]) -> tuple[Int64Array, list[int]]:
    """The seeds of all types in one array, int64, and where those of each type begin and end."""
    counts = [0 if ids is None else ids.shape[0] for ids in given]
    begins = [0, *accumulate(counts)]
    together = np.empty(begins[-1], dtype=np.int64)
    for ids, begin, count in zip(given, begins, counts, strict=False):
        if ids is not None:
            together[begin : begin + count] = ids.numpy()
    return together, begins


def _subgraph(
    graph: Graph, seeds: Mapping[str, Tensor], report: list[int], parts: tuple[Tensor, Tensor]
) -> Subgraph:
    """The batch that the kernels wrote; ``parts`` is its memory as ids, and the same as int64."""
    node_types, edge_types, _ = graph.types
    ids, longs = parts
    num_types = len(node_types)
    num_edge_types = len(edge_types)
    parts_at = len(report) - 2 * (num_types + num_edge_types)
    # The report lists vertices by type for the seeds and each hop, then edges by type for each hop.
    num_hops = (parts_at - _REPORT - num_types) // (num_types + num_edge_types)
    edges_at = parts_at - num_hops * num_edge_types
    nodes = {}
    trees = {}
    hop_ends = {}
    at = parts_at
    for place, ntype in enumerate(node_types, _REPORT):
        ends = report[place:edges_at:num_types]
        begin, begin_trees = report[at : at + 2]
        nodes[ntype] = ids[begin : begin + ends[-1]]
        trees[ntype] = longs[begin_trees : begin_trees + ends[-1]]
        hop_ends[ntype] = ends
        at += 2
    edges = {}
    for place, etype in enumerate(edge_types, edges_at):
        ends = [0, *accumulate(report[place:parts_at:num_edge_types])]
        count = ends[-1]
        begin, begin_ids = report[at : at + 2]
        # One torch operation instead of a slice and a view.
        edge_index = ids.as_strided((2, count), (count, 1), begin)
        edges[etype] = SampledEdges(edge_index, longs[begin_ids : begin_ids + count], ends)
        at += 2
    return Subgraph(dict(seeds), nodes, edges, hop_ends, trees)


def _memory(scratch: Scratch, counts: tuple[int, int, int], hops: FanoutHops, dtype: Any) -> Any:
    """``most``, ``picks``, ``seen``, ``bits``, ``longs`` and ``ends_of`` of the kernel, in this
    thread's scratch; None if they would be too large.

    Args:
        scratch: This thread's scratch.
        counts: Numbers of vertex types, edge types and runs.
        hops: The hops.
        dtype: Dtype of the graph's ids.
    """
    # Batches of one shape reuse the tuple, which saves a look-up by name for each array.
    kind = scratch.tree_room, counts, hops.set_size, dtype
    known = scratch.of_trees
    if known is not None and known[0] == kind:
        return known[1]
    num_types, num_edge_types, num_runs = counts
    most = scratch.tree_room
    if most * (56 * num_types + 16 * num_edge_types + 80) > _MOST_BYTES:
        return None

    # See `_divide` of the kernels.
    length = 6 * (most + 1) + most * (1 + 7 * num_types + num_edge_types)
    length += 4 * (num_types + num_edge_types + num_runs)
    memory = (
        most,
        scratch.array("tree picks", 2 * most, dtype),
        scratch.hash_set(hops.set_size),
        scratch.table_bits(num_types),
        scratch.array("tree longs", length, np.int64),
        scratch.array("tree ends", 2 * num_edge_types * most, np.int32),
    )
    scratch.of_trees = kind, memory
    return memory
