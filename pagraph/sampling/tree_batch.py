"""Draws a batch of trees by kernels: all hops along all edge types, group by group.

See ``whole_batch`` for where the kernel returns in between.
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
from .drawing import Drawing
from .hop import Scratch, raise_reported
from .report import (
    ASK_OFFSETS,
    BYTES,
    EDGE_TYPE,
    FRESH,
    FULL,
    HOP,
    PHASE,
    PICK,
    READING,
    REPORT,
    STATUS,
    WHAT,
)
from .sampler import own_fields
from .times import MISSING
from .trees import TreeTimes, check_time_fields
from .whole_batch import NEW_MEMORY

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..system.buffers import BufferPools
    from .edge_values import EdgeField
    from .plan import SamplePlan
    from .times import EdgeTimes

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
    def of(cls, sampler: Any, graph: Graph, plan: SamplePlan, field: EdgeField) -> TimedEdges:
        """The times of the edge types that any hop draws from; raises as ``sample``."""
        name = sampler.time or ""
        dtypes = check_time_fields(graph, name, field, sampler.time_window)
        edge_types = graph.types.edges
        drawn = [bool(fanouts.any()) for fanouts in plan.fanouts.T]
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
def _runs_of(plan: SamplePlan, seeded: tuple[bool, ...], grouped: bool) -> Int64Array:
    """The kernels' ``runs``, if the vertex types in ``seeded`` have seeds; see there.

    ``grouped``: Whether trees are sampled in groups, with a run for each path of edge types.
    """
    runs: list[tuple[int, int, int, int, int]] = []
    before: list[list[int]] = [[] for _ in seeded]  # by vertex type, runs of the previous hop
    for ntype, has_seeds in enumerate(seeded):
        if has_seeds:
            before[ntype].append(len(runs))
            runs.append((-1, ntype, -1, 0, 0))
    for hop, fanouts in enumerate(plan.fanouts.tolist()):
        found: list[list[int]] = [[] for _ in seeded]
        for edge_type, (src, dst) in enumerate(plan.ends.tolist()):
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
    sampler: Any,
    graph: Graph,
    seeds: Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    pools: BufferPools | None,
    timed: tuple[TimedEdges, TreeTimes] | None,
    field: EdgeField | None,
) -> Subgraph:
    """Sample the trees of a batch.

    Args:
        sampler, graph, key, dtype, pools, field: See ``SubgraphSampler.sample``.
        seeds: Seeds by vertex type, already checked.
        timed: The times of edges and trees; None for sampling without times.

    Raises:
        FormatError: The graph's arrays point outside the graph (a damaged file).
    """
    from .kernels import tree_batch

    batch = Drawing.of(sampler, graph, seeds, key, dtype, field)
    plan = batch.plan
    dtype = batch.dtype
    weights = batch.weights
    _, edge_types, sizes = graph.types
    all_seeds, begins = _together(batch.given)
    total = len(all_seeds)
    seeded = tuple([begin < end for begin, end in pairwise(begins)])
    # Where the kernel may stop, all trees are one group: pages are asked for together, and a picker
    # gets the whole frontier.
    grouped = not (sampler.share_trees or batch.stops)
    runs = _runs_of(plan, seeded, grouped)
    if grouped and total * len(runs) > _MOST_BOUNDS:
        grouped = False
        runs = _runs_of(plan, seeded, grouped)
    in_group = 0
    num_groups = 1
    if grouped:
        in_group = _NODES_IN_GROUP if weights is None else _WEIGHTED_IN_GROUP
        num_groups = total
    of_edges, of_trees = timed or (None, None)
    if of_edges is None or of_trees is None:
        trees_of = np.arange(total)
        times = np.zeros((len(edge_types), 4), np.int64), _UNTIMED, np.empty((1, 0), np.int64)
    else:
        trees_of = of_trees.of_seeds.numpy()
        times = of_edges.table, of_edges.like, of_edges.limits(of_trees)
    shape = plan.ends, np.array(sizes, dtype=np.int64), plan.fanouts, runs
    way = plan.replace, sampler.latest, np.uint64(key % 2**64), in_group
    roots = all_seeds, np.array(begins), trees_of, dtype.itemsize
    given = batch.edges[1:5], times, shape, way
    report, memory, bounds = _drawn(batch, timed, given, roots, (len(runs), num_groups))
    found: list[int] = report.tolist()
    nbytes = -(-found[BYTES] // 8) * 8  # whole int64 words
    pool = NEW_MEMORY if pools is None else pools("batch")
    whole = pool.take((nbytes,), torch.uint8)
    ids = whole.view(dtype)
    longs = whole.view(torch.int64)
    out = ids.numpy(), longs.numpy()
    tree_batch.put_trees(*shape, memory[0], *memory[-2:], bounds, report, *out)
    return _subgraph(graph, seeds, found, (ids, longs))


def _drawn(
    batch: Drawing,
    timed: tuple[TimedEdges, TreeTimes] | None,
    given: tuple[Any, ...],
    roots: tuple[Any, ...],
    most: tuple[int, int],
) -> tuple[Int64Array, Any, Any]:
    """Draw a batch in memory that has room for it.

    Args:
        batch: The batch.
        timed: See :func:`sample_trees`.
        given: The kernel's arguments up to ``way``.
        roots: See the kernel.
        most: Number of runs, and most groups.

    Returns:
        The kernel's ``report``, ``memory`` and ``bounds``.
    """
    from .kernels import tree_batch

    plan = batch.plan
    num_runs, num_groups = most
    num_types = len(batch.graph.types.nodes)
    num_hops, num_edge_types = plan.fanouts.shape
    # Counts before and after each hop, then two parts of the result for each type.
    length = REPORT + (num_hops + 3) * num_types + (num_hops + 2) * num_edge_types
    counts = num_types, num_edge_types, num_runs
    while True:
        scratch = Scratch.for_batch()
        bounds = scratch.array("tree bounds", 4 * num_runs * num_groups, np.int64)
        bounds = bounds.reshape(-1, max(1, num_runs), 4)
        memory = _memory(scratch, counts, plan, batch.edges.like.dtype)
        scratch.in_use = batch.stops
        weights = None
        if batch.weights is not None:
            weights = batch.weights.for_kernels(memory[0] + 1, memory[0], plan)
        report = np.zeros(length, dtype=np.int64)
        report[PHASE] = FRESH
        arguments = *given, weights, roots, memory, bounds, report
        tree_batch.sample_trees(*arguments)
        while report[STATUS] > FULL and _act(batch, timed, scratch, memory, report):
            tree_batch.sample_trees(*arguments)
        scratch.in_use = False
        if report[STATUS] >= FULL:
            scratch.tree_room = 1 << max(scratch.tree_room, int(report[WHAT])).bit_length()
            continue
        if report[STATUS]:
            raise_reported(report.tolist(), plan.ends, batch.graph.types.sizes)
        return report, memory, bounds


def _act(
    batch: Drawing,
    timed: tuple[TimedEdges, TreeTimes] | None,
    scratch: Scratch,
    memory: Any,
    report: Int64Array,
) -> bool:
    """Do what the kernel has stopped for; False if the caller's picks need more room, for which
    ``report`` then asks."""
    most, picks, _, _, longs, _ = memory
    hop = int(report[HOP])
    place = int(report[EDGE_TYPE])
    etype = batch.graph.types.edges[place]
    csc = batch.edges.owners[place]
    num_types = len(batch.graph.types.nodes)
    dst = int(batch.plan.ends[place, 1])
    # By hop, as long as the batch is not complete.
    found = report[REPORT + dst :: num_types][: hop + 1]
    first = int(found[:hop].sum())
    count = int(found[hop])
    # See `_divide` of the kernels.
    begins = [most + 6 * (most + 1) + (part * num_types + dst) * most + first for part in range(3)]
    nodes, frontier, trees = (longs[begin : begin + count] for begin in begins)
    offsets = longs[5 * (most + 1) :][: count + 1]
    if report[STATUS] == ASK_OFFSETS:
        assert csc.pages is not None
        csc.pages.need_offsets(frontier)
        return True
    if report[STATUS] == PICK:
        window = batch.sampler.window(etype)
        limits = {} if timed is None else timed[1].limits(trees, window)
        picked = batch.picked(scratch, hop, place, frontier, drawn_as=nodes, **limits)
        offsets[:] = picked.indptr.numpy()
        if offsets[-1] > most:
            report[WHAT] = offsets[-1]
            return False
        picks[: offsets[-1]] = picked.positions.numpy()
        report[PHASE] = READING
    times = None
    if timed is not None:
        times = batch.sampler.times(batch.graph, etype, batch.field or own_fields(batch.graph))
    if csc.pages is not None and (times is None or times.edges is None):
        positions = picks[: offsets[-1]]
        csc.pages.need_edges(positions)
        csc.pages.need_ids(positions)
    return True


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
    num_hops = (parts_at - REPORT - num_types) // (num_types + num_edge_types)
    edges_at = parts_at - num_hops * num_edge_types
    nodes = {}
    trees = {}
    hop_ends = {}
    at = parts_at
    for place, ntype in enumerate(node_types, REPORT):
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


def _memory(scratch: Scratch, counts: tuple[int, int, int], plan: SamplePlan, dtype: Any) -> Any:
    """``most``, ``picks``, ``seen``, ``bits``, ``longs`` and ``ends_of`` of the kernel, in this
    thread's scratch.

    Args:
        scratch: This thread's scratch.
        counts: Numbers of vertex types, edge types and runs.
        plan: The hops.
        dtype: Dtype of the graph's ids.
    """
    # Batches of one shape reuse the tuple, which saves a look-up by name for each array.
    kind = scratch.tree_room, counts, plan.set_size, dtype
    known = scratch.of_trees
    if known is not None and known[0] == kind:
        return known[1]
    num_types, num_edge_types, num_runs = counts
    most = scratch.tree_room
    # See `_divide` of the kernels.
    length = 6 * (most + 1) + most * (1 + 7 * num_types + num_edge_types)
    length += 4 * (num_types + num_edge_types + num_runs)
    memory = (
        most,
        scratch.array("tree picks", 2 * most, dtype),
        scratch.hash_set(plan.set_size),
        scratch.table_bits(num_types),
        scratch.array("tree longs", length, np.int64),
        scratch.array("tree ends", 2 * num_edge_types * most, np.int32),
    )
    scratch.of_trees = kind, memory
    return memory
