"""Training with PyG: its convolutions on trimmed batches, our loader, and PyG's for comparison.

PyG expands a vertex once and returns one subgraph of all hops. A layer computes only what later
layers read: its block is a prefix of the subgraph's edges and vertices, those of the remaining
hops.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import MissingDependencyError
from ..framework import Batch, Seeds, Weights, runs_as
from ..graph.csc import CSC
from ..graph.fields import materialized
from ..graph.graph import EdgeType, without_fields
from ..graph.minibatch import Block
from .graphs import to_pyg
from .loaders import LinkNeighborLoader, NeighborLoader
from .package import import_pyg

import_pyg()
from torch_geometric import nn as layers  # noqa: E402
from torch_geometric import typing as pyg_typing  # noqa: E402
from torch_geometric.data import HeteroData  # noqa: E402
from torch_geometric.loader import LinkNeighborLoader as _LinkNeighborLoader  # noqa: E402
from torch_geometric.loader import NeighborLoader as _NeighborLoader  # noqa: E402
from torch_geometric.sampler import NegativeSampling  # noqa: E402


class PyGBlock(NamedTuple):
    """The edges of one layer of a batch; destinations are the first sources.

    Attributes:
        edge_index: Local ends of the edges by edge type; None as key for a homogeneous batch.
        num_dst: Number of destinations by vertex type; None likewise.
    """

    edge_index: Mapping[EdgeType | None, Tensor]
    num_dst: Mapping[str | None, int]


class _OnDevice:
    """Base of PyG's own loaders that moves batches to a device, as a training loop would."""

    def __init__(self, *args: Any, device: torch.device, **more: Any) -> None:
        super().__init__(*args, **more)
        self._to = device

    def __iter__(self) -> Iterator[Any]:
        return (batch.to(self._to) for batch in super().__iter__())  # type: ignore[misc]


class _PyGsLoader(_OnDevice, _NeighborLoader):
    """PyG's own ``NeighborLoader``."""


class _PyGsLinkLoader(_OnDevice, _LinkNeighborLoader):
    """PyG's own ``LinkNeighborLoader``."""


class _PyG:
    """Implements ``pagraph.framework.Framework``; blocks are :class:`PyGBlock`."""

    name = "pyg"

    def convolution(self, kind: str, in_size: int, out_size: int, heads: int = 1) -> nn.Module:
        conv: nn.Module
        if kind == "sage":
            conv = layers.SAGEConv(in_size, out_size)
        elif kind == "gcn":
            conv = layers.GCNConv(in_size, out_size, normalize=False, add_self_loops=False)
        elif kind == "gat":
            conv = layers.GATConv(in_size, out_size // heads, heads, add_self_loops=False)
        else:
            conv = layers.SAGEConv(in_size, out_size, root_weight=False, bias=False)
        return conv

    def weights(self, conv: Any) -> Weights:
        if isinstance(conv, layers.SAGEConv):
            own = conv.lin_r.weight if conv.root_weight else None
            return Weights(conv.lin_l.weight, own, conv.lin_l.bias)
        if isinstance(conv, layers.GATConv):
            attention = (conv.att_src[0], conv.att_dst[0])
            return Weights(conv.lin.weight, None, conv.bias, attention)
        return Weights(conv.lin.weight, None, conv.bias)

    def convolve(
        self,
        conv: nn.Module,
        block: PyGBlock,
        x: Tensor,
        *,
        edge_type: EdgeType | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        edges = block.edge_index[edge_type]
        count = block.num_dst[None if edge_type is None else edge_type[2]]
        rows: Tensor
        if isinstance(conv, layers.SAGEConv):
            # "mean" has no weight for destinations. These are not the first rows of `x` if the
            # edge type's ends have different types.
            own = x[:count] if conv.root_weight else None
            rows = conv((x, own), edges, size=(len(x), count))
            return rows
        # These layers treat sources and destinations as one set, so cut off other sources' rows.
        more = {} if edge_weight is None else {"edge_weight": edge_weight}
        rows = conv(x, edges, **more)
        return rows[:count]

    def num_dst(self, block: PyGBlock, node_type: str | None = None) -> int:
        return block.num_dst[node_type]

    def edges(self, block: PyGBlock) -> tuple[Tensor, Tensor]:
        src, dst = block.edge_index[None]
        return src, dst

    def with_edges(self, block: PyGBlock, src: Tensor, dst: Tensor) -> PyGBlock:
        return PyGBlock({None: torch.stack([src, dst])}, block.num_dst)

    def check_own_loader(self) -> None:
        if pyg_typing.WITH_PYG_LIB or pyg_typing.WITH_TORCH_SPARSE:
            return
        version = torch.__version__.partition("+")[0]
        raise MissingDependencyError(
            "PyG's own NeighborLoader needs pyg-lib or torch-sparse, and neither is installed: pip "
            f"install pyg-lib -f https://data.pyg.org/whl/torch-{version}+cpu.html (or +cu126 and "
            "so on), or pip install --no-build-isolation torch-sparse, which compiles it; "
            "pagraph's loader needs neither"
        )

    def loader(self, seeds: Seeds, fanout: Sequence[int], *, own: bool, **more: Any) -> Any:
        if own:
            self.check_own_loader()
        data = _data(seeds)
        more["num_neighbors"] = list(fanout)[::-1]  # PyG's order starts at the seeds
        more["shuffle"] = True
        if seeds.label is None:
            csc = seeds.graph.csc
            ends = (csc.indices[seeds.ids], csc.destinations()[seeds.ids])
            more["edge_label_index"] = torch.stack(ends).long()
            # A random destination for the source of each edge, like DGL's Uniform(1).
            more["neg_sampling"] = NegativeSampling("triplet")
            link_loader = _PyGsLinkLoader if own else LinkNeighborLoader
            return link_loader(data, **more)
        more["input_nodes"] = seeds.ids
        if isinstance(data, HeteroData):
            more["input_nodes"] = (seeds.node_type, seeds.ids)
        if seeds.time is not None:
            more["time_attr"] = seeds.time
            more["temporal_strategy"] = "last"
        loader = _PyGsLoader if own else NeighborLoader
        return loader(data, **more)

    def batch(self, item: Any, seeds: Seeds, num_hops: int) -> Batch:
        rows = [_store(item, ntype)[name] for ntype, name in seeds.fields]
        if seeds.label is None:
            links = torch.stack([item.src_index, item.dst_pos_index])
            pairs = torch.stack([item.src_index, item.dst_neg_index])
            count = 1 + int(torch.cat([links, pairs]).max())
            blocks = _blocks(item, num_hops, None, count)
            return Batch(blocks, rows, (links, pairs))
        store = _store(item, seeds.node_type)
        count = int(store.batch_size)
        target = seeds.node_type if isinstance(item, HeteroData) else None
        blocks = _blocks(item, num_hops, target, count)
        return Batch(blocks, rows, (store[seeds.label][:count],))

    def seed(self, seed: int) -> None:
        """Do nothing: PyG uses torch's random numbers."""


framework = _PyG()


def _store(data: Any, node_type: str) -> Any:
    """The store of a vertex type's attributes."""
    return data[node_type] if isinstance(data, HeteroData) else data


def _data(seeds: Seeds) -> Any:
    """A graph as PyG's data, with the fields that are read."""
    graph = seeds.graph
    data = to_pyg(without_fields(graph))
    fields = list(seeds.fields)
    if seeds.label is not None:
        fields.append((seeds.node_type, seeds.label))
    if seeds.time is not None:
        for ntype in graph.node_types:
            if seeds.time in graph.node_fields(ntype):
                fields.append((ntype, seeds.time))
    for ntype, name in fields:
        # PyG's data holds tensors, so rows stored by reference are all gathered.
        _store(data, ntype)[name] = materialized(graph.node_fields(ntype)[name])
    return data


def _blocks(batch: Any, num_hops: int, target: str | None, num_seeds: int) -> list[PyGBlock]:
    """The blocks of a batch, whose first ``num_seeds`` vertices of type ``target`` are the seeds.

    Vertices and edges of a batch are in hop order, so the first hops are a prefix. The last layer's
    block has the first hop; each layer before it has one hop more.
    """
    edges: Mapping[EdgeType | None, Any] = {None: batch}
    nodes: Mapping[str | None, Any] = {None: batch}
    if isinstance(batch, HeteroData):
        edges = {etype: batch[etype] for etype in batch.edge_types}
        nodes = {ntype: batch[ntype] for ntype in batch.node_types}
    if any(store.get("num_sampled_nodes") is None for store in nodes.values()):
        index = {etype: store.edge_index for etype, store in edges.items()}
        known = {**dict.fromkeys(nodes, 0), target: num_seeds}
        return _uncounted_blocks(index, num_hops, known)
    found = {ntype: list(accumulate(store.num_sampled_nodes)) for ntype, store in nodes.items()}
    drawn = {etype: list(accumulate(store.num_sampled_edges)) for etype, store in edges.items()}
    blocks = []
    for hop in reversed(range(num_hops)):
        index = {t: store.edge_index[:, : drawn[t][hop]] for t, store in edges.items()}
        num_dst = {ntype: ends[hop] for ntype, ends in found.items()}
        blocks.append(PyGBlock(index, num_dst))
    return blocks


def _uncounted_blocks(
    edges: Mapping[EdgeType | None, Tensor], num_hops: int, known: Mapping[str | None, int]
) -> list[PyGBlock]:
    """The blocks of a batch from torch-sparse, which does not count vertices and edges by hop.

    ``known`` are the numbers of vertices before the first hop. Each vertex is expanded once, in the
    hop after the one that found it, so edges are ordered by destination. A hop has the edges into
    vertices known before it. The largest source among these is the last vertex known after it.
    """
    blocks: list[PyGBlock] = []
    for _ in range(num_hops):
        drawn = {}
        after = dict(known)
        for etype, pairs in edges.items():
            src_type, _, dst_type = etype or (None, None, None)
            count = int(torch.searchsorted(pairs[1], known[dst_type]))
            drawn[etype] = pairs[:, :count]
            if count:
                last = int(pairs[0, :count].max())
                after[src_type] = max(after[src_type], 1 + last)
        blocks.insert(0, PyGBlock(drawn, known))
        known = after
    return blocks


# Convolutions that read only the rows of a block's sources and destinations. A subclass that
# overrides `forward` may read more, so it is refused.
_OF_ONE_HOP = (
    layers.SAGEConv,
    layers.GATConv,
    layers.GATv2Conv,
    layers.GINConv,
    layers.GraphConv,
    layers.TransformerConv,
    layers.EdgeConv,
    layers.GeneralConv,
    layers.MFConv,
    layers.CGConv,
)


def hop_of(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor] | None:
    """The computation of a PyG layer on a block; None for a layer that works row by row.

    Raises:
        TypeError: The layer is unknown, or reads more than a hop, such as PyG's norms over all
            vertices.
    """
    if isinstance(layer, (layers.Linear, layers.BatchNorm)):
        return None
    if isinstance(layer, layers.LayerNorm) and layer.mode == "node":
        return None
    if isinstance(layer, layers.MessagePassing) and layer.flow == "source_to_target":
        is_plain_gcn = type(layer) is layers.GCNConv and not layer.improved
        if is_plain_gcn and layer.normalize:
            return _normalised(layer, csc)
        if is_plain_gcn:
            # It treats sources and destinations as one set.
            return lambda block, x: layer(x, block.to_pyg())[: block.num_dst]
        if runs_as(layer, _OF_ONE_HOP):
            return lambda block, x: layer((x, x[: block.num_dst]), block.to_pyg())
    raise TypeError(
        f"layers must be known to read one hop or single rows, got PyG's {layer}: if it reads "
        "one hop, pass OneHop(lambda block, x: layer((x, x[: block.num_dst]), block.to_pyg()), "
        "layer)"
    )


def _normalised(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor]:
    """GCNConv with degrees of the whole graph; a block only knows those of its destinations."""
    plain = copy.copy(layer)
    plain.normalize = False
    loops = layer.add_self_loops
    # D^-1/2 (A + I) D^-1/2 of Kipf and Welling (2017), equation 2. PyG uses in-degrees at both
    # ends, and replaces the graph's self-loops by the layer's.
    degrees = csc.indptr.diff()
    if loops:
        degrees = degrees + (1 - csc.loop_counts)
    scales = degrees.float().rsqrt_().masked_fill_(degrees == 0, 0.0)

    def call(block: Block, x: Tensor) -> Tensor:
        edges = block.to_pyg()
        if loops:
            own = torch.arange(block.num_dst, device=edges.device)
            others = edges[:, edges[0] != edges[1]]
            edges = torch.cat([others, own.expand(2, -1)], 1)
        scale = scales[block.src_nodes.cpu()].to(x.device)
        src, dst = edges
        rows: Tensor = plain(x, edges, scale[src] * scale[dst])
        return rows[: block.num_dst]

    return call
