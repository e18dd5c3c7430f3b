"""Extracts a part from the whole graph: structure with local ids, rows of fields, owners."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..features.field import host_feature, row_reader
from ..graph.csc import CSC, id_dtype
from ..graph.fields import FieldValue
from ..graph.graph import EdgeType, Graph
from ..system.arrays import Float64Array, Int64Array
from .methods.balancing import deal_out
from .partition import Numbering, Partition, PartVertices

# Of an interval of at most 2^32 vertices: the level is then exact to 2^-18 of one.
_HALVINGS = 50


class SelectedRows:
    """Lazy ``source[ids]``, read slice by slice.

    The pages of a slice are requested from the disk together. With ``as_stored``, rows of
    ``NarrowRows`` are not decoded, for writers and comparisons; ``decoding`` tells how to.

    Example:
        >>> SelectedRows(torch.arange(8).view(4, 2), torch.tensor([3, 0, 3]))[1:].tolist()
        [[0, 1], [6, 7]]
    """

    def __init__(self, source: FieldValue, ids: Tensor, *, as_stored: bool = False) -> None:
        self._feature = (
            host_feature(source, torch.device("cpu")) if as_stored else row_reader(source)
        )
        self._ids = ids
        self.dtype = self._feature.dtype
        self.decoding = self._feature.decoding
        self.shape = (len(ids), *self._feature.row_shape)

    def __getitem__(self, rows: slice) -> Tensor:
        """Some of the rows as a new tensor."""
        return self._feature.read(self._ids[rows])


@dataclass(frozen=True, eq=False)
class PartEdges:
    """Edges of one type in a part.

    Attributes:
        csc: In-edges under local ids, in the whole graph's order; vertices found at the last hop
            have none.
        edge_ids: The id in the whole graph of each edge of ``csc``, shape ``(num_edges,)``, int32
            where they fit.
    """

    csc: CSC
    edge_ids: Tensor


@dataclass(frozen=True, eq=False)
class PartStructure:
    """Vertices and edges of a part; vertex ``i`` of a type is ``types[name].ids[i]``.

    Attributes:
        vertices: The vertices by their numbers over all types.
        types: The vertices of each type.
        edges: The edges of each type.
        missing: Number of in-edges of inner vertices that are left out because their source was
            dropped.
        dropped: Number of sources of those edges.
    """

    vertices: PartVertices
    types: dict[str, PartVertices]
    edges: dict[EdgeType, PartEdges]
    missing: int
    dropped: int

    @property
    def csc(self) -> CSC:
        """In-edges of a graph with one edge type."""
        (only,) = self.edges.values()
        return only.csc

    @property
    def edge_ids(self) -> Tensor:
        """Ids of the edges in a graph with one edge type."""
        (only,) = self.edges.values()
        return only.edge_ids

    @property
    def num_edges(self) -> int:
        """Number of edges, over all types."""
        return sum(edges.csc.num_edges for edges in self.edges.values())

    def graph(self) -> Graph:
        """The part's graph, without fields."""
        return Graph(
            {t: e.csc for t, e in self.edges.items()},
            {t: len(v.ids) for t, v in self.types.items()},
        )


def extract_part(partition: Partition, part: int) -> PartStructure:
    """Structure of a part: the in-edges of its inner vertices whose source is in the part.

    Inner vertices are all but those of the last hop. Needs one id per vertex of the whole graph,
    and memory for the part; the graph may be memory-mapped.

    Example:
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 3])
        >>> parts = torch.tensor([0, 1], dtype=torch.int32)
        >>> partition = Partition(graph, torch.tensor([1, 3]), parts, 2, 1, "hash")
        >>> structure = extract_part(partition, 1)
        >>> structure.csc.indptr.tolist(), structure.csc.indices.tolist()
        ([0, 1, 1], [1])
        >>> structure.edge_ids.tolist()
        [2]
    """
    if not 0 <= part < partition.num_parts:
        raise ValueError(f"part must be in [0, {partition.num_parts}), got {part}")
    for edge_type in partition.graph.edge_types:
        partition.graph.csc_of(edge_type).validate()
    return extract_structure(partition.graph, partition.vertices(part))


def extract_structure(graph: Graph, vertices: PartVertices) -> PartStructure:
    """In-edges among ``vertices`` (numbers over all types), except those of the last hop.

    The caller has checked the graph's ids.
    """
    types = vertices.by_type(Numbering(graph.num_nodes_by_type))
    local = local_ids(graph, {name: found.ids for name, found in types.items()})
    edges: dict[EdgeType, PartEdges] = {}
    missing = 0
    dropped = 0
    for edge_type in graph.edge_types:
        source, _, target = edge_type
        whole = graph.csc_of(edge_type)
        ids = types[target].ids
        inner = types[target].num_inner
        found = edges_inside(whole, ids[:inner], local[source], edge_id_dtype(whole))
        # Vertices of the last hop have empty rows: their in-neighbours are one hop too far.
        num_src = len(types[source].ids)
        dtype = id_dtype(max(len(ids), num_src), len(found.sources))
        indptr = torch.zeros(len(ids) + 1, dtype=dtype, device="cpu")
        indptr[1 : inner + 1] = found.counts.cumsum(0)
        indptr[inner + 1 :] = len(found.sources)
        csc = CSC(indptr, found.sources.to(indptr.dtype), num_src)
        edges[edge_type] = PartEdges(csc, found.edge_ids)
        missing += found.missing
        dropped += found.dropped
    return PartStructure(vertices, types, edges, missing, dropped)


def local_ids(graph: Graph, ids: Mapping[str, Tensor]) -> dict[str, npt.NDArray[np.signedinteger]]:
    """Position of each of the graph's vertices in ``ids``, or -1; one array per vertex type."""
    from ..graph import _csc

    local = {}
    for name, chosen in ids.items():
        dtype = id_dtype(len(chosen), 0)
        places = torch.full((graph.num_nodes_of(name),), -1, dtype=dtype, device="cpu").numpy()
        _csc.number(chosen.numpy(), places)
        local[name] = places
    return local


def edge_id_dtype(whole: CSC) -> torch.dtype:
    """Narrowest integer type that holds the id of every edge."""
    if whole.edge_ids is None or not len(whole.edge_ids):
        return id_dtype(0, whole.num_edges)
    return id_dtype(0, int(whole.edge_ids.max()))


@dataclass(frozen=True, eq=False)
class InsideEdges:
    """In-edges of some vertices that come from vertices of the part, in the whole graph's order.

    Attributes:
        counts: Number of them for each destination, int64.
        sources: Local ids of the sources.
        edge_ids: Ids of the edges in the whole graph.
        missing: Number of in-edges that come from other vertices.
        dropped: Number of those vertices that no earlier call counted.
    """

    counts: Tensor
    sources: Tensor
    edge_ids: Tensor
    missing: int
    dropped: int


def edges_inside(
    whole: CSC,
    targets: Tensor,
    local: npt.NDArray[np.signedinteger],
    edge_dtype: torch.dtype,
) -> InsideEdges:
    """In-edges of ``targets`` whose source has a ``local`` id.

    ``local`` also marks the vertices counted as ``dropped``: their entries change from -1 to -2.
    """
    from . import _kernels

    rows = (*whole.arrays, targets.numpy(), local)
    counts = torch.zeros(len(targets), dtype=torch.int64, device="cpu")
    missing, dropped = _kernels.count_inside(*rows, counts.numpy())
    # Counted first, so that the arrays have the right size: a part may be most of the graph.
    num_edges = int(counts.sum())
    sources = torch.from_numpy(np.empty(num_edges, local.dtype))
    edge_ids = torch.empty(num_edges, dtype=edge_dtype, device="cpu")
    # An empty array means that an edge's id is its position.
    whole_ids = edge_ids[:0] if whole.edge_ids is None else whole.edge_ids
    _kernels.copy_inside(*rows, whole_ids.numpy(), sources.numpy(), edge_ids.numpy())
    return InsideEdges(counts, sources, edge_ids, int(missing), int(dropped))


class PartFields:
    """Fields of a part, given the ids of its vertices and edges in the whole graph.

    Args:
        graph: The whole graph.
        train_type: Type of the training vertices; their masks mark the part's own lists.
        referenced: Vertex type and name of the fields that stay in the whole graph's files.
    """

    def __init__(
        self, graph: Graph, train_type: str, referenced: Collection[tuple[str, str]] = ()
    ) -> None:
        self.graph = graph
        self.train_type = train_type
        self.referenced = referenced

    def of_vertices(
        self, node_type: str, ids: Tensor, splits: Mapping[str, Tensor]
    ) -> dict[str, Tensor | SelectedRows]:
        """Fields of vertices; ``splits`` are the local ids in the part's lists, by list."""
        fields = self.graph.node_fields(node_type)
        found: dict[str, Tensor | SelectedRows] = {"global_ids": ids}
        if self.graph.is_homogeneous:
            # Degrees in the whole graph: a part holds no in-edges of its last hop.
            csc = self.graph.csc
            found["in_degrees"] = (csc.indptr[ids + 1] - csc.indptr[ids]).long()
            found["out_degrees"] = csc.source_counts[ids]
            if csc.loop_counts.any():
                found["self_loops"] = csc.loop_counts[ids].long()
        if node_type == self.train_type:
            for name, listed in splits.items():
                # A split that the graph lacks gets no mask. Training vertices may have
                # been given as a list.
                if name == "train" or f"{name}_mask" in fields:
                    mask = torch.zeros(len(ids), dtype=torch.bool, device="cpu")
                    mask[listed] = True
                    found[f"{name}_mask"] = mask
        for name, value in fields.items():
            if name not in found and (node_type, name) not in self.referenced:
                found[name] = SelectedRows(value, ids, as_stored=True)
        return found

    def of_edges(self, edge_type: EdgeType, ids: Tensor) -> dict[str, Tensor | SelectedRows]:
        """Fields of edges."""
        found: dict[str, Tensor | SelectedRows] = {"global_ids": ids}
        for name, value in self.graph.edge_fields(edge_type).items():
            found[name] = SelectedRows(value, ids, as_stored=True)
        return found


def nearest_part(num_nodes: int, parts: Iterable[PartVertices]) -> Tensor:
    """Part that holds each vertex at the lowest hop, shape ``(num_nodes,)``, int32; -1 if none.

    A hash breaks ties. Where two hops reach everything, a fixed order would give nearly all
    vertices to one part. Needs 5 bytes per vertex, and one part at a time.
    """
    from . import _kernels

    owner = torch.full((num_nodes,), -1, dtype=torch.int32, device="cpu")
    nearest = np.full(num_nodes, 255, np.uint8)  # hop; 255 is above all of them
    sizes = np.zeros(0, np.int64)
    # Two passes over each part: the share of the ties it takes depends on their number.
    for part, vertices in enumerate(parts):
        sizes = np.append(sizes, 0)
        tied = np.zeros(part + 1, np.int64)
        rings = (
            vertices.ids.numpy(),
            np.array(vertices.hop_ends, np.int64),
            part,
            owner.numpy(),
            nearest,
            sizes,
        )
        _kernels.take_nearer(*rings, tied)
        _kernels.take_ties(*rings, _shares(sizes, tied))
    return owner


def _shares(sizes: Int64Array, tied: Int64Array) -> Float64Array:
    """Share of its ``tied`` vertices that each part gives to the last part.

    No part that gives any ends up smaller than the last part.
    """
    # The level L to which givers fall and the taker rises, by bisection:
    # sizes[-1] + sum over p of min(max(sizes[p] - L, 0), tied[p]) = L. The left side falls with L.
    low = float(sizes[-1])
    high = float(sizes[-1] + tied.sum())
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        if sizes[-1] + np.clip(sizes - level, 0, tied).sum() <= level:
            high = level
        else:
            low = level
    shares: Float64Array = np.clip(sizes - high, 0, tied) / np.maximum(tied, 1)
    return shares


def vertex_owners(partition: Partition) -> Tensor:
    """One part for every vertex of all types, shape ``(num_nodes,)``, int32.

    This is ``partition.owner`` if all vertices were placed. Otherwise it is the part that trains on
    the vertex, or else its :func:`nearest_part`. Vertices that no part reaches go to the parts that
    own the fewest.
    """
    if partition.owner is not None:
        return partition.owner
    vertices = (partition.vertices(part) for part in range(partition.num_parts))
    owner = nearest_part(partition.graph.num_nodes, vertices)
    owner[partition.train + partition.numbering.begin(partition.train_type)] = partition.parts
    deal_out(owner.numpy(), partition.num_parts)
    return owner
