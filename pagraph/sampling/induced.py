"""Induced subgraphs: all edges that a graph has among some of its vertices; these are given, those
of clusters (Cluster-GCN), or sampled."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import as_ids, check_range
from ..graph.subgraph import SampledEdges, Subgraph
from ..system.arrays import Array
from ..system.buffers import BufferPools
from .hop import Scratch, raise_bad_source
from .pickers import measure_frontier
from .sampler import MiniBatchSampler, check_edge_dir, id_dtype_of, seeds_by_type

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..graph.csc import CSC
    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPool
    from .block_sampler import BlockSampler, ExcludedEdges, SampleOptions


def induced_subgraph(
    graph: Graph,
    nodes: Tensor | Mapping[str, Tensor],
    *,
    edge_dir: str = "in",
    turned: bool = False,
    dtype: torch.dtype | None = None,
    pools: BufferPools | None = None,
) -> Subgraph:
    """The subgraph of some vertices, with every edge that the graph has among them.

    Args:
        graph: The graph; with one vertex type if ``nodes`` is a tensor.
        nodes: Shape ``(num_nodes,)``, int32 or int64, or a mapping from vertex type to such
            tensors. A vertex that is there twice has its in-edges twice; they lead to the first
            copy of their source.
        edge_dir: "in": edges lie in the order of their destinations, in the batch and then in the
            graph; "out": in that of their sources, and ``edge_index`` has destinations in its first
            row, as ``Graph.out_csc_of``.
        turned: The rows of ``edge_index`` change places.
        dtype: Id dtype of the result. Default: that of the vertices.
        pools: Where output memory is recycled. Default: fresh memory.

    Raises:
        KeyError: A vertex type that the graph does not have.
        IndexError: A vertex is outside ``[0, num_nodes)`` of its type.
        FormatError: The graph's arrays lead out of the graph (a damaged file).

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2, 3], [1, 2, 0, 2])
        >>> batch = induced_subgraph(graph, torch.tensor([2, 1, 0]))
        >>> batch.edges["_N", "_E", "_N"].edge_index.tolist()
        [[1, 2, 0], [0, 1, 2]]
    """
    by_type = seeds_by_type(graph, nodes)
    kind = id_dtype_of(graph)
    scratch = Scratch.of_this_thread()
    known = {
        t: scratch.array(("nodes", t), len(by_type.get(t, ())), kind) for t in graph.node_types
    }
    for ntype, ids in by_type.items():
        known[ntype][:] = ids.numpy()
    dtype = dtype or next((ids.dtype for ids in by_type.values()), torch.int64)
    turns = edge_dir, turned
    pools = pools if pools is not None else BufferPools(max_free=0)
    none = torch.empty(0, dtype=dtype, device="cpu")
    return Subgraph(
        dict(by_type),
        {ntype: by_type[ntype].to(dtype) if ntype in by_type else none for ntype in known},
        {
            etype: induced_edges(graph, etype, known, dtype, pools, *turns)
            for etype in graph.edge_types
        },
        {ntype: [len(ids)] for ntype, ids in known.items()},
    )


def induced_edges(
    graph: Graph,
    etype: EdgeType,
    nodes: Mapping[str, Array],
    dtype: torch.dtype,
    pools: BufferPools,
    edge_dir: str = "in",
    turned: bool = False,
) -> SampledEdges:
    """Every in-edge of the vertices that comes from one of them, in the order of vertices and CSC.

    A vertex that is there twice has its edges twice; they lead to the first copy of their source.
    The thread keeps the room for the edges found, 8 or 12 bytes each, and up to 1 MiB or 4 bytes a
    vertex of the batch.

    Args:
        graph: The graph.
        etype: The edge type.
        nodes: The vertices of each type.
        dtype: Dtype of the local ids.
        pools: Where output memory is recycled.
        edge_dir: "out" takes out-edges for in-edges, see ``Graph.out_csc_of``.
        turned: The rows of ``edge_index`` change places.

    Raises:
        FormatError: The graph's arrays lead out of the graph (a damaged file).
    """
    far, near = (etype[0], etype[2]) if edge_dir == "in" else (etype[2], etype[0])
    csc = (graph.csc_of(etype) if edge_dir == "in" else graph.out_csc_of(etype)).scattered
    scratch = Scratch.of_this_thread()
    starts, degrees, indptr = measure_frontier(csc, nodes[near], scratch, -1, False)
    if csc.pages is not None:
        csc.pages.need_edges(starts, degrees)
    found = _found(csc, starts, degrees, nodes[far], scratch, indptr)
    return known_edges(csc, etype, (indptr, *found), dtype, pools, turned)


def known_edges(
    csc: CSC,
    etype: EdgeType,
    found: tuple[Array, Array, Array],
    dtype: torch.dtype,
    pools: BufferPools,
    turned: bool = False,
) -> SampledEdges:
    """Edges ``found`` for some vertices: the ``indptr``, positions in the CSC, and places of the
    sources."""
    from .kernels import induced as _induced

    count = len(found[1])
    edge_index, positions = pools(("edges", etype)).take_many(
        ((2, count), dtype), ((count,), csc.indices.dtype)
    )
    far, near = edge_index.numpy()[:: -1 if turned else 1]
    _induced.put_found(*found, far, near, positions.numpy())
    return SampledEdges(
        edge_index, positions, [0], partial(_ids_at, csc, pools(("edge ids", etype)))
    )


def _ids_at(csc: CSC, pool: BufferPool, positions: Tensor) -> Tensor:
    """The ids of the edges at these positions, int64."""
    from .kernels import hop as _cpu

    ids = pool.take(tuple(positions.shape), torch.int64)
    if csc.edge_ids is None:
        return ids.copy_(positions)
    if csc.pages is not None:
        csc.pages.need_ids(positions.numpy())
    _cpu.read_neighbors(csc.edge_ids.numpy(), positions.numpy(), ids.numpy())
    return ids


def _found(
    csc: CSC, starts: Any, degrees: Any, nodes: Array, scratch: Scratch, indptr: Any
) -> tuple[Any, Any]:
    """Positions of the edges whose sources are among the vertices, and their places, in scratch;
    sets ``indptr``."""
    from .kernels import induced as _induced

    indices = csc.indices.numpy()
    direct = csc.num_src <= _induced.MOST_DIRECT
    bits = csc.num_src.bit_length() if direct else max(6, (32 * len(nodes)).bit_length())
    numbers = (scratch.array(name, len(nodes), np.int32) for name in ("first", "after"))
    room = scratch.zeros((1 << bits >> 5) + 1), *numbers
    shift = None if direct else np.uint64(64 - bits)
    edges = (indices, csc.num_src, starts, degrees)
    state = np.zeros(3, np.int64)
    state[1] = starts[0] if len(starts) else 0
    found: list[Any] = []
    while True:
        capacity = scratch.induced_room
        grown = [
            scratch.array(name, capacity, kind)
            for name, kind in (("found", indices.dtype), ("places", np.int32))
        ]
        for new, old in zip(grown, found, strict=False):
            new[: state[2]] = old[: state[2]]
        found = grown
        bad = _induced.find_members(nodes, shift, room, edges, state, indptr, *found)
        if bad >= 0:
            raise_bad_source(int(indices[bad]), csc.num_src)
        if state[0] == len(starts):
            return found[0][: state[2]], found[1][: state[2]]
        scratch.induced_room *= 2


def edge_ids_of(csc: CSC) -> Any:
    """The edge ids for kernels: empty where they are the positions."""
    return np.empty(0, np.int64) if csc.edge_ids is None else csc.edge_ids.numpy()


@dataclass(frozen=True)
class InducedBatches(MiniBatchSampler):
    """Finds vertices as a sampler of blocks does and returns one subgraph of all edges among them
    (Zeng et al., Decoupling the Depth and Scope of Graph Neural Networks, NeurIPS 2021, as DGL's
    ``ShaDowKHopSampler`` does it).

    Args:
        blocks: Finds the vertices.
        edge_dir: In which order edges lie: "in" by destination; "out" by source, see
            ``induced_subgraph``.

    Raises:
        ValueError: An unknown direction.

    Example:
        >>> import torch
        >>> from pagraph.graph import Graph
        >>> from pagraph.sampling import NeighborSampler
        >>> graph = Graph.from_coo([0, 1, 2, 3, 1], [1, 2, 0, 2, 3])
        >>> batch = InducedBatches(NeighborSampler([-1])).sample(graph, torch.tensor([2]))
        >>> batch.input_nodes["_N"].tolist(), batch.edges["_N", "_E", "_N"].edge_index.tolist()
        ([2, 1, 3], [[1, 2, 1], [0, 0, 2]])
    """

    blocks: BlockSampler
    edge_dir: str = "in"

    def __post_init__(self) -> None:
        check_edge_dir(self.edge_dir)

    @property
    def hops(self) -> BlockSampler:
        """See ``MiniBatchSampler``."""
        return self.blocks

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return self.blocks.num_hops

    def with_in_edges(self) -> InducedBatches:
        """The same for graphs that are reversed already."""
        return InducedBatches(self.blocks.with_in_edges())

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        **options: Unpack[SampleOptions],
    ) -> Subgraph:
        """Sample one mini-batch; takes and raises what ``BlockSampler.sample`` does."""
        by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
        found = self.blocks.sample(graph, by_type, key, **options)
        dtype = options.get("dtype")
        pools = options.get("pools")
        batch = induced_subgraph(
            graph, found.input_nodes, edge_dir=self.edge_dir, dtype=dtype, pools=pools
        )
        for etype, excluded in (options.get("exclude") or {}).items():
            csc = graph.adjacency(self.blocks.edge_dir, etype)  # whose positions are excluded
            batch.edges[etype] = _without(batch.edges[etype], excluded, csc)
        return Subgraph(found.output_nodes, batch.input_nodes, batch.edges, found.hop_ends)


def _without(edges: SampledEdges, excluded: ExcludedEdges, csc: CSC) -> SampledEdges:
    """The edges without the excluded ones, in order."""
    places = excluded.left_of(csc.positions_of(edges.edge_ids))
    if len(places) == edges.num_edges:
        return edges
    return SampledEdges(
        edges.edge_index.index_select(1, places), edges.edge_ids.index_select(0, places), [0]
    )


@dataclass(frozen=True, eq=False)
class ClusterSampler(MiniBatchSampler):
    """Makes one subgraph of the vertices of clusters, with all edges among them (Chiang et al., KDD
    2019, section 3.2).

    Seeds are numbers of clusters. Vertices lie in the order of the seeds, and in a cluster in that
    of ``nodes``.

    Args:
        bounds: Shape ``(num_clusters + 1,)``, integers: the vertices of cluster ``i`` are
            ``nodes[bounds[i]:bounds[i + 1]]``.
        nodes: Shape ``(num_nodes,)``, integers: vertices by cluster. None: ``0, 1, ...``, of a
            graph whose vertices are in the order of their clusters.
        edge_dir: In which order edges lie: "in" by destination; "out" by source, see
            ``induced_subgraph``.

    Raises:
        TypeError: An array does not hold integers.
        ValueError: ``bounds`` decrease, or are not those of ``nodes``; an unknown direction.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2, 3], [2, 3, 0, 0])
        >>> batch = ClusterSampler(torch.tensor([0, 2, 4]), torch.tensor([0, 2, 1, 3])).sample(graph, torch.tensor([0]))
        >>> batch.input_nodes["_N"].tolist(), batch.edges["_N", "_E", "_N"].edge_index.tolist()
        ([0, 2], [[1, 0], [0, 1]])
    """

    bounds: Tensor
    nodes: Tensor | None = None
    edge_dir: str = "in"
    seeds_are_vertices = False

    def __post_init__(self) -> None:
        bounds = as_ids("bounds", self.bounds)
        if len(bounds) == 0 or int(bounds[0]) != 0 or bool((torch.diff(bounds) < 0).any()):
            raise ValueError(
                f"bounds must begin with 0 and never decrease, got {bounds.tolist()[:5]}"
            )
        object.__setattr__(self, "bounds", bounds)
        if self.nodes is not None:
            object.__setattr__(self, "nodes", as_ids("nodes", self.nodes))
            if int(bounds[-1]) != len(self.nodes):
                raise ValueError(
                    f"bounds must end with the number of nodes {len(self.nodes)}, got "
                    f"{int(bounds[-1])}"
                )
        check_edge_dir(self.edge_dir)

    @cached_property
    def cache_key(self) -> Hashable:
        """See ``MiniBatchSampler``; clusters are compared by value, tensors could not be."""
        digest = hashlib.blake2b(self.bounds.numpy().data, digest_size=16)
        if self.nodes is not None:
            digest.update(self.nodes.numpy().data)
        return type(self), digest.hexdigest(), self.edge_dir

    @property
    def num_hops(self) -> int:
        """Hops from the clusters' vertices: none."""
        return 0

    @property
    def num_clusters(self) -> int:
        """Number of clusters."""
        return len(self.bounds) - 1

    def sample(
        self,
        graph: Graph,
        seeds: Tensor,
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
        turned: bool = False,
    ) -> Subgraph:
        """Sample one mini-batch; safe from any number of threads at once.

        Args:
            graph: A graph with one vertex type.
            seeds: Shape ``(batch,)``, numbers of clusters.
            key: Ignored: nothing is drawn.
            dtype: Id dtype of the result. Default: that of the seeds.
            pools: Where output memory is recycled. Default: fresh memory.
            turned: The rows of ``edge_index`` change places.

        Raises:
            IndexError: A seed is not a cluster's number, or a vertex not in the graph.
            FormatError: The graph's arrays lead out of the graph (a damaged file).
        """
        check_range("seeds", seeds, self.num_clusters, IndexError)
        dtype = dtype or seeds.dtype
        bounds = self.bounds.numpy()
        chosen = seeds.numpy()
        begins = bounds[chosen]
        ends = bounds[chosen + 1]
        if self.nodes is None:
            sizes = ends - begins
            found = np.arange(sizes.sum()) + np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
        else:
            own = self.nodes.numpy()
            found = np.concatenate(
                [own[:0], *(own[i:j] for i, j in zip(begins, ends, strict=True))]
            )
        nodes = torch.from_numpy(found)
        # Narrowing would wrap a wrong id round.
        check_range("nodes", nodes, graph.num_nodes, IndexError)
        return induced_subgraph(
            graph, nodes.to(dtype), edge_dir=self.edge_dir, turned=turned, pools=pools
        )
