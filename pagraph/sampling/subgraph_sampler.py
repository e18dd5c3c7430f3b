"""SubgraphSampler: hop by hop from seeds, each vertex expanded once, over any number of vertex and edge types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.subgraph import SampledEdges, Subgraph
from .edge_values import EdgeTimes, as_times, edge_times, source_times
from .hop import Hop, HopEdges, Scratch, VertexTable, raise_bad_source
from .induced import edge_ids_of, induced_edges
from .pickers import TimedPicker
from .sampler import BatchRun, EdgeField, FanoutSampler, UniformHops, id_dtype_of
from .small_batch import small_subgraph

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPools
    from .hop import Picker

__all__ = ["SubgraphSampler"]


@dataclass(frozen=True)
class SubgraphSampler(FanoutSampler):
    """Draws neighbours hop by hop and makes one subgraph of them, as PyG's ``NeighborSampler`` does.

    A vertex is expanded once, in the hop after the one that found it; ``NeighborSampler`` expands every known vertex
    again in each hop, as DGL does. So with the same fan-outs there is less to draw.

    Args:
        fanouts: Neighbours per vertex and edge type for each hop in DGL's order: the last entry serves the seeds. -1
            takes all, 0 none. An entry may be a mapping from edge type to a number. Without entries there are only
            the seeds.
        replace: Draw with replacement.
        prob: Name of an edge field: neighbours are drawn in proportion to it, see ``NeighborSampler``.
        disjoint: Sample a tree for each seed: a vertex found from two seeds is there twice.
        induced: Return all edges that the graph has among the sampled vertices, not only those that led to them.
        time: Name of a field of integers, of vertices or of edges: only edges that are not later than the seed of the
            tree are drawn, an edge being as late as its source vertex where the field is one of vertices. Edge types
            without a time are drawn from uniformly. The trees are disjoint then.
        latest: Draw the latest of these edges instead of any.

    Raises:
        TypeError: A fan-out is not an integer, or ``prob`` or ``time`` not a string.
        ValueError: A fan-out below -1, both ``prob`` and ``time``, or ``induced`` together with ``disjoint`` or
            ``time``.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 0], [1, 2, 2])
        >>> SubgraphSampler([-1, -1]).sample(graph, torch.tensor([2]))
        Subgraph(output={'_N': 1}, nodes={'_N': 3}, edges={'_N-_E-_N': 3})

        Of vertices with times only those that are not later than the seed of their tree:

        >>> graph = Graph.from_coo([0, 1, 2], [3, 3, 3], ndata={"year": torch.tensor([2021, 2019, 2020, 2022])})
        >>> seeds, years = torch.tensor([3, 3]), torch.tensor([2020, 2019])
        >>> batch = SubgraphSampler([-1], time="year").sample(graph, seeds, seed_times=years)
        >>> batch.input_nodes["_N"].tolist(), batch.trees["_N"].tolist()
        ([3, 3, 1, 2, 1], [0, 1, 0, 0, 1])
    """

    fanouts: Sequence[int | Mapping[EdgeType, int]]
    replace: bool = False
    prob: str | None = None
    disjoint: bool = False
    induced: bool = False
    time: str | None = None
    latest: bool = False
    edge_dir: str = "in"
    expands_once = True

    def __post_init__(self) -> None:
        self.check_fanouts(least=0)
        if self.time is not None and not isinstance(self.time, str):
            raise TypeError(f"time must be the name of a field, got {self.time!r}")
        if self.time is not None and self.prob is not None:
            raise ValueError(f"prob must be None where time is given, got {self.prob!r}")
        object.__setattr__(self, "disjoint", self.disjoint or self.time is not None)
        if self.disjoint and self.induced:
            raise ValueError("disjoint must be False for an induced subgraph, got True")

    def picker(self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField) -> Picker | None:
        """See :meth:`HopSampler.picker`; raises as :meth:`weights` and :meth:`times` do."""
        fanout = self.fanout(hop, edge_type)
        times = self.times(graph, edge_type, field) if fanout else None
        if times is not None:
            return TimedPicker(fanout, self.replace, self.latest, times)
        return super().picker(graph, hop, edge_type, field)

    def uniform_hops(self, edge_type: EdgeType) -> UniformHops | None:
        """See :meth:`HopSampler.uniform_hops`; a subclass may pick otherwise."""
        plain = self.prob is None and not self.disjoint and not self.induced and type(self) is SubgraphSampler
        return UniformHops.of(self, edge_type) if plain else None

    def times(self, graph: Graph, edge_type: EdgeType, field: EdgeField) -> EdgeTimes | None:
        """The times in the field ``time``; None where there is no such field, or none is named.

        Raises:
            TypeError: The field holds something else than integers.
            ValueError: It does not hold one for each edge or vertex.
        """
        if self.time is None:
            return None
        csc, values = graph.adjacency(self.edge_dir, edge_type), field(edge_type, self.time)
        if values is not None:
            return edge_times(csc, values, name=f"edge field {self.time!r}")
        values = graph.node_fields(edge_type[0]).get(self.time)
        return None if values is None else source_times(csc, values, name=f"vertex field {self.time!r}")

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
        field: EdgeField | None = None,
        seed_times: Tensor | Mapping[str, Tensor] | None = None,
    ) -> Subgraph:
        """Sample one mini-batch; safe from any number of threads at once.

        Args:
            graph: The graph; with one vertex type if ``seeds`` is a tensor.
            seeds: Shape ``(batch,)``, int32 or int64, or a mapping from vertex type to such tensors; repeated seeds
                keep their own places.
            key: Any 64-bit number; equal keys give equal batches. See ``derive_key``.
            dtype: Id dtype of the result. Default: that of the seeds.
            pools: Where output memory is recycled. Default: fresh memory.
            field: Where the edges' weights and times come from. Default: the graph's own fields.
            seed_times: With ``time``: up to which time each seed's edges may be, in the shape of ``seeds``, integers.
                Default: the seeds' own values of the vertex field.

        Raises:
            KeyError: A vertex type that the graph does not have, or times for one without seeds.
            TypeError: Times are no integers on the CPU.
            ValueError: There is not one time per seed, or none and no vertex field; or the graph has no field of that
                name, or has it both of vertices and of edges.
            IndexError: A seed is outside ``[0, num_nodes)`` of its type.
            FormatError: The graph's arrays lead out of the graph (a damaged file).
        """
        small = small_subgraph(self, graph, seeds, key, dtype, pools) if seed_times is None else None
        if small is not None:
            return small
        run = _Run(self, graph, seeds, key, dtype, pools, field)
        if self.time is None and seed_times is not None:
            raise ValueError("seed_times must be None for a sampler without time, got some")
        if self.time is not None:
            _check_time_field(graph, self.time, run.field)
            run.until = _limits_of_trees(graph, self.time, run.seeds, seed_times).numpy()
        return run.subgraph()


def _check_time_field(graph: Graph, name: str, field: EdgeField) -> None:
    """Raise ValueError for a name that is of no field, or both of a field of vertices and one of edges."""
    nodes = [ntype for ntype in graph.node_types if name in graph.node_fields(ntype)]
    edges = [etype for etype in graph.edge_types if field(etype, name) is not None]
    if bool(nodes) == bool(edges):
        got = f"of vertices {nodes} and of edges {edges}" if nodes else "neither"
        raise ValueError(f"time must name a field of vertices or a field of edges, got {name!r}: {got}")


def _limits_of_trees(
    graph: Graph, name: str, seeds: Mapping[str, Tensor], seed_times: Tensor | Mapping[str, Tensor] | None
) -> Tensor:
    """The time of every seed, over all types in the graph's order, ``(num_seeds,)``, int64; raises as ``sample``."""
    if seed_times is not None and not isinstance(seed_times, Tensor | Mapping):
        got = type(seed_times).__name__
        raise TypeError(f"seed_times must be a tensor or a mapping from vertex type, got {got}")
    given = {graph.only_node_type: seed_times} if isinstance(seed_times, Tensor) else seed_times or {}
    for ntype in given:
        if ntype not in seeds:
            raise KeyError(f"seed_times must be of the seeds' types {list(seeds)}, got {ntype!r}")
    limits = [_limits(graph, name, t, seeds[t], given.get(t)) for t in graph.node_types if t in seeds]
    return torch.cat(limits) if limits else torch.empty(0, dtype=torch.int64, device="cpu")


def _limits(graph: Graph, name: str, ntype: str, seeds: Tensor, times: Tensor | None) -> Tensor:
    if times is not None:
        return as_times(f"seed_times[{ntype!r}]", times, len(seeds), "seed").long()
    values = graph.node_fields(ntype).get(name)
    if values is None:
        raise ValueError(f"seed_times must be given for seeds of type {ntype!r}, which has no vertex field {name!r}")
    values = as_times(f"vertex field {name!r}", values, graph.num_nodes_of(ntype), "vertex")
    return values.index_select(0, seeds).long()


@dataclass(frozen=True, eq=False)
class _Memory:
    """Scratch memory of a hop's edges, which live until the batch is put together."""

    scratch: Scratch
    name: Any

    def take_many(self, *specs: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """See ``EdgeMemory``."""
        return [
            torch.from_numpy(self.scratch.array((self.name, place), shape[0], _NUMPY[dtype]))
            for place, (shape, dtype) in enumerate(specs)
        ]


_Drawn = tuple[int, HopEdges]  # the first vertex of a hop's frontier, and the edges drawn, in scratch
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


class _Run(BatchRun):
    """One batch of a subgraph; of disjoint trees, vertex ``v`` in tree ``t`` has the id ``t * num_nodes + v``."""

    sampler: SubgraphSampler
    until: Any = None  # the latest time in each tree

    def subgraph(self) -> Subgraph:
        """Sample all hops, and put them together."""
        graph, tables = self.graph, self.tables
        self._plant()
        begins, known = dict.fromkeys(tables, 0), self.counts()
        ends = {ntype: [count] for ntype, count in known.items()}
        hops: list[dict[EdgeType, _Drawn]] = []
        for number in range(self.sampler.num_hops):
            hops.append(self._hop(number, begins, known))
            begins, known = known, self.counts()
            for ntype, count in known.items():
                ends[ntype].append(count)
        trees = {t: self._trees(t, table) for t, table in tables.items()} if self.sampler.disjoint else None
        return Subgraph(
            dict(self.seeds),
            {ntype: self._nodes(ntype, table) for ntype, table in tables.items()},
            {t: self._edges(t, [hop[t] for hop in hops]) for t in graph.edge_types},
            ends,
            trees,
        )

    def _plant(self) -> None:
        """Enter the seeds into the vertex tables."""
        planted, num_trees = 0, sum(map(len, self.seeds.values()))
        for ntype, table in self.tables.items():
            ids, num_nodes = self.seeds.get(ntype), self.graph.num_nodes_of(ntype)
            if not self.sampler.disjoint:
                table.reset(ids, num_nodes, id_dtype_of(self.graph))
                continue
            if ids is not None:
                ids = ids.long() + num_nodes * torch.arange(planted, planted + len(ids), device="cpu")
                planted += len(ids)
            table.reset(ids, num_nodes * num_trees, np.int64)

    def _hop(self, number: int, begins: Mapping[str, int], ends: Mapping[str, int]) -> dict[EdgeType, _Drawn]:
        """One hop: every edge type from the vertices that the hop before found."""
        drawn = {}
        for index, etype in enumerate(self.graph.edge_types):
            src_type, _, dst_type = etype
            known, num_nodes = self.tables[dst_type].nodes, self.graph.num_nodes_of(dst_type)
            known = known[begins[dst_type] : ends[dst_type]]
            hop = self.hop(
                number,
                index,
                self._vertices(known, num_nodes),
                torch.int32,  # local ids of a batch
                _Memory(self.scratch, ("hop", number, index)),
                drawn_as=known if self.sampler.disjoint else None,
                until=None if self.until is None else self._limits(known, num_nodes),
            )
            edges = self.sampler.pick(self.graph, hop, number, etype, self.field)
            self.tables[src_type].relabel(self._sources(hop, edges, etype), edges.indices.numpy())
            drawn[etype] = begins[dst_type], edges
        return drawn

    def _vertices(self, known: Any, num_nodes: int) -> Any:
        """The graph's ids of vertices that may be in trees."""
        from .kernels import subgraph as _subgraph

        if not self.sampler.disjoint:
            return known
        vertices = self.scratch.array("vertices", len(known), np.int64)
        _subgraph.vertices_of(known, num_nodes, vertices)
        return vertices

    def _limits(self, known: Any, num_nodes: int) -> Any:
        """The latest time that the edges of vertices in trees may have."""
        from .kernels import subgraph as _subgraph

        limits = self.scratch.array("limits", len(known), np.int64)
        _subgraph.limits_of(known, num_nodes, self.until, limits)
        return limits

    def _sources(self, hop: Hop, edges: HopEdges, etype: EdgeType) -> Any:
        """The ids of the sources of drawn edges in the vertex tables."""
        from .kernels import subgraph as _subgraph

        sources = self.read_sources(hop, edges)
        if hop.drawn_as is None:
            return sources
        num_src, num_dst = self.graph.num_nodes_of(etype[0]), self.graph.num_nodes_of(etype[2])
        lifted = self.scratch.array("lifted", len(sources), np.int64)
        bad = _subgraph.in_trees(sources, edges.indptr.numpy(), hop.drawn_as, num_dst, num_src, lifted)
        if bad >= 0:
            raise_bad_source(int(sources[bad]), num_src)
        return lifted

    def _nodes(self, ntype: str, table: VertexTable) -> Tensor:
        out = self.pools(("nodes", ntype)).take((table.count,), self.dtype)
        out.numpy()[:] = self._vertices(table.nodes, self.graph.num_nodes_of(ntype))
        return out

    def _trees(self, ntype: str, table: VertexTable) -> Tensor:
        trees = self.pools(("trees", ntype)).take((table.count,), torch.int64)
        np.floor_divide(table.nodes, max(self.graph.num_nodes_of(ntype), 1), out=trees.numpy())
        return trees

    def _edges(self, etype: EdgeType, hops: Sequence[_Drawn]) -> SampledEdges:
        """The edges of all hops behind each other, or all that the graph has among the vertices."""
        from .kernels import subgraph as _subgraph

        sampler = self.sampler
        if sampler.induced:
            return induced_edges(self.graph, etype, self.tables, self.dtype, self.pools, sampler.edge_dir)
        ends = [0]
        for _, edges in hops:
            ends.append(ends[-1] + len(edges.positions))
        specs = ((2, ends[-1]), self.dtype), ((ends[-1],), torch.int64)
        edge_index, ids = self.pools(("edges", etype)).take_many(*specs)
        src, dst = edge_index.numpy()
        csc = self.graph.adjacency(sampler.edge_dir, etype).scattered
        edge_ids = edge_ids_of(csc)
        for (first_dst, edges), at in zip(hops, ends, strict=False):
            if csc.pages is not None:
                csc.pages.need_ids(edges.positions.numpy())
            arrays = edges.indptr.numpy(), edges.indices.numpy(), edges.positions.numpy()
            _subgraph.put_edges(*arrays, edge_ids, first_dst, at, src, dst, ids.numpy())
        return SampledEdges(edge_index, ids, ends)
