"""Disjoint trees of a batch: all edges within each tree, and the trees' time limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import no_ids
from ..graph.minibatch import SampledEdges, Subgraph
from ..system.arrays import Array, Int64Array
from ..system.buffers import BufferPools
from .hop import Hop, Scratch, raise_bad_source
from .induced import edge_ids_of
from .pickers import measure_rows
from .report import IDS, KNOWN_EDGES, KNOWN_IDS
from .sampler import own_fields
from .times import MISSING, as_times, known_ticks, one_kind, window_starts

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from .edge_values import EdgeField
    from .hop import VertexTable
    from .plan import SamplePlan
    from .times import EdgeTimes


_ALL: Array = np.empty(0, np.int64)
_NO_KEY = np.uint64(0)
_EDGES_PER_VERTEX = 8  # initial room, before the number of edges is known


@dataclass(frozen=True, eq=False)
class TreeVertices:
    """The vertices of one type in a batch of trees, by vertex and by tree.

    A vertex has a local id for each tree that it is in.

    Attributes:
        count: Number of local ids.
        num_nodes: Number of the graph's vertices of the type.
        num_trees: Number of trees in the batch.
        distinct: The distinct vertices, ascending.
        begins: Shape ``(len(distinct) + 2,)``, int64: where the trees of each begin.
        trees: Shape ``(count,)``, int64: these trees, ascending for each vertex.
        places: Shape ``(count,)``, int64: the vertex's local id in each.
        marks: Shape ``(len(distinct),)``, uint64: vertices without a common bit have no common
            tree.
        tree_begins: Shape ``(num_trees + 2,)``, int64: where the vertices of each tree begin.
        vertices: Shape ``(count,)``, int64: these vertices.
    """

    count: int
    num_nodes: int
    num_trees: int
    distinct: VertexTable
    begins: Array
    trees: Array
    places: Array
    marks: Array
    tree_begins: Array
    vertices: Array

    @classmethod
    def of(
        cls, ntype: str, vertices: Array, trees_of: Array, sizes: tuple[int, int], scratch: Scratch
    ) -> TreeVertices:
        """Sort a type's vertices by vertex and by tree.

        Args:
            ntype: The vertex type.
            vertices: Shape ``(count,)``, int64: the graph's ids, by local id.
            trees_of: Shape ``(count,)``, int64: the tree of each.
            sizes: ``num_nodes`` and ``num_trees``.
            scratch: This thread's scratch; both arrays may be in it.
        """
        from .kernels import trees

        num_nodes, num_trees = sizes
        count = len(vertices)
        distinct = scratch.table(f"distinct {ntype}")
        distinct.reset(None, num_nodes, np.int64)
        numbers = np.empty(count, np.int64)
        distinct.relabel(vertices, numbers)
        # Not np.unique, which took 1.1 ms for 12,000 vertices; this took 0.3.
        ascending = np.sort(distinct.nodes)
        distinct.reset(None, num_nodes, np.int64)
        distinct.relabel(ascending, numbers[: len(ascending)])
        distinct.relabel(vertices, numbers)
        tree_begins, by_tree = _grouped(trees_of, num_trees)
        begins, places = _grouped(numbers, distinct.count, by_tree)
        marks = np.empty(distinct.count, np.uint64)
        trees_of = trees_of[places]
        trees.mark_trees(begins, trees_of, marks)
        return cls(
            count,
            num_nodes,
            num_trees,
            distinct,
            begins,
            trees_of,
            places,
            marks,
            tree_begins,
            vertices[by_tree],
        )


def _grouped(keys: Array, num_keys: int, items: Array = _ALL) -> tuple[Array, Array]:
    """The ``begins`` and ``out`` of the kernel ``group``."""
    from .kernels import trees

    begins = np.zeros(num_keys + 2, np.int64)
    out = np.empty(len(keys), np.int64)
    trees.group(keys, items, begins, out)
    return begins, out


def edges_in_trees(
    hop: Hop,
    src: TreeVertices,
    dst: TreeVertices,
    rows: tuple[Array, Array],
    longest: int,
    *,
    by_source: bool = False,
) -> SampledEdges:
    """All edges between two vertices of the same tree, ordered by destination, then as in its row.

    Args:
        hop: Has the graph's edges, and the memory of the result.
        src, dst: The sources and the destinations.
        rows: Start and length of the row of each local id of ``dst``, cut to the edges that may be
            in its tree.
        longest: Length of the longest row before that.
        by_source: Order edges by source, then by the destinations' ids in the graph.

    Raises:
        FormatError: An edge points outside the graph (a damaged file).
    """
    from .kernels import trees

    csc = hop.csc
    scratch = hop.scratch
    found = scratch.array("edges found", 3 * _EDGES_PER_VERTEX * dst.count, np.int64)
    room = (
        np.full(dst.num_trees, -1, np.int64),
        np.zeros(trees.MARKS, np.uint8),
        scratch.array("edges of a row", longest, np.int64),
    )
    sources = *src.distinct.lookup, src.num_nodes, src.begins, src.trees, src.places, src.marks
    of_trees = src.tree_begins, src.vertices
    targets = dst.begins, dst.trees, dst.places, dst.marks
    at = 0
    total = 0
    while at < dst.distinct.count:
        settings = (*sources, *of_trees), targets, rows, csc.indices.numpy(), room
        at, total = trees.find_in_trees(at, total, *settings, found)
        if at < 0:
            raise_bad_source(int(csc.indices[-1 - at]), csc.num_src)
        if at < dst.distinct.count:  # grow; copying costs less than counting all edges first
            known = found.copy()
            found = scratch.array("edges found", 2 * len(known), np.int64)
            found[: len(known)] = known
    # Edges were found by ascending destination, then row; a stable sort by local id of either end
    # keeps that order.
    first, count = (1, src.count) if by_source else (2, dst.count)
    _, sequence = _grouped(found[first : 3 * total : 3], count)
    edge_index, ids = hop.pool.take_many(((2, total), hop.dtype), ((total,), torch.int64))
    trees.put_found(found, sequence, edge_ids_of(csc), *edge_index.numpy(), ids.numpy())
    return SampledEdges(edge_index, ids, [0])


def induced_in_trees(
    sampler: Any,  # a SubgraphSampler, whose file imports this one
    graph: Graph,
    batch: Subgraph,
    times: TreeTimes | None,
    field: EdgeField | None,
    pools: BufferPools | None,
    *,
    by_source: bool = False,
) -> Subgraph:
    """A batch with all edges within each tree and its time limits, in place of its own.

    Args:
        sampler: Gives the times of edges.
        graph: The graph.
        batch: The vertices, and their trees.
        times: The times of the trees, if any.
        field: Returns edge fields; None: the graph's.
        pools: Recycled memory for the edges; None: fresh memory.
        by_source: See :func:`edges_in_trees`.
    """
    pools = pools if pools is not None else BufferPools(batches=0)
    field = field or own_fields(graph)
    scratch = Scratch.of_this_thread()
    num_trees = len(times.until) if times else sum(map(len, batch.output_nodes.values()))
    assert batch.trees is not None
    known = {}
    vertices = {}
    for ntype, ids in batch.input_nodes.items():
        known[ntype] = ids.long().numpy(), batch.trees[ntype].numpy()
        sizes = graph.num_nodes_of(ntype), num_trees
        vertices[ntype] = TreeVertices.of(ntype, *known[ntype], sizes, scratch)
    edges = {}
    for etype, csc in zip(graph.edge_types, graph.scattered(sampler.edge_dir), strict=True):
        frontier, trees = known[etype[2]]
        # No edge is drawn, so keys do not matter.
        hop = Hop(
            csc=csc,
            frontier=frontier,
            key=_NO_KEY,
            layer_key=_NO_KEY,
            batch_key=_NO_KEY,
            scratch=scratch,
            dtype=batch.input_nodes[etype[2]].dtype,
            pool=pools(("edges", etype)),
            **({} if times is None else times.limits(trees, sampler.window(etype))),
        )
        starts, degrees, _ = measure_rows(hop, -1, False)
        if csc.pages is not None:
            csc.pages.need_edges(starts, degrees)
        # Of whole rows, as an upper bound for rows cut by time.
        longest = int(degrees.max(initial=0))
        of_edges = sampler.times(graph, etype, field)
        if of_edges is not None:
            hop = replace(hop, csc=of_edges.in_order(csc))
            starts, degrees, _ = sampler.timed_picker(-1, of_edges).rows(hop)
        src = vertices[etype[0]]
        dst = vertices[etype[2]]
        edges[etype] = edges_in_trees(
            hop, src, dst, (starts, degrees), longest, by_source=by_source
        )
    return replace(batch, edges=edges)


def check_time_fields(
    graph: Graph,
    name: str,
    field: EdgeField,
    window: float | Mapping[EdgeType, float] | None = None,
) -> dict[str, torch.dtype]:
    """The dtypes of all vertex and edge fields of this name, by a description of each.

    Raises:
        TypeError: Some are floats and others integers.
        ValueError: There is no such field; ``window`` has an edge type without times; or fields are
            known to have different units.
    """
    of_edges = {etype: field(etype, name) for etype in graph.edge_types}
    of_nodes = {ntype: graph.node_fields(ntype).get(name) for ntype in graph.node_types}
    fields = {
        f"vertex field {name!r} of {t!r}": values
        for t, values in of_nodes.items()
        if values is not None
    }
    fields |= {
        f"edge field {name!r} of {t!r}": values
        for t, values in of_edges.items()
        if values is not None
    }
    if not fields:
        raise ValueError(f"time must be the name of a vertex or edge field, got {name!r}")
    for etype in window if isinstance(window, Mapping) else ():
        if etype not in of_edges:
            raise ValueError(
                f"time_window must name edge types among {graph.edge_types}, got {etype!r}"
            )
        if of_edges.get(etype) is None and of_nodes.get(etype[0]) is None:
            raise ValueError(f"time_window must name edge types with times, got {etype!r} without")
    dtypes = {owner: values.dtype for owner, values in fields.items() if isinstance(values, Tensor)}
    one_kind(dtypes)
    _check_units(graph, name)
    return dtypes


def _check_units(graph: Graph, name: str) -> None:
    """Raise ValueError if fields are known to have different units, such as seconds and
    microseconds."""
    notes = {t: graph.node_fields(t).notes.get(name) for t in graph.node_types}
    notes |= {"/".join(t): graph.edge_fields(t).notes.get(name) for t in graph.edge_types}
    units = {owner: note.unit for owner, note in notes.items() if note is not None and note.unit}
    if len(set(units.values())) > 1:
        got = ", ".join(f"{unit} of {owner!r}" for owner, unit in units.items())
        raise ValueError(f"times must all be in one unit, got {name!r} in {got}")


@dataclass(frozen=True, eq=False)
class TreeTimes:
    """The times of a batch's trees.

    Attributes:
        until: Shape ``(num_trees,)``, int64: upper limit of the ticks in each tree.
        of_seeds: Shape ``(num_seeds,)``, int64: the tree of each seed, over all types in the
            graph's order.
        floats: Whether the times were floats.
    """

    until: Tensor
    of_seeds: Tensor
    floats: bool

    @classmethod
    def of(
        cls,
        graph: Graph,
        name: str,
        dtypes: Mapping[str, torch.dtype],
        seeds: Mapping[str, Tensor],
        seed_times: Any,
        *,
        share: bool,
    ) -> TreeTimes:
        """One tree per seed, or with ``share`` one per time, in the order of time.

        Raises as ``SubgraphSampler.sample``.

        Args:
            graph: The graph.
            name: The vertex field with the seeds' own times.
            dtypes: Dtypes of the graph's times, see :func:`check_time_fields`.
            seeds: Seeds by type.
            seed_times: The seeds' times; None: their own.
            share: Whether seeds with the same time share a tree.
        """
        if seed_times is not None and not isinstance(seed_times, Tensor | Mapping):
            got = type(seed_times).__name__
            raise TypeError(f"seed_times must be a tensor or a mapping from vertex type, got {got}")
        given = (
            {graph.only_node_type: seed_times}
            if isinstance(seed_times, Tensor)
            else seed_times or {}
        )
        for ntype in given:
            if ntype not in seeds:
                raise KeyError(
                    f"seed_times must name types of seeds among {list(seeds)}, got {ntype!r}"
                )
        ticks = [no_ids()]
        kinds = dict(dtypes)
        for ntype in (t for t in graph.node_types if t in seeds):
            owner, times = _times_of(graph, name, ntype, seeds[ntype], given.get(ntype))
            ticks.append(known_ticks(owner, times))
            kinds[owner] = times.dtype
        floats = one_kind(kinds)
        until = torch.cat(ticks)
        if share:
            until, of_seeds = torch.unique(until, return_inverse=True)
        else:
            of_seeds = torch.arange(len(until), device="cpu")
        return cls(until, of_seeds, floats)

    def limits(self, trees: Array, window: float | None) -> dict[str, Array]:
        """The time limits of the edges of vertices in these trees, as arguments of ``Hop``."""
        limits = {"until": self.until.numpy()[trees]}
        since = self.starts(window)
        if since is not None:
            limits["since"] = since[trees]
        return limits

    @cached_property
    def _starts(self) -> dict[float | None, Array | None]:
        return {}

    def starts(self, length: float | None) -> Array | None:
        """Lower limit of each tree's ticks for a window of this length; None if there is none."""
        if length not in self._starts:
            starts = window_starts(self.until, length, self.floats)
            self._starts[length] = None if starts is None else starts.numpy()
        return self._starts[length]


@dataclass(frozen=True, eq=False)
class TimedEdges:
    """Times of all edges that a sampler draws from, as the kernels take them.

    Attributes:
        table: The table in the kernels' ``timed``, shape ``(num_edge_types, 4)``, int64.
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

    @cached_property
    def _paired(self) -> list[int]:
        return [place for place, row in enumerate(self.table.tolist()) if row[2]]

    def leave_ids(self, csc: Any) -> None:
        """Note in the kernels' ``csc`` which types' sources and ids are read from pairs, which are
        not on disk; the positions of these edges become their ids."""
        # One number at a time is faster than NumPy's masks, since there are few types.
        for place in self._paired:
            csc[place, IDS] = 0
            csc[place, KNOWN_EDGES] = 0
            csc[place, KNOWN_IDS] = 0

    def limits(self, trees: TreeTimes) -> Int64Array:
        """The kernels' ``limits`` for a batch's trees, shape ``(1 + windows, trees)``, int64."""
        limits = np.empty((1 + len(self.windows), len(trees.until)), dtype=np.int64)
        limits[0] = trees.until.numpy()
        for row, length in enumerate(self.windows, 1):
            starts = trees.starts(length)
            limits[row] = MISSING if starts is None else starts
        return limits


def _times_of(graph: Graph, name: str, ntype: str, seeds: Tensor, times: Any) -> tuple[str, Tensor]:
    """The seeds' times, and their name for errors."""
    owner = f"seed_times[{ntype!r}]"
    if times is not None:
        return owner, as_times(owner, times, len(seeds), "seed")
    values = graph.node_fields(ntype).get(name)
    if values is None:
        raise ValueError(
            f"seed_times must be given for seeds of type {ntype!r}, which has no vertex field "
            f"{name!r}"
        )
    values = as_times(f"vertex field {name!r}", values, graph.num_nodes_of(ntype), "vertex")
    return f"vertex field {name!r} of the seeds", values[seeds]
