"""PyG's training framework: its convolutions on trimmed batches, our loader, and PyG's own to
compare with.

PyG expands a vertex once and gives one subgraph of all hops. A layer computes no more than later
ones read: its block is the first edges and vertices of the subgraph, as many as the hops that
remain have found.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import MissingDependencyError
from ..graph.csc import CSC
from ..graph.fields import materialized
from ..graph.graph import EdgeType, Graph
from ..graph.minibatch import Block
from .graphs import to_pyg
from .loaders import LinkNeighborLoader, NeighborLoader
from .package import import_pyg

import_pyg()
from torch_geometric import nn as layers  # noqa: E402
from torch_geometric import typing as pyg_typing  # noqa: E402
from torch_geometric.loader import LinkNeighborLoader as _LinkNeighborLoader  # noqa: E402
from torch_geometric.loader import NeighborLoader as _NeighborLoader  # noqa: E402
from torch_geometric.sampler import NegativeSampling  # noqa: E402

__all__ = ["PyGBlock", "framework", "hop_of"]


class PyGBlock(NamedTuple):
    """The edges of one layer of a batch; destinations are the first sources."""

    edge_index: Tensor
    num_dst: int


class PyGHeteroBlock(NamedTuple):
    """The edges of one layer of a batch by type, and the number of destinations of each vertex
    type."""

    edge_index: dict[EdgeType, Tensor]
    num_dst: dict[str, int]


class _OnDevice:
    """Base of PyG's own loaders whose batches are moved to a device as a training loop would move
    them."""

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
    """Implements ``pagraph.train.models.Framework``; blocks are :class:`PyGBlock`."""

    name = "pyg"

    def sage_conv(self, in_size: int, out_size: int) -> nn.Module:
        conv: nn.Module = layers.SAGEConv(in_size, out_size)
        return conv

    def gcn_conv(self, in_size: int, out_size: int) -> nn.Module:
        conv: nn.Module = layers.GCNConv(in_size, out_size, normalize=False, add_self_loops=False)
        return conv

    def gat_conv(self, in_size: int, out_size: int, heads: int) -> nn.Module:
        conv: nn.Module = layers.GATConv(in_size, out_size // heads, heads, add_self_loops=False)
        return conv

    def attention(self, conv: Any) -> tuple[Tensor, ...]:
        return (conv.att_src[0], conv.att_dst[0]) if isinstance(conv, layers.GATConv) else ()

    def weights(self, conv: Any) -> tuple[Tensor, Tensor | None, Tensor]:
        if isinstance(conv, layers.SAGEConv):
            return (
                conv.lin_l.weight,
                conv.lin_r.weight if conv.root_weight else None,
                conv.lin_l.bias,
            )
        return conv.lin.weight, None, conv.bias

    def convolve(
        self, conv: nn.Module, block: PyGBlock, x: Tensor, edge_weight: Tensor | None = None
    ) -> Tensor:
        if isinstance(conv, layers.SAGEConv):
            # Without it these may be of another type.
            own = x[: block.num_dst] if conv.root_weight else None
            rows: Tensor = conv((x, own), block.edge_index, size=(len(x), block.num_dst))
            return rows
        rows = (
            conv(x, block.edge_index)
            if isinstance(conv, layers.GATConv)
            else conv(x, block.edge_index, edge_weight)
        )
        return rows[: block.num_dst]

    def edges(self, block: PyGBlock) -> tuple[Tensor, Tensor]:
        return block.edge_index[0], block.edge_index[1]

    def num_dst(self, block: PyGBlock) -> int:
        return block.num_dst

    def with_edges(self, block: PyGBlock, src: Tensor, dst: Tensor) -> PyGBlock:
        return PyGBlock(torch.stack([src, dst]), block.num_dst)

    def mean_conv(self, in_size: int, out_size: int) -> nn.Module:
        conv: nn.Module = layers.SAGEConv(in_size, out_size, root_weight=False, bias=False)
        return conv

    def relation(self, block: PyGHeteroBlock, edge_type: EdgeType) -> PyGBlock:
        return PyGBlock(block.edge_index[edge_type], block.num_dst[edge_type[2]])

    def num_dst_of(self, block: PyGHeteroBlock, node_type: str) -> int:
        return block.num_dst[node_type]

    def check_own_loader(self) -> None:
        if not (pyg_typing.WITH_PYG_LIB or pyg_typing.WITH_TORCH_SPARSE):
            version = torch.__version__.partition("+")[0]
            raise MissingDependencyError(
                "PyG's own NeighborLoader needs pyg-lib or torch-sparse, and neither is installed: "
                "pip install pyg-lib "
                f"-f https://data.pyg.org/whl/torch-{version}+cpu.html (or +cu126 and so on), or "
                "pip install "
                "--no-build-isolation torch-sparse, which compiles it; pagraph's loader needs "
                "neither"
            )

    def loader(
        self,
        graph: Graph,
        ids: Tensor,
        fanout: Sequence[int],
        fields: Sequence[str],
        label: str,
        *,
        own: bool,
        **more: Any,
    ) -> Any:
        if own:
            self.check_own_loader()
        data = _data(graph, (*fields, label))
        return (_PyGsLoader if own else NeighborLoader)(
            data, list(fanout)[::-1], ids, shuffle=True, **more
        )

    def batch(
        self, item: Any, num_hops: int, label: str
    ) -> tuple[Sequence[Any], Mapping[str, Tensor], Tensor]:
        return _blocks(item, num_hops, item.batch_size), item, item[label][: item.batch_size]

    def hetero_loader(
        self,
        graph: Graph,
        target: str,
        ids: Tensor,
        fanout: Sequence[int],
        fields: Sequence[tuple[str, str]],
        label: str,
        *,
        own: bool,
        **more: Any,
    ) -> Any:
        if own:
            self.check_own_loader()
        data = to_pyg(
            Graph(
                {etype: graph.csc_of(etype) for etype in graph.edge_types}, graph.num_nodes_by_type
            )
        )
        for ntype, name in (*fields, (target, label)):
            data[ntype][name] = materialized(graph.node_fields(ntype)[name])
        seeds = (target, ids)
        return (_PyGsLoader if own else NeighborLoader)(
            data, list(fanout)[::-1], seeds, shuffle=True, **more
        )

    def hetero_batch(
        self, item: Any, num_hops: int, target: str, label: str
    ) -> tuple[Sequence[Any], Mapping[Any, Tensor], Tensor]:
        rows = {
            (ntype, name): value for ntype in item.node_types for name, value in item[ntype].items()
        }
        return (
            _hetero_blocks(item, num_hops, target),
            rows,
            item[target][label][: item[target].batch_size],
        )

    def link_loader(
        self,
        graph: Graph,
        edges: Tensor,
        fanout: Sequence[int],
        fields: Sequence[str],
        *,
        own: bool,
        **more: Any,
    ) -> Any:
        if own:
            self.check_own_loader()
        more["edge_label_index"] = torch.stack(
            [graph.csc.indices[edges], graph.csc.destinations()[edges]]
        ).long()
        loader = _PyGsLinkLoader if own else LinkNeighborLoader
        negatives = NegativeSampling("triplet")
        return loader(
            _data(graph, fields), list(fanout)[::-1], neg_sampling=negatives, shuffle=True, **more
        )

    def link_batch(
        self, item: Any, num_hops: int
    ) -> tuple[Sequence[Any], Mapping[str, Tensor], Tensor, Tensor]:
        links, others = (
            torch.stack([item.src_index, item[f"dst_{kind}_index"]]) for kind in ("pos", "neg")
        )
        return (
            _blocks(item, num_hops, 1 + int(torch.cat([links, others]).max())),
            item,
            links,
            others,
        )

    def seed(self, seed: int) -> None:
        """PyG's random numbers are torch's."""


framework = _PyG()


def _data(graph: Graph, fields: Sequence[str]) -> Any:
    """PyG's data of a graph with some of its fields."""
    data = to_pyg(Graph(graph.csc))
    for name in fields:
        data[name] = materialized(graph.ndata[name])
    return data


def _blocks(batch: Any, num_hops: int, num_seeds: int) -> list[PyGBlock]:
    """The blocks of a batch, whose first vertices are the seeds."""
    hops = list(pairwise(_hop_ends(batch, num_hops, num_seeds)))
    return [
        PyGBlock(batch.edge_index[:, :edges], before) for (before, _), (_, edges) in reversed(hops)
    ]


def _hetero_blocks(batch: Any, num_hops: int, target: str) -> list[PyGHeteroBlock]:
    """The blocks of a batch of several types, whose first vertices of the type ``target`` are the
    seeds."""
    edges = {etype: batch[etype].edge_index for etype in batch.edge_types}
    known = {ntype: batch[ntype].get("num_sampled_nodes") for ntype in batch.node_types}
    # Torch-sparse counts nothing: all but the last compute all.
    if any(counts is None for counts in known.values()):
        everything = PyGHeteroBlock(edges, {ntype: batch[ntype].num_nodes for ntype in known})
        count = int(batch[target].batch_size)
        own = {
            t: pairs[:, pairs[1] < count] if t[2] == target else pairs for t, pairs in edges.items()
        }
        return [everything] * (num_hops - 1) + [
            PyGHeteroBlock(own, {**everything.num_dst, target: count})
        ]
    nodes = {ntype: list(accumulate(counts)) for ntype, counts in known.items()}
    drawn = {etype: list(accumulate(batch[etype].num_sampled_edges)) for etype in edges}
    return [
        PyGHeteroBlock(
            {etype: pairs[:, : drawn[etype][hop]] for etype, pairs in edges.items()},
            {ntype: ends[hop] for ntype, ends in nodes.items()},
        )
        for hop in reversed(range(num_hops))
    ]


def _hop_ends(batch: Any, num_hops: int, num_seeds: int) -> list[tuple[int, int]]:
    """Numbers of vertices and edges known after each hop, the seeds being hop 0."""
    if batch.get("num_sampled_nodes") is not None:
        return list(
            zip(
                accumulate(batch.num_sampled_nodes),
                accumulate([0, *batch.num_sampled_edges]),
                strict=True,
            )
        )
    (src, dst), known = batch.edge_index, int(num_seeds)
    ends = [(known, 0)]
    # Torch-sparse counts nothing; its edges, too, come in the order of their destinations.
    for _ in range(num_hops):
        edges = int(torch.searchsorted(dst, known))
        known = max(known, 1 + int(src[:edges].max())) if edges else known
        ends.append((known, edges))
    return ends


_OF_ONE_HOP = (
    *(
        layers.SAGEConv,
        layers.GATConv,
        layers.GATv2Conv,
        layers.GINConv,
        layers.GraphConv,
        layers.TransformerConv,
    ),
    *(layers.EdgeConv, layers.GeneralConv, layers.MFConv, layers.CGConv),
)


def hop_of(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor] | None:
    """The computation of a layer of PyG's on a block; None for one that takes rows alone.

    Raises:
        TypeError: It is not known what it reads, or it reads more: norms of PyG's may take means
            over all vertices.
    """
    if isinstance(layer, (layers.Linear, layers.BatchNorm)) or (
        isinstance(layer, layers.LayerNorm) and layer.mode == "node"
    ):
        return None
    if isinstance(layer, layers.MessagePassing) and layer.flow == "source_to_target":
        if type(layer) is layers.GCNConv and not layer.improved:
            return _normalised(layer, csc) if layer.normalize else _of_sources(layer)
        if any(
            isinstance(layer, known) and type(layer).forward is known.forward
            for known in _OF_ONE_HOP
        ):
            return lambda block, x: layer((x, x[: block.num_dst]), block.to_pyg())
    raise TypeError(
        f"layers must be known to read one hop or a row alone, got PyG's {layer}: if it reads one "
        "hop, give "
        f"OneHop(lambda block, x: layer((x, x[: block.num_dst]), block.to_pyg()), layer)"
    )


def _of_sources(layer: Any) -> Callable[[Block, Tensor], Tensor]:
    return lambda block, x: layer(x, block.to_pyg())[: block.num_dst]


def _normalised(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor]:
    """GCNConv that divides by the degrees in the whole graph: a block knows only those of its
    destinations."""
    plain = copy.copy(layer)
    plain.normalize = False
    loops = layer.add_self_loops
    degrees = csc.indptr.diff() + (1 - csc.loop_counts if loops else 0)
    scales = degrees.float().rsqrt_().masked_fill_(degrees == 0, 0.0)

    def call(block: Block, x: Tensor) -> Tensor:
        edges = block.to_pyg()
        if loops:  # one for each vertex, in place of the graph's own
            own = torch.arange(block.num_dst, device=edges.device)
            edges = torch.cat([edges[:, edges[0] != edges[1]], own.expand(2, -1)], 1)
        scale = scales[block.src_nodes.cpu()].to(x.device)
        rows: Tensor = plain(x, edges, scale[edges[0]] * scale[edges[1]])
        return rows[: block.num_dst]

    return call
