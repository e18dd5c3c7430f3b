"""Partition of a graph: the part of each training vertex, and the halo that each part holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..graph.csc import CSC, id_dtype
from ..graph.graph import EdgeType, Graph

UNREACHED = 255
"""Hop of a vertex that was not reached yet; the kernel ``mark_sources`` tests for it."""
LEFT_OUT = 254
"""Hop of a vertex that must not be reached."""


@dataclass(frozen=True)
class Numbering:
    """Numbers a graph's vertices over all types, one type after another.

    With a single type the numbers are the ids.

    Attributes:
        num_nodes: Vertex type to its number of vertices, in the order of the types.

    Example:
        >>> numbering = Numbering({"paper": 3, "author": 2})
        >>> numbering.begin("author")
        3
        >>> {name: ids.tolist() for name, ids in numbering.split(torch.tensor([4, 0, 3])).items()}
        {'paper': [0], 'author': [1, 0]}
    """

    num_nodes: Mapping[str, int]

    def begin(self, node_type: str) -> int:
        """Number of the first vertex of a type."""
        types = list(self.num_nodes)
        return sum(self.num_nodes[name] for name in types[: types.index(node_type)])

    def rows(self, node_type: str) -> slice:
        """Numbers of the vertices of a type."""
        begin = self.begin(node_type)
        return slice(begin, begin + self.num_nodes[node_type])

    def split(self, numbers: Tensor) -> dict[str, Tensor]:
        """Ids of the numbered vertices of each type, in their order."""
        if len(self.num_nodes) == 1:  # no copy
            return dict.fromkeys(self.num_nodes, numbers)
        return {
            name: numbers[places] - self.begin(name)
            for name, places in self.places(numbers).items()
        }

    def places(self, numbers: Tensor) -> dict[str, Tensor]:
        """Places in ``numbers`` of the vertices of each type, ascending, int64."""
        found = {}
        begin = 0
        for name, count in self.num_nodes.items():
            found[name] = ((numbers >= begin) & (numbers < begin + count)).nonzero().squeeze(1)
            begin += count
        return found


def of_type(graph: Graph, name: str | EdgeType) -> str:
    """The words " of type ..." for messages about a graph with several types, else ""."""
    if graph.is_homogeneous:
        return ""
    text = name if isinstance(name, str) else "/".join(name)
    return f" of type {text!r}"


def merged_dtype(graph: Graph) -> torch.dtype:
    """Dtype of ids in what :func:`merged` returns."""
    if graph.is_homogeneous:
        return graph.csc.indptr.dtype
    return id_dtype(graph.num_nodes, graph.num_edges)


def merged_bytes(graph: Graph) -> int:
    """Bytes of the copy that :func:`merged` makes."""
    if graph.is_homogeneous:
        return 0
    return merged_dtype(graph).itemsize * (graph.num_nodes + 1 + graph.num_edges)


# One copy for dividing, limiting, describing and writing a graph. Weak keys free it with the graph.
# Two threads may both make it; one of the equal copies is kept.
_merged: WeakKeyDictionary[Graph, Graph] = WeakKeyDictionary()


def merged(graph: Graph) -> Graph:
    """A graph of one type with the in-edges of all types, in one :class:`Numbering`.

    It has no fields and no edge ids. A graph with one vertex type and one edge type is returned
    itself. Otherwise a copy of 4 bytes per edge and vertex (8 from 2**31 on) is made once and kept
    as long as the graph. Within a row, edges are ordered by type.

    Raises:
        ValueError: An id is out of range.
    """
    if graph.is_homogeneous:
        return graph
    found = _merged.get(graph)
    if found is None:
        _merged[graph] = found = Graph(_merge(graph), graph.num_nodes)
    return found


def _merge(graph: Graph) -> CSC:
    from . import _kernels

    numbering = Numbering(graph.num_nodes_by_type)
    counts = torch.zeros(graph.num_nodes, dtype=torch.int64, device="cpu")
    for edge_type in graph.edge_types:
        csc = graph.csc_of(edge_type)
        csc.validate()
        counts[numbering.rows(edge_type[2])] += torch.diff(csc.indptr)
    dtype = merged_dtype(graph)
    indptr = torch.zeros(graph.num_nodes + 1, dtype=dtype, device="cpu")
    indptr[1:] = counts.cumsum(0)
    # Next free position of each row: every edge type appends to the rows of its destinations.
    ends = indptr[:-1].clone()
    indices = torch.empty(graph.num_edges, dtype=dtype, device="cpu")
    for edge_type in graph.edge_types:
        csc = graph.csc_of(edge_type)
        first = numbering.begin(edge_type[0])
        own = ends[numbering.rows(edge_type[2])]
        _kernels.append_rows(*csc.arrays, first, own.numpy(), indices.numpy())
    return CSC(indptr, indices, graph.num_nodes)


@dataclass(frozen=True, eq=False)
class PartVertices:
    """Vertices of a part, nearest first; a vertex's place is its local id.

    Attributes:
        ids: Ids in the whole graph, shape ``(n,)``, int64: the seeds ascending, then those of hop 1
            ascending, and so on.
        hop_ends: ``ids[:hop_ends[h]]`` are those within ``h`` hops; ``hops + 1`` numbers.
    """

    ids: Tensor
    hop_ends: tuple[int, ...]

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        return self.hop_ends[0]

    @property
    def num_inner(self) -> int:
        """Number of vertices whose in-edges belong to the part: all but those of the last hop."""
        return self.hop_ends[-2] if len(self.hop_ends) > 1 else self.num_seeds

    def by_type(self, numbering: Numbering) -> dict[str, PartVertices]:
        """The vertices of each type; here ``ids`` are numbers over all types, there within one."""
        if len(numbering.num_nodes) == 1:
            return dict.fromkeys(numbering.num_nodes, self)
        hop_ends = torch.tensor(self.hop_ends, device="cpu")
        found = {}
        for name, places in numbering.places(self.ids).items():
            # Places ascend: a type's vertices within h hops are those at places below hop_ends[h].
            ends = torch.searchsorted(places, hop_ends).tolist()
            found[name] = PartVertices(self.ids[places] - numbering.begin(name), tuple(ends))
        return found


def vertices_within(
    graph: Graph, seeds: Tensor, hops: int, *, without: Tensor | None = None
) -> PartVertices:
    """L-hop in-neighbourhood of seeds, including the seeds.

    Needs one byte per vertex in addition to the graph. Reads each in-edge at most once, so the
    graph may be memory-mapped.

    Args:
        graph: One vertex type and one edge type.
        seeds: Distinct vertex ids, ascending, int64.
        hops: From 0 to 253.
        without: Ids of vertices that are neither included nor expanded, unless they are seeds.
    """
    from . import _kernels

    csc = graph.csc
    hop_of = torch.full((csc.num_dst,), UNREACHED, dtype=torch.uint8, device="cpu")
    if without is not None:
        hop_of[without] = LEFT_OUT
    hop_of[seeds] = 0  # after ``without``: seeds are never left out
    found = [seeds]
    ends = [len(seeds)]
    for hop in range(1, hops + 1):
        count = _kernels.mark_sources(*csc.arrays, found[-1].numpy(), hop, hop_of.numpy())
        # The scan also sorts a hop by id. It is a pass over all vertices, so it is skipped once a
        # hop is empty; all later ones are empty, too.
        ring = (hop_of == hop).nonzero().squeeze(1) if count else seeds[:0]
        found.append(ring)
        ends.append(ends[-1] + count)
    return PartVertices(torch.cat(found), tuple(ends))


@dataclass(frozen=True, eq=False)
class Partition:
    """Assignment of a graph's training vertices to parts.

    Each part also holds what its training vertices reach in ``hops`` hops.

    Attributes:
        graph: The whole graph.
        train: Ids of the training vertices, which are of one type, ascending, shape ``(n,)``,
            int64.
        parts: The part of each training vertex, shape ``(n,)``, int32, in ``[0, num_parts)``.
        hops: Number of hops of in-neighbours that a part holds.
        method: Name of the partitioning method.
        evaluation: The part of every vertex of ``evaluated``, int32; None where parts are for
            training only.
        evaluated: Ids of the validation and test vertices whose neighbourhoods parts also hold,
            ascending, int64.
        dropped: Ids of each part's dropped halo vertices (int64, ascending); with several types,
            their numbers over all types. None if parts are complete.
        lost: Share of the neighbour draws that go to dropped vertices; None without a limit.
        node_type: Type of the training and evaluated vertices; None for the only one.
        owner: The part that owns each vertex, by its number over all types, int32, as set by
            :func:`pagraph.partition.place_vertices`; else None.

    Example:
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 3])
        >>> parts = torch.tensor([0, 1], dtype=torch.int32)
        >>> partition = Partition(graph, torch.tensor([1, 3]), parts, 2, 1, "hash")
        >>> [partition.vertices(part).ids.tolist() for part in range(2)]
        [[1, 0], [3, 2]]
    """

    graph: Graph
    train: Tensor
    parts: Tensor
    num_parts: int
    hops: int
    method: str
    evaluation: Tensor | None = None
    evaluated: Tensor | None = None
    dropped: tuple[Tensor, ...] | None = None
    lost: float | None = None
    node_type: str | None = None
    owner: Tensor | None = None

    def __repr__(self) -> str:
        how = f"hops={self.hops}, method={self.method!r}, train={len(self.train)}"
        return f"Partition({self.num_parts} parts, {how}, {self.graph})"

    @property
    def train_type(self) -> str:
        """Type of the training and evaluated vertices."""
        return self.graph.only_node_type if self.node_type is None else self.node_type

    @property
    def numbering(self) -> Numbering:
        """Numbers of the vertices over all types; for one type, their ids."""
        return Numbering(self.graph.num_nodes_by_type)

    @property
    def merged(self) -> Graph:
        """The graph with all types as one, see :func:`pagraph.partition.partition.merged`."""
        return merged(self.graph)

    def train_of(self, part: int) -> Tensor:
        """Ids of the training vertices of a part, ascending, int64."""
        chosen: Tensor = self.train[self.parts == part]
        return chosen

    def seeds_of(self, part: int) -> Tensor:
        """Training and ``evaluated`` vertices of a part, whose whole neighbourhood it holds.

        Returns:
            Their numbers over all types, ascending, int64.
        """
        seeds = self.train_of(part)
        if self.evaluated is not None:
            seeds = torch.unique(torch.cat([seeds, self.evaluated[self.evaluation == part]]))
        return seeds + self.numbering.begin(self.train_type)

    def vertices(self, part: int) -> PartVertices:
        """Vertices of a part by their numbers over all types: seeds, then hop after hop."""
        without = None if self.dropped is None else self.dropped[part]
        return vertices_within(self.merged, self.seeds_of(part), self.hops, without=without)
