"""Samplers of subgraphs, which expand each vertex once: of all seeds, or ShaDow's of each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..graph.minibatch import Subgraph
from ..system.checks import as_flag, as_integer, check_fanout
from .edge_values import EdgeField, KnownFields
from .hop import Hop, HopEdges
from .induced import induced_batch
from .pickers import TimedPicker, UniformPicker, measure_rows
from .sampler import FanoutSampler, MiniBatchSampler, seeds_by_type
from .times import EdgeTimes, TimedEdges, TreeTimes, as_window, edge_times
from .trees import induced_in_trees
from .whole_batch import sample_batch, sampled_vertices

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
    _drops_edges = False  # whether only the vertices are used

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
        if self.time is None and seed_times is not None:
            raise ValueError("seed_times must be None for a sampler without time, got some")
        if not self.disjoint:
            if not self.induced:
                whole: Subgraph = sample_batch(self, graph, seeds, key, dtype, pools, field)
                return whole
            found = sampled_vertices(self, graph, seeds, key, dtype, field)
            return induced_batch(graph, *found, pools, self.edge_dir)
        by_type = seeds_by_type(graph, seeds)
        timed = None
        if self.time is not None:
            # As in `timed_edges`, which would be two more calls a batch.
            plan = self.known_plans.get(graph.types) or self.plan(graph)
            make = partial(TimedEdges.of, self, graph, plan.fanouts)
            of_edges = self._known_times.get(graph, self.time, field, make)
            of_trees = TreeTimes.of(
                graph, self.time, of_edges.dtypes, by_type, seed_times, share=self.share_trees
            )
            timed = of_edges, of_trees
        batch: Subgraph = sample_batch(
            self,
            graph,
            by_type,
            key,
            dtype,
            pools,
            field,
            timed=timed,
            reads_ids=not (self.induced or self._drops_edges),
        )
        if self.induced:
            times = None if timed is None else timed[1]
            return induced_in_trees(self, graph, batch, times, field, pools)
        return batch

    def timed_edges(self, graph: Graph, field: EdgeField | None = None) -> TimedEdges:
        """The times of all edges that are drawn from; raises as :meth:`sample`."""
        make = partial(TimedEdges.of, self, graph, self.plan(graph).fanouts)
        return self._known_times.get(graph, self.time or "", field, make)

    @cached_property
    def _known_times(self) -> KnownFields[TimedEdges]:
        return KnownFields()


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
        return _Neighbourhoods([self.fanout] * self.depth, self.replace, disjoint=True)

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
        found = self._neighbourhoods.sample(graph, seeds, key, dtype=dtype)
        return induced_in_trees(
            self._neighbourhoods,
            graph,
            _by_id(graph, found),
            None,
            None,
            pools,
            by_source=self.by_source,
        )


def _by_id(graph: Graph, batch: Subgraph) -> Subgraph:
    """A batch of trees without its edges, and with the vertices of each tree in the order of
    ids."""
    from .kernels import trees as _trees

    assert batch.trees is not None
    nodes = {}
    trees = {}
    for ntype, ids in batch.input_nodes.items():
        num_nodes = graph.num_nodes_of(ntype)
        of_vertices = batch.trees[ntype]
        ordered = np.sort((of_vertices * num_nodes + ids).numpy())
        nodes[ntype] = torch.empty_like(ids)
        trees[ntype] = torch.empty_like(of_vertices)
        _trees.split_trees(ordered, num_nodes, nodes[ntype].numpy(), trees[ntype].numpy())
    ends = {ntype: [len(ids)] for ntype, ids in nodes.items()}
    return Subgraph(batch.output_nodes, nodes, {}, ends, trees)


@dataclass(frozen=True)
class _Neighbourhoods(SubgraphSampler):
    """Draws the vertices; with replacement only from rows longer than the fan-out."""

    _drops_edges = True

    @property
    def kind_of_pick(self) -> str:
        """See :attr:`HopSampler.kind_of_pick`."""
        return "caller" if self.replace else "each"

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
