"""Induced subgraphs: all edges that a graph has among some of its vertices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..graph.subgraph import SampledEdges, Subgraph
from ..system.buffers import BufferPools
from .hop import Scratch, raise_bad_source
from .pickers import measure_frontier
from .sampler import id_dtype_of, seeds_by_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ..graph.csc import CSC
    from ..graph.graph import EdgeType, Graph
    from .hop import EdgeMemory, VertexTable

__all__ = ["edge_ids_of", "induced_edges", "induced_subgraph", "known_edges"]


def induced_subgraph(
    graph: Graph,
    nodes: Tensor | Mapping[str, Tensor],
    *,
    edge_dir: str = "in",
    dtype: torch.dtype | None = None,
    pools: BufferPools | None = None,
) -> Subgraph:
    """The subgraph of some vertices, with every edge that the graph has among them.

    Args:
        graph: The graph; with one vertex type if ``nodes`` is a tensor.
        nodes: Shape ``(num_nodes,)``, int32 or int64, or a mapping from vertex type to such tensors. A vertex that is
            there twice has its in-edges twice; they lead to the first copy of their source.
        edge_dir: "in": edges lie in the order of their destinations, in the batch and then in the graph; "out": in that
            of their sources, and ``edge_index`` has destinations in its first row, as ``Graph.out_csc_of``.
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
    tables = dict(zip(graph.node_types, Scratch.of_this_thread().tables(len(graph.node_types)), strict=True))
    for ntype, table in tables.items():
        table.reset(by_type.get(ntype), graph.num_nodes_of(ntype), id_dtype_of(graph))
    dtype = dtype or next((ids.dtype for ids in by_type.values()), torch.int64)
    pools = pools if pools is not None else BufferPools(max_free=0)
    none = torch.empty(0, dtype=dtype, device="cpu")
    return Subgraph(
        dict(by_type),
        {ntype: by_type[ntype].to(dtype) if ntype in by_type else none for ntype in tables},
        {etype: induced_edges(graph, etype, tables, dtype, pools, edge_dir) for etype in graph.edge_types},
        {ntype: [table.count] for ntype, table in tables.items()},
    )


def induced_edges(
    graph: Graph,
    etype: EdgeType,
    tables: Mapping[str, VertexTable],
    dtype: torch.dtype,
    pools: BufferPools,
    edge_dir: str = "in",
) -> SampledEdges:
    """Every in-edge of the tables' vertices that comes from a known source, in the order of vertices and CSC.

    A vertex that is there twice has its edges twice; they lead to the first copy of their source. The thread keeps the
    room for the edges found, 8 or 12 bytes each.

    Args:
        graph: The graph.
        etype: The edge type.
        tables: The vertices of each type, of this thread.
        dtype: Dtype of the local ids.
        pools: Where output memory is recycled.
        edge_dir: "out" takes out-edges for in-edges, see ``Graph.out_csc_of``.

    Raises:
        FormatError: The graph's arrays lead out of the graph (a damaged file).
    """
    far, near = (etype[0], etype[2]) if edge_dir == "in" else (etype[2], etype[0])
    csc = (graph.csc_of(etype) if edge_dir == "in" else graph.out_csc_of(etype)).scattered
    scratch = Scratch.of_this_thread()
    starts, degrees, indptr = measure_frontier(csc, tables[near].nodes, scratch, -1, False)
    if csc.pages is not None:
        csc.pages.need_edges(starts, degrees)
    positions, places = _found(csc, starts, degrees, tables[far], scratch, indptr)
    return known_edges(csc, indptr, positions, places, dtype, pools(("edges", etype)))


def known_edges(
    csc: CSC, indptr: Any, positions: Any, places: Any, dtype: torch.dtype, pool: EdgeMemory
) -> SampledEdges:
    """Edges found for vertices, ``indptr`` saying which for each, by position in the CSC and place of the source."""
    from .kernels import subgraph as _subgraph

    edge_index, ids = pool.take_many(((2, len(places)), dtype), ((len(places),), torch.int64))
    src, dst = edge_index.numpy()
    _subgraph.put_known(indptr, positions, places, edge_ids_of(csc), src, dst, ids.numpy())
    return SampledEdges(edge_index, ids, [0])


def _found(csc: CSC, starts: Any, degrees: Any, table: VertexTable, scratch: Scratch, indptr: Any) -> tuple[Any, Any]:
    """Positions of the edges whose sources are in the table, and the sources' places, in scratch; sets ``indptr``."""
    from .kernels import subgraph as _subgraph

    indices, (nodes, slots, shift) = csc.indices.numpy(), table.lookup
    marks, marks_shift = scratch.array("marks", len(slots) // 16, np.uint64), shift - np.uint64(2)
    marks.fill(0)  # 4 bits a slot: 16 to 32 a vertex
    _subgraph.mark_nodes(nodes, marks, marks_shift)
    known = nodes, slots, shift, marks, marks_shift
    some, state = scratch.array("segment", _subgraph.SEGMENT, np.int64), np.zeros(3, np.int64)
    state[1] = starts[0] if len(starts) else 0
    found: list[Any] = []
    while True:
        room = scratch.induced_room
        grown = [scratch.array(name, room, kind) for name, kind in (("found", indices.dtype), ("places", np.int32))]
        for new, old in zip(grown, found, strict=False):
            new[: state[2]] = old[: state[2]]
        found = grown
        bad = _subgraph.find_known(indices, starts, degrees, csc.num_src, known, some, state, indptr, *found)
        if bad >= 0 or state[0] == len(starts):
            break
        scratch.induced_room *= 2
    if bad >= 0:
        raise_bad_source(int(indices[bad]), csc.num_src)
    return found[0][: state[2]], found[1][: state[2]]


def edge_ids_of(csc: CSC) -> Any:
    """The edge ids for kernels: empty where they are the positions."""
    return np.empty(0, np.int64) if csc.edge_ids is None else csc.edge_ids.numpy()
