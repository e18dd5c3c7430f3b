"""Base of all samplers, and of those that expand seeds hop by hop."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range
from ..seeds.keys import Renewal, derive_key
from ..system.buffers import BufferPools
from ..system.checks import as_flag, as_integer, check_fanout
from .edge_values import EdgeField, EdgeWeights, KnownFields, edge_weights
from .hop import SHARES_NONE, EdgeMemory, Hop, HopEdges, Scratch
from .pickers import UniformPicker, WeightedPicker

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..graph.graph import EdgeType, Graph
    from .hop import Picker

# Settings that do not change how often a vertex is expected to be read.
_SAME_READS = ("batch_dependency",)


class MiniBatchSampler:
    """Base of all samplers: turns seeds into a mini-batch, as a pure function of graph, seeds and
    key.

    Subclasses are frozen dataclasses (see :attr:`cache_key`) and thread-safe.

    Attributes:
        seeds_are_vertices: Whether seeds are vertices, whose rows are read; else edges or pairs.
        disjoint: Whether each seed has its own tree: a vertex found from two seeds occurs twice.
    """

    seeds_are_vertices: bool = True
    disjoint: bool = False

    @property
    def hops(self) -> HopSampler | None:
        """The sampler of the hops to neighbours: this one or one inside; None if unknown."""
        return None

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        raise NotImplementedError

    @property
    def trees_per_seed(self) -> int:
        """Maximum trees rooted at one seed, if trees are disjoint."""
        return 1

    @property
    def cache_key(self) -> Hashable:
        """Equal for samplers that sample the same from the same graph; the key of shared caches."""
        settings: Any = self
        names = [field.name for field in fields(settings) if field.name not in _SAME_READS]
        return type(self), *(_hashable(getattr(self, name)) for name in names)

    def seed_rates(self, seeds: Any, batch_size: int) -> dict[str, Tensor] | None:
        """Probability of each vertex to be in the first frontier of a batch of ``batch_size``
        seeds.

        Returns:
            Vertex type to float64, shape ``(num_nodes,)``; None if seeds are the frontier.
        """
        return None

    def sample(self, graph: Graph, seeds: Any, key: int = 0) -> Any:
        """Sample one mini-batch; thread-safe."""
        raise NotImplementedError


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted((repr(name), _hashable(entry)) for name, entry in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value.cache_key if isinstance(value, MiniBatchSampler) else value


MOST_SMALL_FANOUT = 2**18  # a set of picks is that large, even where no seed draws


def check_per_hop(
    name: str, entries: Any, check: Callable[[Any, int], int], *, least: int = 1
) -> tuple[int | dict[EdgeType, int], ...]:
    """The checked entries of all hops; a mapping may have 0, for edge types without picks.

    Args:
        name: Name of the argument, for errors.
        entries: A number, or a mapping from edge type to numbers, for each hop.
        check: Returns a number as an int, or raises, given the number and its lower bound.
        least: Lower bound of a number outside a mapping; with 0 entries may be empty.

    Raises:
        ValueError: There is no entry.
    """
    entries = tuple(entries)
    if least and not entries:
        raise ValueError(f"{name} must have at least 1 entry, got none")
    return tuple(
        {t: check(number, 0) for t, number in entry.items()}
        if isinstance(entry, Mapping)
        else check(entry, least)
        for entry in entries
    )


def check_prob(prob: object) -> None:
    """Raise TypeError unless ``prob`` is a name of an edge field or None."""
    if prob is not None and not isinstance(prob, str):
        raise TypeError(f"prob must be the name of an edge field, got {prob!r}")


def check_edge_dir(edge_dir: str) -> None:
    """Raise ValueError for an unknown direction of edges."""
    if edge_dir not in ("in", "out"):
        raise ValueError(f"edge_dir must be 'in' or 'out', got {edge_dir!r}")


def of_edge_type(entry: int | Mapping[EdgeType, int], edge_type: EdgeType) -> int:
    """The number of a hop's entry for an edge type; KeyError where it does not name the type."""
    return entry[edge_type] if isinstance(entry, Mapping) else entry


def edge_ends(graph: Graph) -> Any:
    """The places of both ends' types among the vertex types, shape ``(num_edge_types, 2)``,
    int64."""
    node_types, edge_types, _ = graph.types
    ends = [(node_types.index(src), node_types.index(dst)) for src, _, dst in edge_types]
    return np.array(ends, dtype=np.int64).reshape(len(ends), 2)


@dataclass(frozen=True, eq=False)
class FanoutHops:
    """Hops along all edge types that draw a number of edges, uniformly or by weight.

    Attributes:
        fanouts: Fan-out of each hop and edge type, shape ``(num_hops, num_edge_types)``, int64; the
            first hop serves the seeds. -1 takes all, where that was asked for.
        ends: The places of both ends' types among the vertex types, shape ``(num_edge_types, 2)``,
            int64.
        replace: Draw with replacement.
        set_size: Slots that a set of one vertex's picks needs.
    """

    fanouts: Any
    ends: Any
    replace: bool
    set_size: int

    @classmethod
    def of(cls, sampler: FanoutSampler, graph: Graph, *, least: int = 0) -> FanoutHops | None:
        """The hops of a sampler; None where a fan-out is below ``least`` (-1 takes all neighbours),
        or a hop does not name a type."""
        edge_types = graph.types[1]
        try:
            fanouts = [
                [sampler.fanout(hop, etype) for etype in edge_types]
                for hop in range(sampler.num_hops)
            ]
        except KeyError:
            # A hop that does not name a type is an error of the hop-by-hop way, which says which.
            return None
        if not all(least <= fanout <= MOST_SMALL_FANOUT for of_hop in fanouts for fanout in of_hop):
            return None
        most = max([1, *(fanout for of_hop in fanouts for fanout in of_hop)])
        return cls(
            np.array(fanouts, dtype=np.int64).reshape(len(fanouts), len(edge_types)),
            edge_ends(graph),
            sampler.replace,
            1 << (2 * most - 1).bit_length(),
        )


class HopSampler(MiniBatchSampler):
    """Base of the samplers that go from seeds to their neighbours hop by hop. Subclasses say how
    edges are picked.

    Attributes:
        edge_dir: "in" or "out": which edges are drawn.
        prob: Edge field that edges are weighed by; None: all alike.
        time: Field that edges are chosen by time with; None: none.
        replace: Edges are drawn with replacement.
        layer_dependency: All hops share their random numbers (LABOR).
        batch_dependency: Batches after which a vertex draws with another random number; see
            ``Renewal``.
        expands_once: A hop draws only from the vertices that the hop before found, not from all
            that are known.
    """

    edge_dir: str
    prob: str | None
    time: str | None = None
    replace: bool = False
    layer_dependency: bool = False
    batch_dependency: int = 1
    expands_once: bool = False

    def check_edges(self) -> None:
        """Raise ValueError for an unknown direction and TypeError for a ``prob`` that is not a
        string."""
        check_edge_dir(self.edge_dir)
        check_prob(self.prob)

    def weights(self, graph: Graph, edge_type: EdgeType, field: EdgeField) -> EdgeWeights | None:
        """The weights in the field ``prob``; None where there is no such field, or none is named.

        Raises:
            TypeError: The field holds something else than numbers.
            ValueError: It does not hold one finite number per edge, or a negative one.
        """
        values = None if self.prob is None else field(edge_type, self.prob)
        if values is None:
            return None
        return edge_weights(
            graph.adjacency(self.edge_dir, edge_type), values, name=f"edge field {self.prob!r}"
        )

    @property
    def hops(self) -> HopSampler:  # noqa: D102
        return self

    @property
    def has_fanouts(self) -> bool:
        """Whether :meth:`fanout` says how many edges a vertex draws."""
        return type(self).fanout is not HopSampler.fanout

    def fanout(self, hop: int, edge_type: EdgeType) -> int:
        """Edges that a vertex draws in hop number ``hop`` (0 serves the seeds); -1: all.

        Raises:
            NotImplementedError: The sampler has no fan-outs, see :attr:`has_fanouts`.
        """
        raise NotImplementedError

    def fanout_hops(self, graph: Graph) -> FanoutHops | None:
        """The hops along all edge types if one call of a kernel draws them: uniformly, or in
        proportion to the field ``prob``; None otherwise."""
        return None

    @cached_property
    def known_hops(self) -> dict[Hashable, FanoutHops | None]:
        """Memoized :meth:`fanout_hops` by the types of a graph: small batches ask every time."""
        return {}

    @cached_property
    def known_weights(self) -> KnownFields[Any]:
        """Weights of all edges of the graph that was sampled last, as kernels take them."""
        return KnownFields()

    @property
    def weighs_edges(self) -> bool:
        """Whether blocks have edge weights; those without any edge then have an empty tensor of
        them."""
        return False

    def picker(
        self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField
    ) -> Picker | None:
        """The picker of hop number ``hop`` (0 serves the seeds) along ``edge_type``; None: no
        edges."""
        raise NotImplementedError

    def with_in_edges(self) -> Self:
        """The same sampler for in-edges: for graphs that are reversed already."""
        return self if self.edge_dir == "in" else replace(self, edge_dir="in")  # type: ignore[type-var]

    def pick(
        self, graph: Graph, hop: Hop, number: int, edge_type: EdgeType, field: EdgeField
    ) -> HopEdges:
        """The edges of one type that hop number ``number`` draws; none for an empty frontier or
        without a picker."""
        picker = self.picker(graph, number, edge_type, field) if len(hop.frontier) else None
        if picker is not None:
            return picker.pick(hop)
        return hop.edges(
            np.zeros(len(hop.frontier) + 1, dtype=np.int64), weighted=self.weighs_edges
        )


class FanoutSampler(HopSampler):
    """Base of the samplers that draw a number of neighbours of each vertex.

    Attributes:
        fanouts: Neighbours per vertex for each hop, or a mapping from edge type to such numbers;
            the last entry serves the seeds, -1 takes all.
    """

    fanouts: Sequence[int | Mapping[EdgeType, int]]

    def check_fanouts(self, *, least: int = 1) -> None:
        """Check and normalise ``fanouts``, then :meth:`check_edges`; see :func:`check_per_hop` for
        ``least``."""
        object.__setattr__(self, "replace", as_flag("replace", self.replace))
        checked = check_per_hop(
            "fanouts",
            self.fanouts,
            lambda n, least: check_fanout(n, self.replace, least=least),
            least=least,
        )
        self.check_edges()
        object.__setattr__(self, "fanouts", checked)
        object.__setattr__(
            self, "batch_dependency", as_integer("batch_dependency", self.batch_dependency, least=1)
        )

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return len(self.fanouts)

    def fanout(self, hop: int, edge_type: EdgeType) -> int:
        """Neighbours drawn (with LABOR on average) in hop number ``hop`` (0 serves the seeds).

        Raises:
            KeyError: The hop's fan-outs do not name the edge type.
        """
        return of_edge_type(self.fanouts[-1 - hop], edge_type)

    def picker(
        self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField
    ) -> Picker | None:
        """See :meth:`HopSampler.picker`; raises as :meth:`weights` does."""
        fanout = self.fanout(hop, edge_type)
        if not fanout:
            return None
        weights = self.weights(graph, edge_type, field)
        if weights is None:
            return UniformPicker(fanout, self.replace)
        return WeightedPicker(fanout, self.replace, weights)


class BatchRun:
    """One batch while it is sampled hop by hop: its arguments, checked and with defaults, and its
    vertex tables."""

    def __init__(
        self,
        sampler: HopSampler,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int,
        dtype: torch.dtype | None,
        pools: BufferPools | None,
        field: EdgeField | None,
    ) -> None:
        self.seeds: Mapping[str, Tensor] = seeds_by_type(graph, seeds)
        self.sampler = sampler
        self.graph = graph
        self.key: int = key
        self._offset = 0
        self._renewal = SHARES_NONE
        if sampler.batch_dependency != 1:
            shared = Renewal.of(key, sampler.batch_dependency)
            self.key = shared.key
            self._offset = shared.offset
            self._renewal = shared.numbers
        self.dtype: torch.dtype = dtype or next(
            (ids.dtype for ids in self.seeds.values()), torch.int64
        )
        self.pools: BufferPools = pools if pools is not None else BufferPools(max_free=0)
        self.field = field or own_fields(graph)
        self.scratch: Scratch = Scratch.of_this_thread()
        types = graph.node_types
        self.tables = dict(zip(types, self.scratch.tables(len(types)), strict=True))

    @property
    def nodes(self) -> dict[str, Any]:
        """The known vertices of each type, valid until others are added."""
        return {ntype: table.nodes for ntype, table in self.tables.items()}

    def counts(self) -> dict[str, int]:
        """Known vertices of each type."""
        return {ntype: table.count for ntype, table in self.tables.items()}

    def kept_nodes(self) -> dict[str, Tensor]:
        """The known vertices of each type, in memory of the batch."""
        kept = {}
        for ntype, table in self.tables.items():
            kept[ntype] = self.pools(("nodes", ntype)).take((table.count,), self.dtype)
            kept[ntype].numpy()[:] = table.nodes
        return kept

    def each_hop(
        self, expand: Callable[[int, dict[str, int], dict[str, int]], None]
    ) -> dict[str, list[int]]:
        """Let ``expand`` go through the hops, each from what was known before the one before it to
        what was known after; returns where the vertices of each hop end, by type."""
        begins = dict.fromkeys(self.tables, 0)
        known = self.counts()
        ends = {ntype: [count] for ntype, count in known.items()}
        for number in range(self.sampler.num_hops):
            expand(number, begins, known)
            begins = known
            known = self.counts()
            for ntype, count in known.items():
                ends[ntype].append(count)
        return ends

    def hop(
        self,
        number: int,
        index: int,
        frontier: Any,
        dtype: torch.dtype,
        pool: EdgeMemory,
        **more: Any,
    ) -> Hop:
        """Hop number ``number`` along edge type number ``index``; see
        :class:`~pagraph.sampling.hop.Hop`."""
        layer_key = derive_key(self.key, number)
        offset = self._offset
        return Hop(
            csc=self.graph.adjacency(self.sampler.edge_dir, self.graph.edge_types[index]).scattered,
            frontier=frontier,
            key=np.uint64(
                ((derive_key(self.key, number, index) if index else layer_key) + offset) % 2**64
            ),
            layer_key=np.uint64((layer_key + offset) % 2**64),
            batch_key=np.uint64((self.key + offset) % 2**64),
            scratch=self.scratch,
            dtype=dtype,
            pool=pool,
            renewal=self._renewal,
            **more,
        )

    def read_sources(self, hop: Hop, edges: HopEdges) -> Any:
        """The ids of the source vertices of drawn edges, shape ``(num_edges,)``, in scratch."""
        from .kernels import hop as _cpu

        indices = hop.csc.indices.numpy()
        positions = edges.positions.numpy()
        neighbors = self.scratch.array("neighbors", len(positions), indices.dtype)
        if hop.csc.pages is not None:
            hop.csc.pages.need_edges(positions)
        _cpu.read_neighbors(indices, positions, neighbors)
        return neighbors


def seeds_by_type(graph: Graph, seeds: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Seeds by vertex type; KeyError for an unknown type, IndexError for a seed outside
    ``[0, num_nodes)``."""
    by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
    for ntype, ids in by_type.items():
        name = f"seeds[{ntype!r}]" if isinstance(seeds, Mapping) else "seeds"
        # Narrowing would wrap a wrong id round into a right one.
        check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
    return by_type


def own_fields(graph: Graph) -> EdgeField:
    """The graph's own edge fields."""
    return lambda edge_type, name: graph.edge_fields(edge_type).get(name)


def id_dtype_of(graph: Graph) -> Any:
    """The widest id dtype of the graph's edge types."""
    wide = any(graph.csc_of(etype).indices.dtype == torch.int64 for etype in graph.edge_types)
    return np.dtype(np.int64 if wide else np.int32)
