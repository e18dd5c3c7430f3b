"""Samplers of subgraphs, which expand each vertex once: of all seeds, or ShaDow's of each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.minibatch import SampledEdges, Subgraph
from ..system.checks import as_flag, as_integer, check_fanout
from .edge_values import EdgeField, KnownFields
from .hop import Hop, HopEdges, HopMemory, raise_bad_source
from .induced import edge_ids_of, induced_edges
from .pickers import TimedPicker, UniformPicker, measure_rows
from .sampler import (
    BatchRun,
    FanoutHops,
    FanoutSampler,
    MiniBatchSampler,
    id_dtype_of,
    own_fields,
    seeds_by_type,
)
from .times import EdgeTimes, as_window, edge_times
from .tree_batch import TimedEdges, sample_trees
from .trees import TreeTimes, TreeVertices, check_time_fields, edges_in_trees
from .uniform_batch import WeightedEdges, sample_at_once

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPools
    from .hop import Picker


@dataclass(frozen=True)
class SubgraphSampler(FanoutSampler):
    """Samples neighbours hop by hop into one subgraph, like PyG's ``NeighborSampler``.

    A vertex is expanded once, in the hop after the one that found it. ``NeighborSampler`` expands
    all known vertices again in each hop, as DGL does, so it draws more with the same fan-outs.

    Args:
        fanouts: Neighbours per vertex and edge type for each hop, in DGL's order: the last entry
            serves the seeds. -1 takes all, 0 none. An entry may be a mapping from edge type to a
            number. Without entries, the subgraph has only the seeds.
        replace: Draw with replacement.
        prob: Name of an edge field: neighbours are drawn in proportion to it, see
            ``NeighborSampler``.
        disjoint: Sample one tree per seed. A vertex found from two seeds is in the subgraph twice.
        induced: Return all edges of the graph among the sampled vertices, not only those that were
            drawn. For disjoint trees, all edges within each tree; with ``time``, only those within
            its time limits.
        time: Name of a field of vertices or edges, of integers or floats. Edges later than the
            tree's seed are not drawn. For a vertex field, an edge's time is that of its source; if
            there is an edge field, too, it is the later of both. Edge types without times are drawn
            from uniformly; edges with a missing time (NaN, or NumPy's NaT, the smallest int64) are
            never drawn. Implies ``disjoint``.
        latest: Draw the latest of these edges.
        time_window: Length of a time window: only edges in ``(t - time_window, t]`` are drawn, with
            ``t`` the time of the seed. Or a mapping from edge type to lengths; types that it does
            not name have no window.
        share_trees: Sample one tree for all seeds with the same time, in the order of time. A
            vertex found from several of these seeds is in the subgraph once.
        batch_dependency: Number of batches for which a vertex keeps its picks, see
            ``NeighborSampler``. Must be 1 for disjoint trees, which draw independently.
        edge_dir: "in" draws from in-edges; "out" from out-edges, for edge types between vertices of
            one type.

    Raises:
        TypeError: A fan-out or ``batch_dependency`` is not an integer, ``prob`` or ``time`` is not
            a string, or a window is not a number.
        ValueError: A fan-out is below -1; both ``prob`` and ``time`` are given; a window is not
            positive, or given without ``time``; ``share_trees`` is given without ``time`` or with
            ``induced``; or ``batch_dependency`` is not 1 for disjoint trees.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 0], [1, 2, 2])
        >>> SubgraphSampler([-1, -1]).sample(graph, torch.tensor([2]))
        Subgraph(output={'_N': 1}, nodes={'_N': 3}, edges={'_N-_E-_N': 3})

        With times, only vertices that are not later than the seed of their tree:

        >>> year = torch.tensor([2021, 2019, 2020, 2022])
        >>> graph = Graph.from_coo([0, 1, 2], [3, 3, 3], ndata={"year": year})
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
    time_window: float | Mapping[EdgeType, float] | None = None
    share_trees: bool = False
    edge_dir: str = "in"
    batch_dependency: int = 1
    expands_once = True

    def __post_init__(self) -> None:
        self.check_fanouts(least=0)
        if self.time is not None and not isinstance(self.time, str):
            raise TypeError(f"time must be the name of a field, got {self.time!r}")
        if self.time is not None and self.prob is not None:
            raise ValueError(f"prob must be None if time is given, got {self.prob!r}")
        object.__setattr__(self, "time_window", as_window("time_window", self.time_window))
        object.__setattr__(self, "share_trees", as_flag("share_trees", self.share_trees))
        if self.time is None and (self.time_window is not None or self.share_trees):
            name = "share_trees" if self.time_window is None else "time_window"
            raise ValueError(f"{name} needs time, got {getattr(self, name)!r} without it")
        # A seed that is twice in a tree would have all of its edges twice.
        if self.share_trees and self.induced:
            raise ValueError("share_trees must be False for an induced subgraph, got True")
        object.__setattr__(self, "disjoint", self.disjoint or self.time is not None)
        if self.disjoint and self.batch_dependency != 1:
            raise ValueError(
                f"batch_dependency must be 1 for disjoint trees, got {self.batch_dependency}"
            )

    def picker(
        self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField
    ) -> Picker | None:
        """See :meth:`HopSampler.picker`; raises as :meth:`weights` and :meth:`times` do."""
        fanout = self.fanout(hop, edge_type)
        times = self.times(graph, edge_type, field) if fanout else None
        if times is not None:
            return self.timed_picker(fanout, times)
        return super().picker(graph, hop, edge_type, field)

    def timed_picker(self, fanout: int, times: EdgeTimes) -> TimedPicker:
        """The picker of edges with times; its rows are also the edges of an induced subgraph."""
        return TimedPicker(fanout, self.replace, self.latest, times)

    def fanout_hops(self, graph: Graph) -> FanoutHops | None:
        """See :meth:`HopSampler.fanout_hops`; None for a subclass, which may pick in another
        way."""
        plain = not self.disjoint and not self.induced and type(self) is SubgraphSampler
        return FanoutHops.of(self, graph) if plain else None

    def times(self, graph: Graph, edge_type: EdgeType, field: EdgeField) -> EdgeTimes | None:
        """The edges' times from the fields ``time``; None if ``time`` is None or there is no such
        field.

        Raises:
            TypeError: A field does not hold integers or floats.
            ValueError: It does not hold one per edge or vertex.
        """
        if self.time is None:
            return None
        of_edges = field(edge_type, self.time)
        of_sources = graph.node_fields(edge_type[0]).get(self.time)
        if of_edges is None and of_sources is None:
            return None
        csc = graph.adjacency(self.edge_dir, edge_type)
        return edge_times(csc, of_edges, of_sources, name=self.time)

    def window(self, edge_type: EdgeType) -> float | None:
        """The length of an edge type's time window; None: there is no window."""
        window = self.time_window
        return window.get(edge_type) if isinstance(window, Mapping) else window

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
        """Sample one mini-batch; thread-safe.

        Args:
            graph: The graph; with one vertex type if ``seeds`` is a tensor.
            seeds: Shape ``(batch,)``, int32 or int64, or a mapping from vertex type to such
                tensors. Repeated seeds keep their own places.
            key: Any 64-bit number; equal keys give equal batches. See ``derive_key``.
            dtype: Id dtype of the result. Default: that of the seeds.
            pools: Recycled memory for the result. Default: fresh memory.
            field: Returns the edges' weights and times. Default: the graph's own fields.
            seed_times: With ``time``, the latest time of each seed's edges, in the shape of
                ``seeds``: integers if the graph's times are, else floats. Default: the seeds'
                values of the vertex field.

        Raises:
            KeyError: The graph does not have a vertex type, or ``seed_times`` has a type without
                seeds.
            TypeError: Times are not all integers, or all floats, on the CPU.
            ValueError: There is not one time per seed, or one is missing; a time is a float beyond
                what its dtype holds exactly; ``seed_times`` is missing and there is no vertex
                field; the graph has no field of that name; or an edge type with a window has no
                times.
            IndexError: A seed is outside ``[0, num_nodes)`` of its type.
            FormatError: The graph's arrays point outside the graph (a damaged file).
        """
        # The fastest first: all hops in one call; None if that is not possible.
        if seed_times is None and not self.disjoint:
            whole: Subgraph | None
            whole = sample_at_once(self, graph, seeds, key, dtype, pools, field)
            if whole is not None:
                return whole
        by_type = seeds_by_type(graph, seeds)
        if self.time is None and seed_times is not None:
            raise ValueError("seed_times must be None for a sampler without time, got some")
        hops = self.tree_hops(graph)
        weighted = None
        if hops is not None and self.prob is not None:
            weigh = partial(WeightedEdges.of, self, graph, hops)
            weighted = self.known_weights.get(graph, self.prob, field, weigh)
            if weighted is None:
                hops = None
        of_edges = None
        of_trees = None
        if self.time is not None:
            if hops is not None:
                make = partial(TimedEdges.of, self, graph, hops)
                of_edges = self._known_times.get(graph, self.time, field, make)
                dtypes = of_edges.dtypes
            else:
                fields = field or own_fields(graph)
                dtypes = check_time_fields(graph, self.time, fields, self.time_window)
            of_trees = TreeTimes.of(
                graph, self.time, dtypes, by_type, seed_times, share=self.share_trees
            )
        if hops is not None:
            wanted = dtype or next((ids.dtype for ids in by_type.values()), torch.int64)
            timed = hops, of_edges, of_trees
            whole = sample_trees(self, graph, by_type, key, wanted, pools, timed, weighted)
            if whole is not None:
                return whole
        run = SubgraphRun(self, graph, seeds, key, dtype, pools, field)
        run.times = of_trees
        return run.subgraph()

    def tree_hops(self, graph: Graph) -> FanoutHops | None:
        """The hops, if trees can be sampled in one call; None if hop by hop."""
        if not self.disjoint or type(self) is not SubgraphSampler:
            return None
        if self.induced:
            return None
        if graph.types not in self._known_trees:
            self._known_trees[graph.types] = FanoutHops.of(self, graph, least=-1)
        return self._known_trees[graph.types]

    @cached_property
    def _known_trees(self) -> dict[Any, FanoutHops | None]:
        """Cache of :meth:`tree_hops` by a graph's types."""
        return {}

    def timed_edges(self, graph: Graph, field: EdgeField | None = None) -> TimedEdges:
        """The times of all edges that :meth:`tree_hops` (not None) draw from; raises as
        :meth:`sample`."""
        # `sample` does the same inline, which saves two calls per batch.
        hops = self.tree_hops(graph)
        assert hops is not None
        make = partial(TimedEdges.of, self, graph, hops)
        return self._known_times.get(graph, self.time or "", field, make)

    @cached_property
    def _known_times(self) -> KnownFields[TimedEdges]:
        return KnownFields()


# The local id of a frontier's first vertex, and the edges drawn, in scratch.
_PlacedEdges = tuple[int, HopEdges]


class SubgraphRun(BatchRun):
    """A subgraph while it is sampled hop by hop; vertex ``v`` of disjoint tree ``t`` has the id
    ``t * num_nodes + v``."""

    sampler: SubgraphSampler
    times: TreeTimes | None = None

    @cached_property
    def _identified(self) -> set[EdgeType]:
        """Edge types whose drawn edges have edge ids in place of positions."""
        return set()

    @property
    def num_trees(self) -> int:
        """Number of disjoint trees of the batch."""
        return sum(map(len, self.seeds.values())) if self.times is None else len(self.times.until)

    def subgraph(self) -> Subgraph:
        """Sample all hops, and assemble the subgraph."""
        hops, ends = self.expand()
        ids = {ntype: table.nodes for ntype, table in self.tables.items()}
        if self.sampler.disjoint and self.sampler.induced:
            return self.induced_in_trees(ids, ends)
        edges = {
            etype: self._edges(etype, [hop[etype] for hop in hops])
            for etype in self.graph.edge_types
        }
        return self._put_together(ids, edges, ends)

    def expand(self) -> tuple[list[dict[EdgeType, _PlacedEdges]], dict[str, list[int]]]:
        """Sample all hops; returns their edges, and by vertex type the ends of each hop's
        vertices."""
        self._plant()
        hops: list[dict[EdgeType, _PlacedEdges]] = []

        def expand(number: int, begins: Mapping[str, int], known: Mapping[str, int]) -> None:
            hops.append(self._hop(number, begins, known))

        ends = self.each_hop(expand)
        return hops, ends

    def induced_in_trees(
        self, ids: dict[str, Any], ends: dict[str, list[int]], *, by_source: bool = False
    ) -> Subgraph:
        """The subgraph of vertices of trees, with all edges within each tree and its time
        limits."""
        split = {ntype: self._split(ntype, known) for ntype, known in ids.items()}
        vertices = {}
        for ntype, known in split.items():
            sizes = (self.graph.num_nodes_of(ntype), self.num_trees)
            vertices[ntype] = TreeVertices.of(ntype, *known, sizes, self.scratch)
        edges = {}
        for index, etype in enumerate(self.graph.edge_types):
            known = split[etype[2]]
            edges[etype] = self._in_trees(index, etype, known, vertices, by_source)
        return self._put_together(ids, edges, ends)

    def _in_trees(
        self,
        index: int,
        etype: EdgeType,
        known: Any,
        vertices: Mapping[str, TreeVertices],
        by_source: bool,
    ) -> SampledEdges:
        """The edges of type number ``index`` within trees.

        ``known`` has the destinations as the graph's ids, and their trees.
        """
        src = vertices[etype[0]]
        dst = vertices[etype[2]]
        frontier, trees = known
        # Hop number 0 is arbitrary: it only keys random draws, and all edges are taken.
        pool = self.pools(("edges", etype))
        hop = self.hop(0, index, frontier, self.dtype, pool, **self._limits(etype, trees))
        starts, degrees, _ = measure_rows(hop, -1, False)
        if hop.csc.pages is not None:
            hop.csc.pages.need_edges(starts, degrees)
        # Of whole rows, as an upper bound for rows cut by time.
        longest = int(degrees.max(initial=0))
        times = self.sampler.times(self.graph, etype, self.field)
        if times is not None:
            hop = replace(hop, csc=times.in_order(hop.csc))
            starts, degrees, _ = self.sampler.timed_picker(-1, times).rows(hop)
        return edges_in_trees(hop, src, dst, (starts, degrees), longest, by_source=by_source)

    def _put_together(
        self, ids: dict[str, Any], edges: dict[EdgeType, SampledEdges], ends: dict[str, list[int]]
    ) -> Subgraph:
        nodes = {}
        trees = {}
        for ntype, known in ids.items():
            nodes[ntype], of_vertices = self._found(ntype, known)
            if of_vertices is not None:
                trees[ntype] = of_vertices
        return Subgraph(dict(self.seeds), nodes, edges, ends, trees or None)

    def _plant(self) -> None:
        """Enter the seeds into the vertex tables."""
        planted = 0
        num_trees = self.num_trees
        trees = torch.arange(num_trees, device="cpu") if self.times is None else self.times.of_seeds
        for ntype, table in self.tables.items():
            ids = self.seeds.get(ntype)
            num_nodes = self.graph.num_nodes_of(ntype)
            if not self.sampler.disjoint:
                table.reset(ids, num_nodes, id_dtype_of(self.graph))
                continue
            if ids is not None:
                ids = ids.long() + num_nodes * trees[planted : planted + len(ids)]
                planted += len(ids)
            table.reset(ids, num_nodes * num_trees, np.int64)

    def _hop(
        self, number: int, begins: Mapping[str, int], ends: Mapping[str, int]
    ) -> dict[EdgeType, _PlacedEdges]:
        """Sample one hop along every edge type, from the vertices that the previous hop found."""
        found = {t: table.nodes[begins[t] : ends[t]] for t, table in self.tables.items()}
        drawn = {}
        frontiers = {}
        for ntype, ids in found.items():
            frontiers[ntype] = self._split(ntype, ids) if self.sampler.disjoint else (ids, None)
        for index, etype in enumerate(self.graph.edge_types):
            src_type, _, dst_type = etype
            frontier, trees = frontiers[dst_type]
            # Random numbers by vertex and tree, so that a vertex draws independently in each.
            drawn_as = None if trees is None else found[dst_type]
            hop = self.hop(
                number,
                index,
                frontier,
                torch.int32,  # large enough for local ids
                HopMemory(self.scratch, ("hop", number, index)),
                drawn_as=drawn_as,
                **self._limits(etype, trees),
            )
            edges = self.sampler.pick(self.graph, hop, number, etype, self.field)
            sources = self._sources(hop, etype, edges, trees)
            self.tables[src_type].relabel(sources, edges.indices.numpy())
            drawn[etype] = begins[dst_type], edges
        return drawn

    def _split(self, ntype: str, ids: Any) -> tuple[Any, Any]:
        """The graph's ids and the trees of vertices of trees, in scratch."""
        from .kernels import trees as _trees

        vertices, trees = (
            self.scratch.array((part, ntype), len(ids), np.int64) for part in ("vertices", "trees")
        )
        _trees.split_trees(ids, self.graph.num_nodes_of(ntype), vertices, trees)
        return vertices, trees

    def _limits(self, etype: EdgeType, trees: Any) -> dict[str, Any]:
        """The time limits of the edges of vertices in these trees, as arguments of ``Hop``."""
        from .kernels import trees as _trees

        if self.times is None:
            return {}
        limits: dict[str, Any] = {"until": self.times.until.numpy()}
        since = self.times.starts(self.sampler.window(etype))
        if since is not None:
            limits["since"] = since
        for name, of_trees in limits.items():
            limits[name] = self.scratch.array(name, len(trees), np.int64)
            _trees.limits_of(trees, of_trees, limits[name])
        return limits

    def _sources(self, hop: Hop, etype: EdgeType, edges: HopEdges, trees: Any) -> Any:
        """The sources of drawn edges, as the vertex tables have them."""
        from .kernels import trees as _trees

        sources = self._read(hop, etype, edges)
        if trees is None:
            return sources
        num_src = hop.csc.num_src
        lifted = self.scratch.array("lifted", len(sources), np.int64)
        bad = _trees.in_trees(sources, edges.indptr.numpy(), trees, num_src, lifted)
        if bad >= 0:
            raise_bad_source(int(sources[bad]), num_src)
        return lifted

    def _read(self, hop: Hop, etype: EdgeType, edges: HopEdges) -> Any:
        """The sources of drawn edges; with times that rows are not ordered by, also replaces the
        edges' positions by ids."""
        from .kernels import times as _times

        times = None
        if self.times is not None and len(edges.positions):
            times = self.sampler.times(self.graph, etype, self.field)
        if times is None or times.edges is None:
            return self.read_sources(hop, edges)
        # Picks are indices of rows sorted by time, for which `times.edges` has source and id.
        self._identified.add(etype)
        positions = edges.positions.numpy()
        sources = self.scratch.array("neighbors", len(positions), positions.dtype)
        _times.read_edges(times.edges.view(-1).numpy(), positions, sources, positions)
        return sources

    def _found(self, ntype: str, known: Any) -> tuple[Tensor, Tensor | None]:
        """The graph's ids of all vertices of a type, and their trees if these are disjoint."""
        from .kernels import trees as _trees

        nodes = self.pools(("nodes", ntype)).take((len(known),), self.dtype)
        if not self.sampler.disjoint:
            nodes.numpy()[:] = known
            return nodes, None
        trees = self.pools(("trees", ntype)).take((len(known),), torch.int64)
        _trees.split_trees(known, self.graph.num_nodes_of(ntype), nodes.numpy(), trees.numpy())
        return nodes, trees

    def _edges(self, etype: EdgeType, hops: Sequence[_PlacedEdges]) -> SampledEdges:
        """The edges of all hops in order, or all edges of the graph among the vertices."""
        from .kernels import trees as _trees

        sampler = self.sampler
        if sampler.induced:
            return induced_edges(
                self.graph, etype, self.nodes, self.dtype, self.pools, sampler.edge_dir
            )
        ends = [0]
        for _, edges in hops:
            ends.append(ends[-1] + len(edges.positions))
        specs = ((2, ends[-1]), self.dtype), ((ends[-1],), torch.int64)
        edge_index, ids = self.pools(("edges", etype)).take_many(*specs)
        src, dst = edge_index.numpy()
        csc = self.graph.adjacency(sampler.edge_dir, etype).scattered
        are_ids = etype in self._identified
        edge_ids = edge_ids_of(csc)
        if are_ids:
            edge_ids = edge_ids[:0]
        for (first_dst, edges), at in zip(hops, ends, strict=False):
            if csc.pages is not None and not are_ids:
                csc.pages.need_ids(edges.positions.numpy())
            arrays = edges.indptr.numpy(), edges.indices.numpy(), edges.positions.numpy()
            _trees.put_edges(*arrays, edge_ids, first_dst, at, src, dst, ids.numpy())
        return SampledEdges(edge_index, ids, ends)


@dataclass(frozen=True)
class ShaDowSampler(MiniBatchSampler):
    """Draws a neighbourhood for each seed, with all edges of the graph within it.

    The k-hop sampler of Zeng et al. ("Decoupling the Depth and Scope of Graph Neural Networks",
    NeurIPS 2021, section 4), for graphs of one vertex type. Batches are laid out like those of
    torch-sparse's ``ego_k_hop_sample_adj``: seed by seed, with each one's vertices ordered by id. A
    vertex draws once, in the hop after the one that found it; in torch-sparse it draws again each
    time it is found.

    Args:
        depth: Number of hops; with 0, only the seeds and their self-loops.
        fanout: Neighbours that a vertex draws in each hop; -1 takes all.
        replace: Draw with replacement from vertices with more than ``fanout`` neighbours.
        by_source: Order edges by source, then by destination, like PyG's ``edge_index``; else by
            destination, as in all other subgraphs.

    Raises:
        TypeError: A number is not an integer.
        ValueError: ``depth`` is negative, or ``fanout`` is below -1.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 0])
        >>> batch = ShaDowSampler(1, 5).sample(graph, torch.tensor([2, 0]))
        >>> batch.input_nodes["_N"].tolist(), batch.trees["_N"].tolist()
        ([1, 2, 0, 2], [0, 0, 1, 1])
        >>> batch.edges["_N", "_E", "_N"].edge_index.tolist()
        [[0, 3], [1, 2]]
    """

    depth: int
    fanout: int
    replace: bool = False
    by_source: bool = False
    num_hops = 0  # since vertices are not ordered by hop
    seeds_are_vertices = False  # since seeds do not come first
    disjoint = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", as_integer("depth", self.depth, least=0))
        object.__setattr__(self, "replace", as_flag("replace", self.replace))
        object.__setattr__(self, "fanout", check_fanout(self.fanout, self.replace, least=0))

    @cached_property
    def _neighbourhoods(self) -> _Neighbourhoods:
        return _Neighbourhoods(
            [self.fanout] * self.depth, self.replace, disjoint=True, induced=True
        )

    def sample(
        self,
        graph: Graph,
        seeds: Tensor,
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
    ) -> Subgraph:
        """Sample one mini-batch; see :meth:`SubgraphSampler.sample`."""
        run = SubgraphRun(self._neighbourhoods, graph, seeds, key, dtype, pools, None)
        run.expand()
        ids = {ntype: np.sort(table.nodes) for ntype, table in run.tables.items()}
        return run.induced_in_trees(
            ids, {t: [len(known)] for t, known in ids.items()}, by_source=self.by_source
        )


@dataclass(frozen=True)
class _Neighbourhoods(SubgraphSampler):
    """Draws the vertices; with replacement only from rows longer than the fan-out."""

    def picker(
        self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField
    ) -> Picker | None:
        """See :meth:`HopSampler.picker`."""
        fanout = self.fanout(hop, edge_type)
        if self.replace and fanout > 0:
            return _RepeatedPicker(fanout)
        return UniformPicker(fanout) if fanout else None


@dataclass(frozen=True)
class _RepeatedPicker:
    """Draws ``fanout`` in-edges of each vertex with replacement; takes all if there are no more."""

    fanout: int

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`."""
        from .kernels import trees

        starts, degrees, offsets = measure_rows(hop, self.fanout, False)
        edges = hop.edges(offsets)
        trees.pick_all_or_repeated(
            hop.counters, starts, degrees, offsets, hop.key, edges.positions.numpy()
        )
        return edges
