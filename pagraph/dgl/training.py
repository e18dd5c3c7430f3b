"""DGL as a training framework: its convolutions and blocks, our loader, and DGL's to compare
with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..framework import Batch, Seeds, Weights, runs_as
from ..graph.csc import CSC
from ..graph.graph import EdgeType
from ..graph.minibatch import Block
from .convert import dgl_graph
from .graphbolt import import_dgl
from .loader import DataLoader

dgl = import_dgl()
from dgl.dataloading import DataLoader as _DGLDataLoader  # noqa: E402
from dgl.nn import pytorch as layers  # noqa: E402


class _DGLsLoader(_DGLDataLoader):
    """DGL's loader without its advice on CPU affinity at every epoch."""

    def __iter__(self) -> Iterator[Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Dataloader CPU affinity")
            iterator: Iterator[Any] = super().__iter__()
            return iterator


class _DGL:
    """Implements ``pagraph.framework.Framework``; blocks are DGL's."""

    name = "dgl"

    def convolution(self, kind: str, in_size: int, out_size: int, heads: int = 1) -> nn.Module:
        conv: nn.Module
        if kind == "sage":
            conv = layers.SAGEConv(in_size, out_size, "mean")
            return conv
        # A vertex without sampled in-neighbours gets 0. By default DGL treats it as an error.
        more: dict[str, Any] = {"allow_zero_in_degree": True}
        if kind == "gcn":
            conv = layers.GraphConv(in_size, out_size, norm="none", **more)
        elif kind == "gat":
            conv = layers.GATConv(in_size, out_size // heads, heads, **more)
        else:
            conv = layers.GraphConv(in_size, out_size, norm="right", bias=False, **more)
        return conv

    def weights(self, conv: Any) -> Weights:
        if isinstance(conv, layers.SAGEConv):
            return Weights(conv.fc_neigh.weight, conv.fc_self.weight, conv.fc_self.bias)
        if isinstance(conv, layers.GATConv):
            attention = (conv.attn_l[0], conv.attn_r[0])
            return Weights(conv.fc.weight, None, conv.bias, attention)
        return Weights(conv.weight.T, None, conv.bias)

    def convolve(
        self,
        conv: nn.Module,
        block: Any,
        x: Tensor,
        *,
        edge_type: EdgeType | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        relation = block if edge_type is None else block[edge_type]
        rows: Tensor = conv(relation, x, edge_weight=edge_weight)
        return rows.flatten(1)  # GAT's output has a dimension for heads

    def num_dst(self, block: Any, node_type: str | None = None) -> int:
        return int(block.num_dst_nodes(node_type))

    def edges(self, block: Any) -> tuple[Tensor, Tensor]:
        src, dst = block.edges()
        return src.long(), dst.long()

    def with_edges(self, block: Any, src: Tensor, dst: Tensor) -> Any:
        return dgl.create_block((src, dst), block.num_src_nodes(), block.num_dst_nodes())

    def check_own_loader(self) -> None:
        """DGL's loader has no further requirements."""

    def loader(self, seeds: Seeds, fanout: Sequence[int], *, own: bool, **more: Any) -> Any:
        names: dict[str, list[str]] = {}
        for ntype, name in seeds.fields:
            names.setdefault(ntype, []).append(name)
        labels = {} if seeds.label is None else {seeds.node_type: [seeds.label]}
        sampler = dgl.dataloading.NeighborSampler(
            list(fanout), prefetch_node_feats=names, prefetch_labels=labels
        )
        if seeds.label is None:
            sampler = dgl.dataloading.as_edge_prediction_sampler(
                sampler, negative_sampler=dgl.dataloading.negative_sampler.Uniform(1)
            )
        ids = seeds.ids if seeds.graph.is_homogeneous else {seeds.node_type: seeds.ids}
        loader = _DGLsLoader if own else DataLoader
        # DGL's structure, int64 copies of all edges, is made only if DGL's loader needs it. Ours
        # samples from the arrays of `seeds.graph`.
        return loader(dgl_graph(seeds.graph), ids, sampler, shuffle=True, **more)

    def batch(self, item: Any, seeds: Seeds, num_hops: int) -> Batch:
        blocks = item[-1]
        sources = blocks[0].srcnodes
        rows = [sources[ntype].data[name] for ntype, name in seeds.fields]
        if seeds.label is None:
            # DGL's batch has a graph of the seed edges, and one of the random pairs.
            _, links, others, _ = item
            answers = tuple(torch.stack(pairs.edges()).long() for pairs in (links, others))
        else:
            answers = (blocks[-1].dstnodes[seeds.node_type].data[seeds.label],)
        return Batch(blocks, rows, answers)

    def seed(self, seed: int) -> None:
        dgl.seed(seed % 2**31)  # DGL takes a C int


framework = _DGL()


# Convolutions that read only the rows of a block's sources. A subclass that overrides `forward` may
# read more, and is refused.
_OF_ONE_HOP = (
    layers.GraphConv,
    layers.SAGEConv,
    layers.GATConv,
    layers.GATv2Conv,
    layers.GINConv,
    layers.DotGatConv,
    layers.EdgeConv,
    layers.AGNNConv,
)


def hop_of(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor] | None:
    """The computation of a DGL layer on a block.

    Raises:
        TypeError: It is unknown whether the layer reads only one hop.
    """
    # Other norms divide by in-degrees only, which a block has in full.
    if runs_as(layer, [layers.GraphConv]) and layer._norm in ("both", "left"):
        return _normalised(layer, csc)
    if runs_as(layer, _OF_ONE_HOP):
        return lambda block, x: layer(block.to_dgl(), x)
    name = type(layer).__name__
    raise TypeError(
        f"layers must be convolutions that are known to read one hop, got DGL's {name}: if it "
        "does, pass OneHop(lambda block, x: layer(block.to_dgl(), x), layer)"
    )


def _normalised(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor]:
    """GraphConv that divides by out-degrees of the whole graph, since a block lacks out-edges."""
    plain = copy.copy(layer)
    plain._norm = "none"
    # "both" is D^-1/2 A D^-1/2 of Kipf and Welling (2017), "left" is A D^-1.
    power = -0.5 if layer._norm == "both" else -1.0
    scales = csc.source_counts.clamp(min=1).float().pow_(power)

    def call(block: Block, x: Tensor) -> Tensor:
        src, dst = block.to_pyg()
        weights = scales[block.src_nodes.cpu()].to(x.device)[src]
        if layer._norm == "both":
            in_degrees = block.indptr.diff().clamp(min=1)
            weights = weights * in_degrees.float().rsqrt()[dst]
        rows: Tensor = plain(block.to_dgl(), x, edge_weight=weights)
        return rows

    return call
