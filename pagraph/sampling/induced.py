"""Induced subgraphs: all edges among given vertices, those of clusters (Cluster-GCN), or sampled
ones."""

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
from ..graph.minibatch import SampledEdges, Subgraph
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
    from .block_sampler import BlockSampler, SampleOptions
    from .drawing import ExcludedEdges


def induced_subgraph(
    graph: Graph,
    nodes: Tensor | Mapping[str, Tensor],
    *,
    edge_dir: str = "in",
    turned: bool = False,
    dtype: torch.dtype | None = None,
    pools: BufferPools | None = None,
) -> Subgraph:
    """The subgraph of given vertices, with all edges of the graph among them.

    Args:
        graph: The graph; with one vertex type if ``nodes`` is a tensor.
        nodes: Shape ``(num_nodes,)``, int32 or int64, or a mapping from vertex type to such
            tensors. Copies of a repeated vertex each have its in-edges; an edge's source is the
            first copy.
        edge_dir: "in" orders edges by destination in the batch, then as in the graph; "out" orders
            them by source, and ``edge_index`` has destinations in its first row, like
            ``Graph.out_csc_of``.
        turned: Swap the rows of ``edge_index``.
        dtype: Id dtype of the result. Default: that of the vertices.
        pools: Recycled memory for the result. Default: fresh memory.

    Raises:
        KeyError: The graph does not have a vertex type.
        IndexError: A vertex is outside ``[0, num_nodes)`` of its type.
        FormatError: The graph's arrays point outside the graph (a damaged file).

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
    pools = pools if pools is not None else BufferPools(batches=0)
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


def induced_batch(
    graph: Graph,
    seeds: Mapping[str, Tensor],
    nodes: Mapping[str, Array],
    ends: dict[str, list[int]],
    dtype: torch.dtype,
    pools: BufferPools | None,
    edge_dir: str = "in",
) -> Subgraph:
    """The subgraph of all edges among the vertices of a batch.

    Args:
        graph, dtype, pools, edge_dir: See :func:`induced_subgraph`.
        seeds: The seeds by type.
        nodes: The vertices of each type; may be in scratch memory.
        ends: Their numbers before the first hop and after each.
    """
    pools = pools if pools is not None else BufferPools(batches=0)
    input_nodes = {}
    for ntype, known in nodes.items():
        input_nodes[ntype] = pools(("nodes", ntype)).take((len(known),), dtype)
        input_nodes[ntype].numpy()[:] = known
    edges = {
        etype: induced_edges(graph, etype, nodes, dtype, pools, edge_dir)
        for etype in graph.types.edges
    }
    return Subgraph(dict(seeds), input_nodes, edges, ends)


def induced_edges(
    graph: Graph,
    etype: EdgeType,
    nodes: Mapping[str, Array],
    dtype: torch.dtype,
    pools: BufferPools,
    edge_dir: str = "in",
    turned: bool = False,
) -> SampledEdges:
    """The edges of one type among given vertices, in the order of vertices, then as in the CSC.

    See :func:`induced_subgraph` for repeated vertices. The thread keeps scratch of 8 or 12 bytes
    per edge found, and of up to 1 MiB or 4 bytes per vertex of the batch.

    Args:
        graph: The graph.
        etype: The edge type.
        nodes: The vertices of each type.
        dtype: Dtype of local ids.
        pools: Recycled memory for the result.
        edge_dir: "out" uses ``Graph.out_csc_of`` in place of in-edges.
        turned: Swap the rows of ``edge_index``.

    Raises:
        FormatError: The graph's arrays point outside the graph (a damaged file).
    """
    from .kernels import induced as _induced

    far, near = (etype[0], etype[2]) if edge_dir == "in" else (etype[2], etype[0])
    csc = (graph.csc_of(etype) if edge_dir == "in" else graph.out_csc_of(etype)).scattered
    scratch = Scratch.of_this_thread()
    starts, degrees, indptr = measure_frontier(csc, nodes[near], scratch, -1, False)
    if csc.pages is not None:
        csc.pages.need_edges(starts, degrees)
    found = _found(csc, starts, degrees, nodes[far], scratch, indptr)
    count = len(found[0])
    edge_index, positions = pools(("edges", etype)).take_many(
        ((2, count), dtype), ((count,), csc.indices.dtype)
    )
    into = edge_index.numpy()[:: -1 if turned else 1]
    _induced.put_found(indptr, *found, *into, positions.numpy())
    # Their ids are read on first use.
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
    """Find the edges whose sources are among the vertices; writes ``indptr``.

    Returns positions, and local ids of the sources, in scratch.
    """
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
    """Edge ids as kernels take them: empty if ids are positions."""
    return np.empty(0, np.int64) if csc.edge_ids is None else csc.edge_ids.numpy()


@dataclass(frozen=True)
class InducedBatches(MiniBatchSampler):
    """Samples vertices by a sampler of blocks, and returns the subgraph of all edges among them.

    Like DGL's ``ShaDowKHopSampler`` (Zeng et al., "Decoupling the Depth and Scope of Graph Neural
    Networks", NeurIPS 2021).

    Args:
        blocks: Samples the vertices.
        edge_dir: Order of the edges: "in" by destination, "out" by source; see
            ``induced_subgraph``.

    Raises:
        ValueError: ``edge_dir`` is unknown.

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
        """This sampler for graphs that are already reversed."""
        return InducedBatches(self.blocks.with_in_edges())

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        **options: Unpack[SampleOptions],
    ) -> Subgraph:
        """Sample one mini-batch; arguments and errors are those of ``BlockSampler.sample``."""
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
    """The edges without excluded ones, in order."""
    places = excluded.left_of(csc.positions_of(edges.edge_ids))
    if len(places) == edges.num_edges:
        return edges
    return SampledEdges(
        edges.edge_index.index_select(1, places), edges.edge_ids.index_select(0, places), [0]
    )


@dataclass(frozen=True, eq=False)
class ClusterSampler(MiniBatchSampler):
    """Returns the subgraph of all vertices of some clusters, with all edges among them
    (Cluster-GCN: Chiang et al., KDD 2019, section 3.2).

    Seeds are cluster numbers. Vertices are ordered by seed, then as in ``nodes``.

    Args:
        bounds: Shape ``(num_clusters + 1,)``, integers: the vertices of cluster ``i`` are
            ``nodes[bounds[i]:bounds[i + 1]]``.
        nodes: Shape ``(num_nodes,)``, integers: vertices by cluster. None: ``0, 1, ...``, for a
            graph whose vertices are ordered by cluster.
        edge_dir: Order of the edges: "in" by destination, "out" by source; see
            ``induced_subgraph``.

    Raises:
        TypeError: An array does not hold integers.
        ValueError: ``bounds`` decrease, or do not match ``nodes``; or ``edge_dir`` is unknown.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2, 3], [2, 3, 0, 0])
        >>> sampler = ClusterSampler(torch.tensor([0, 2, 4]), torch.tensor([0, 2, 1, 3]))
        >>> batch = sampler.sample(graph, torch.tensor([0]))
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
        """See ``MiniBatchSampler``; clusters are compared by content."""
        digest = hashlib.blake2b(self.bounds.numpy().data, digest_size=16)
        if self.nodes is not None:
            digest.update(self.nodes.numpy().data)
        return type(self), digest.hexdigest(), self.edge_dir

    @property
    def num_hops(self) -> int:
        """0: nothing is expanded."""
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
        """Sample one mini-batch; thread-safe.

        Args:
            graph: A graph with one vertex type.
            seeds: Shape ``(batch,)``, cluster numbers.
            key: Ignored, as nothing is drawn.
            dtype: Id dtype of the result. Default: that of the seeds.
            pools: Recycled memory for the result. Default: fresh memory.
            turned: Swap the rows of ``edge_index``.

        Raises:
            IndexError: A seed is not a cluster number, or a vertex is outside the graph.
            FormatError: The graph's arrays point outside the graph (a damaged file).
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
        # Before ids are narrowed, which could wrap a wrong one into the range.
        check_range("nodes", nodes, graph.num_nodes, IndexError)
        return induced_subgraph(
            graph, nodes.to(dtype), edge_dir=self.edge_dir, turned=turned, pools=pools
        )
