"""DGL's blocks and pair graphs, made of sampled ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..graph import _csc
from ..system.buffers import BufferPools
from .deferred import sub_frame
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl import graph_index, heterograph_index, utils  # noqa: E402
from dgl.frame import Column, Frame, Scheme, _LazyIndex  # noqa: E402
from dgl.heterograph import DGLBlock  # noqa: E402

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..graph.minibatch import Block, HeteroBlock
    from ..system.buffers import BufferPool

EDGE_WEIGHTS = "edge_weights"
"""The edge column of a sampler's own weights, named as DGL's LaborSampler names it."""

_FORMATS = ["coo", "csr", "csc"]
_NOTHING: Mapping[Any, Any] = {}


class BlockBuilder:
    """Makes ``DGLBlock`` and ``DGLGraph`` objects for one DGL graph, as DGL's own samplers would.

    Frames hold ``dgl.NID``, ``dgl.EID`` and all of the graph's columns, each gathered when first
    read (DGL's lazy columns).

    Args:
        graph: The DGL graph that batches are sampled from.
        core: Its edges in the sampled direction, by the same edge types.
        pools: Recycled memory. Default: fresh memory.
    """

    def __init__(self, graph: Any, core: Graph, pools: BufferPools | None = None) -> None:
        self._graph = graph
        self._core = core
        self._pools = pools if pools is not None else BufferPools(batches=0)
        self._idtype = graph.idtype
        self._ntypes = list(graph.ntypes)
        self._etypes = list(graph.etypes)
        self.numbers = {ntype: i for i, ntype in enumerate(self._ntypes)}
        self._canonical = list(graph.canonical_etypes)
        # The graph's ids at the edges' positions; looked up here rather than for every block.
        self._edge_ids = {etype: core.csc_of(etype).edge_ids for etype in self._canonical}
        src = [self.numbers[etype[0]] for etype in self._canonical]
        dst = [self.numbers[etype[2]] for etype in self._canonical]
        count = len(self._ntypes)
        # DGL gives a block's vertex types twice, as sources and, numbered after these, as
        # destinations; a graph has each once.
        self._bipartite = graph_index.from_coo(2 * count, src, [count + d for d in dst], True)
        self._metagraph = graph_index.from_coo(count, src, dst, True)

    def structures(self, blocks: Sequence[HeteroBlock]) -> list[Any]:
        """DGL's indices of the blocks of a batch: 20 us for each edge type, in any thread."""
        index = heterograph_index
        made = []
        for place, block in enumerate(blocks):
            num_src = {ntype: block.src_nodes[ntype].shape[0] for ntype in self._ntypes}
            num_dst = [block.num_dst[ntype] for ntype in self._ntypes]
            units = []
            for etype in self._canonical:
                edges = block.relations[etype]
                pool = self._pools(("local edge ids", place, etype))
                ids = self._local_edge_ids(edges.indices, pool)
                # Rows of destinations, already compressed; 2 kinds of vertices.
                sizes = 2, num_src[etype[0]], block.num_dst[etype[2]]
                csr = edges.indptr, edges.indices, ids
                units.append(index.create_unitgraph_from_csr(*sizes, *csr, _FORMATS, True))
            counts = utils.toindex([*num_src.values(), *num_dst], "int64")
            made.append(index.create_heterograph_from_relations(self._bipartite, units, counts))
        return made

    def build_all(
        self,
        blocks: Sequence[HeteroBlock],
        structures: Sequence[Any],
        src: Mapping[str, Mapping[str, Tensor]] = _NOTHING,
        dst: Mapping[str, Mapping[str, Tensor]] = _NOTHING,
        edges: Sequence[Mapping[EdgeType, Mapping[str, Tensor]]] = (),
        device: torch.device | None = None,
    ) -> list[Any]:
        """The DGL blocks of a batch, outermost first, with the graph's present columns.

        Args:
            blocks: The sampled ones.
            structures: Of :meth:`structures`.
            src: Rows that were read for sources of the first block, by type and column.
            dst: The same for destinations of the last one.
            edges: The same for edges of each block; empty where none were read.
            device: Where the blocks are, if not with the graph: the graph's columns are copied
                there when they are first read.
        """
        made = []
        last = len(blocks) - 1
        for place, (index, block) in enumerate(zip(structures, blocks, strict=True)):
            of_src = _NOTHING if place else src
            of_dst = _NOTHING if place < last else dst
            of_edges = edges[place] if edges else _NOTHING
            made.append(self._dressed(index, block, place, of_src, of_dst, of_edges, device))
        return made

    def _dressed(
        self,
        index: Any,
        block: HeteroBlock,
        place: int,
        src: Mapping[str, Mapping[str, Tensor]],
        dst: Mapping[str, Mapping[str, Tensor]],
        edges: Mapping[Any, Mapping[str, Tensor]],
        device: torch.device | None,
    ) -> Any:
        src_frames = []
        dst_frames = []
        for parent, ntype in zip(self._graph._node_frames, self._ntypes, strict=True):
            src_nodes = block.src_nodes[ntype]
            # Sources of all blocks are prefixes of one array; DGL's do not share memory, and users
            # write to ids.
            src_nodes = src_nodes.clone() if place else src_nodes
            dst_nodes = src_nodes[: block.num_dst[ntype]].clone()
            src_frames.append(_node_frame(parent, src_nodes, src.get(ntype, _NOTHING)))
            dst_frames.append(_node_frame(parent, dst_nodes, dst.get(ntype, _NOTHING)))
        edge_frames = []
        for etype in self._canonical:
            relation = block.relations[etype]
            ids = self._edge_ids[etype]
            frame = self._edge_frame(etype, relation.positions, ids, edges.get(etype, _NOTHING))
            if relation.weights is not None:  # Of a sampler that corrects for what it draws.
                frame[EDGE_WEIGHTS] = relation.weights
            edge_frames.append(frame)
        if device is not None:
            for frame in (*src_frames, *dst_frames, *edge_frames):
                _deliver_on(frame, device)
        types = (self._ntypes, self._ntypes)
        return DGLBlock(index, types, self._etypes, [*src_frames, *dst_frames], edge_frames)

    def _local_edge_ids(self, indices: Tensor, pool: BufferPool) -> Tensor:
        """0, 1, 2, ... for each edge of ``indices``: a block's own edge ids, in memory of its own,
        since DGL sorts rows in place.

        DGL takes an empty array for the same, but its libxsmm kernels then fail on edge features.
        """
        num_edges = indices.shape[0]
        if indices.device.type != "cpu":
            return torch.arange(num_edges, dtype=self._idtype, device=indices.device)
        ids = pool.take((num_edges,), self._idtype)
        _csc.count_up(ids.numpy())
        return ids

    def edge_ids(self, etype: EdgeType, positions: Tensor) -> Tensor:
        """The graph's id of each edge of a type, shape ``(num_edges,)``."""
        return self._core.csc_of(etype).ids_at(positions).to(self._idtype)

    def _edge_frame(
        self, etype: EdgeType, positions: Tensor, ids: Tensor | None, given: Mapping[str, Tensor]
    ) -> Any:
        """All edge columns and the edge ids, which are ``ids`` at ``positions``, or these; gathered
        when first read."""
        index = positions if ids is None else _LazyIndex([ids, positions])
        parent = self._graph._edge_frames[self._canonical.index(etype)]
        frame = sub_frame(parent, index, positions.shape[0], given)
        values = positions if ids is None else ids
        gathered_at = None if ids is None else positions
        # Converted when it is first read: core graphs have the narrowest ids that fit, DGL's all
        # one dtype.
        deferred = None if values.dtype == self._idtype else self._idtype
        scheme = Scheme((), self._idtype)
        frame._columns[dgl.EID] = Column(values, scheme, gathered_at, None, deferred)
        return frame

    def graph_structure(
        self,
        ends: Mapping[EdgeType, Sequence[Tensor]],
        nodes: Mapping[str, Tensor],
        *,
        by_source: bool = False,
    ) -> Any:
        """The index of a graph of edges (local sources and destinations by edge type), in any
        thread.

        ``by_source``: the sources of each type never decrease.
        """
        units = []
        for etype in self._canonical:
            src, dst = ends[etype]
            kinds = 1 if etype[0] == etype[2] else 2  # Of vertices: one where it is square.
            num_src = len(nodes[etype[0]])
            num_dst = len(nodes[etype[2]])
            shape = kinds, num_src, num_dst
            units.append(
                heterograph_index.create_unitgraph_from_coo(*shape, src, dst, _FORMATS, by_source)
            )
        counts = utils.toindex([len(nodes[ntype]) for ntype in self._ntypes], "int64")
        return heterograph_index.create_heterograph_from_relations(self._metagraph, units, counts)

    def graph(
        self,
        structure: Any,
        nodes: Mapping[str, Tensor],
        edges: Mapping[EdgeType, tuple[Tensor, Tensor | None]] | None,
        node_rows: Mapping[str, Mapping[str, Tensor]] = _NOTHING,
        edge_rows: Mapping[EdgeType, Mapping[str, Tensor]] = _NOTHING,
    ) -> Any:
        """A graph of some edges alone, with the graph's own types.

        Args:
            structure: Of :meth:`graph_structure`.
            nodes: The graph's ids of the vertices.
            edges: The graph's ids of the edges, or positions and the ids that lie there; its
                columns come along. None: negative pairs, which have neither.
            node_rows: Rows that were read, by type and column; others are gathered when first read.
            edge_rows: The same of edges.
        """
        node_frames = []
        for parent, ntype in zip(self._graph._node_frames, self._ntypes, strict=True):
            ids = nodes[ntype].clone()  # users write to ids; the two graphs must not share them
            known = Frame(num_rows=0) if edges is None else parent
            node_frames.append(_node_frame(known, ids, node_rows.get(ntype, _NOTHING)))
        edge_frames = []
        for place, etype in enumerate(self._canonical):
            if edges is None:
                frame = Frame(num_rows=structure.num_edges(place))
            else:
                frame = self._edge_frame(etype, *edges[etype], edge_rows.get(etype, _NOTHING))
            edge_frames.append(frame)
        return dgl.DGLGraph(structure, self._ntypes, self._etypes, node_frames, edge_frames)


def _node_frame(parent: Any, ids: Tensor, given: Mapping[str, Tensor]) -> Any:
    """A frame of the parent's columns at ``ids``, and ``ids`` themselves."""
    frame = sub_frame(parent, ids, ids.shape[0], given)
    frame._columns[dgl.NID] = Column(ids, Scheme((), ids.dtype))
    return frame


def _deliver_on(frame: Any, device: torch.device) -> None:
    """Have a frame's columns be on ``device`` when they are read; those that are there stay."""
    for name, column in frame._columns.items():
        frame._columns[name] = column.to(device)


def dgl_block(block: Block, graph: Graph | None) -> Any:
    """See ``Block.to_dgl``."""
    # Copies: DGL sorts rows in place.
    indptr, indices, src_nodes = (
        tensor.to(torch.int64, copy=True)
        for tensor in (block.indptr, block.indices, block.src_nodes)
    )
    # Without them they are numbered so too, but some of DGL's kernels fail.
    local = torch.arange(block.num_edges, device=indices.device)
    try:
        made = dgl.create_block(("csc", (indptr, indices, local)), block.num_src, block.num_dst)
    # The latter is torch's, where it cannot hand the arrays over.
    except (dgl.DGLError, RuntimeError) as error:
        if indices.device.type == "cpu":
            raise
        raise dgl.DGLError(
            f"block must be on the CPU for this DGL, which has no support for {indices.device}: "
            "use block.to('cpu').to_dgl(), block.to_pyg() for PyG's layers, or a DGL that was "
            "built for it"
        ) from error
    made.srcdata[dgl.NID] = src_nodes
    made.dstdata[dgl.NID] = src_nodes[: block.num_dst].clone()
    if block.weights is not None:
        made.edata[EDGE_WEIGHTS] = block.weights
    if graph is not None:
        own = graph.csc.edge_ids
        ids = block.positions.long()
        if own is not None:
            ids = own.to(ids.device)[ids].long()
        made.edata[dgl.EID] = ids
    return made
