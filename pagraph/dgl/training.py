"""DGL's training framework: its convolutions on its blocks, our loader, and DGL's own to compare
with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.csc import CSC
from ..graph.graph import EdgeType, Graph
from ..graph.minibatch import Block
from .convert import dgl_graph
from .graphbolt import import_dgl
from .loader import DataLoader

dgl = import_dgl()
from dgl.dataloading import DataLoader as _DGLDataLoader  # noqa: E402
from dgl.nn import pytorch as layers  # noqa: E402

__all__ = ["framework", "hop_of"]


class _DGLsLoader(_DGLDataLoader):
    """DGL's own loader without the advice on CPU affinity that it gives at every epoch."""

    def __iter__(self) -> Iterator[Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Dataloader CPU affinity")
            iterator: Iterator[Any] = super().__iter__()
            return iterator


class _DGL:
    """Implements ``pagraph.train.models.Framework``; blocks are DGL's."""

    name = "dgl"

    def sage_conv(self, in_size: int, out_size: int) -> nn.Module:
        conv: nn.Module = layers.SAGEConv(in_size, out_size, "mean")
        return conv

    def gcn_conv(self, in_size: int, out_size: int) -> nn.Module:
        conv: nn.Module = layers.GraphConv(
            in_size, out_size, norm="none", allow_zero_in_degree=True
        )
        return conv

    def gat_conv(self, in_size: int, out_size: int, heads: int) -> nn.Module:
        conv: nn.Module = layers.GATConv(
            in_size, out_size // heads, heads, allow_zero_in_degree=True
        )
        return conv

    def attention(self, conv: Any) -> tuple[Tensor, ...]:
        return (conv.attn_l[0], conv.attn_r[0]) if hasattr(conv, "attn_l") else ()

    def weights(self, conv: Any) -> tuple[Tensor, Tensor | None, Tensor]:
        if hasattr(conv, "fc_self"):
            return conv.fc_neigh.weight, conv.fc_self.weight, conv.fc_self.bias
        if hasattr(conv, "attn_l"):
            return conv.fc.weight, None, conv.bias
        return conv.weight.T, None, conv.bias

    def convolve(
        self, conv: nn.Module, block: Any, x: Tensor, edge_weight: Tensor | None = None
    ) -> Tensor:
        rows: Tensor = conv(block, x, edge_weight=edge_weight)
        return rows.flatten(1)  # GAT's come by head

    def edges(self, block: Any) -> tuple[Tensor, Tensor]:
        src, dst = block.edges()
        return src.long(), dst.long()

    def num_dst(self, block: Any) -> int:
        return int(block.num_dst_nodes())

    def with_edges(self, block: Any, src: Tensor, dst: Tensor) -> Any:
        return dgl.create_block((src, dst), block.num_src_nodes(), block.num_dst_nodes())

    def mean_conv(self, in_size: int, out_size: int) -> nn.Module:
        conv: nn.Module = layers.GraphConv(
            in_size, out_size, norm="right", bias=False, allow_zero_in_degree=True
        )
        return conv

    def relation(self, block: Any, edge_type: EdgeType) -> Any:
        return block[edge_type]

    def num_dst_of(self, block: Any, node_type: str) -> int:
        return int(block.num_dst_nodes(node_type))

    def check_own_loader(self) -> None:
        """DGL's needs nothing else."""

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
        sampler = dgl.dataloading.NeighborSampler(
            list(fanout), prefetch_node_feats=list(fields), prefetch_labels=[label]
        )
        return (_DGLsLoader if own else DataLoader)(
            dgl_graph(graph), ids, sampler, shuffle=True, **more
        )

    def batch(
        self, item: Any, num_hops: int, label: str
    ) -> tuple[Sequence[Any], Mapping[str, Tensor], Tensor]:
        blocks = item[2]
        return blocks, blocks[0].srcdata, blocks[-1].dstdata[label]

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
        names = {ntype: [name for of, name in fields if of == ntype] for ntype, _ in fields}
        sampler = dgl.dataloading.NeighborSampler(
            list(fanout), prefetch_node_feats=names, prefetch_labels={target: [label]}
        )
        return (_DGLsLoader if own else DataLoader)(
            dgl_graph(graph), {target: ids}, sampler, shuffle=True, **more
        )

    def hetero_batch(
        self, item: Any, num_hops: int, target: str, label: str
    ) -> tuple[Sequence[Any], Mapping[Any, Tensor], Tensor]:
        blocks = item[2]
        nodes = blocks[0].srcnodes
        rows = {
            (ntype, name): values
            for ntype in blocks[0].srctypes
            for name, values in nodes[ntype].data.items()
        }
        return blocks, rows, blocks[-1].dstnodes[target].data[label]

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
        sampler = dgl.dataloading.as_edge_prediction_sampler(
            dgl.dataloading.NeighborSampler(list(fanout), prefetch_node_feats=list(fields)),
            negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
        )
        return (_DGLsLoader if own else DataLoader)(
            dgl_graph(graph), edges, sampler, shuffle=True, **more
        )

    def link_batch(
        self, item: Any, num_hops: int
    ) -> tuple[Sequence[Any], Mapping[str, Tensor], Tensor, Tensor]:
        _, links, others, blocks = item
        ends = (torch.stack(pairs.edges()).long() for pairs in (links, others))
        return blocks, blocks[0].srcdata, *ends

    def seed(self, seed: int) -> None:
        dgl.seed(seed % 2**31)


framework = _DGL()


_OF_ONE_HOP = (
    *(
        layers.SAGEConv,
        layers.GATConv,
        layers.GATv2Conv,
        layers.GINConv,
        layers.DotGatConv,
        layers.EdgeConv,
    ),
    layers.AGNNConv,
)


def hop_of(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor] | None:
    """The computation of a layer of DGL's on a block; TypeError for one of which it is not known
    what it reads."""
    if isinstance(layer, layers.GraphConv) and type(layer).forward is layers.GraphConv.forward:
        return (
            _normalised(layer, csc)
            if layer._norm in ("both", "left")
            else lambda b, x: layer(b.to_dgl(), x)
        )
    if any(
        isinstance(layer, known) and type(layer).forward is known.forward for known in _OF_ONE_HOP
    ):
        return lambda block, x: layer(block.to_dgl(), x)
    name = type(layer).__name__
    raise TypeError(
        f"layers must be convolutions that are known to read one hop, got DGL's {name}: if it "
        "does, give "
        f"OneHop(lambda block, x: layer(block.to_dgl(), x), layer)"
    )


def _normalised(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor]:
    """GraphConv that divides by the out-degrees in the whole graph: a block knows only some
    out-edges."""
    plain = copy.copy(layer)
    plain._norm = "none"
    power = -0.5 if layer._norm == "both" else -1.0
    scales = csc.source_counts.clamp(min=1).float().pow_(power)

    def call(block: Block, x: Tensor) -> Tensor:
        local, dst = block.to_pyg()
        weights = scales[block.src_nodes.cpu()].to(x.device)[local]
        if layer._norm == "both":
            weights = weights * block.indptr.diff().clamp(min=1).float().rsqrt()[dst]
        rows: Tensor = plain(block.to_dgl(), x, edge_weight=weights)
        return rows

    return call
