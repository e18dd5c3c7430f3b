"""The two models of the PaGraph paper on sampled blocks: GraphSAGE (mean) and GCN.

Both can begin with pre-aggregated features (:mod:`pagraph.preaggregation`): their first layer then needs no block, so
that there is one layer more than there are blocks. The parameters, and with all neighbours the outputs, are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..dgl.graphbolt import import_dgl
from ..preaggregation import FEATURES, SUMS

_conv = import_dgl().nn.pytorch

__all__ = ["GCN", "NORM", "GraphSAGE"]

NORM = "gcn_norm"
"""The vertex field GCN reads; see :func:`pagraph.train.task.gcn_norm`."""


class GraphSAGE(nn.Module):
    """GraphSAGE with mean aggregation, one layer per hop.

    Args:
        sizes: Width of the features, of each hidden layer, and the number of classes.
        dropout: Share of the hidden values dropped in training.
        preaggregated: Whether the first layer takes the neighbours' means as they are in the field ``feat_mean``.
        row_normalize: Whether each row of features is divided by the sum of its magnitudes.

    Attributes:
        sizes: The widths.
        features: The fields whose rows :meth:`forward` takes, as float32.
        fields: All fields it needs of the input nodes.
    """

    def __init__(
        self, sizes: Sequence[int], *, dropout: float, preaggregated: bool = False, row_normalize: bool = False
    ) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.layers = nn.ModuleList(_conv.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.preaggregated, self.row_normalize = preaggregated, row_normalize
        self.features: tuple[str, ...] = (FEATURES, SUMS["sage"]) if preaggregated else (FEATURES,)
        self.fields = self.features

    def forward(self, blocks: Sequence[Any], *rows: Tensor) -> Tensor:
        """Predict the classes of the last block's destination vertices from the input nodes' rows of ``features``."""
        x = self.begin(*rows)
        for i, block in enumerate(blocks, int(self.preaggregated)):
            x = self.layer(i, block, x)
        return x

    def begin(self, own: Tensor, *means: Tensor) -> Tensor:
        """Do what needs no neighbours: normalise the features, or run the first layer on pre-aggregated ones."""
        if not self.preaggregated:
            return normalized(own) if self.row_normalize else own
        layer: Any = self.layers[0]
        x: Tensor = self.dropout((layer.fc_self(own) + layer.fc_neigh(*means)).relu())
        return x

    def project(self, i: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split layer ``i``, but for its activation, into what a vertex adds for itself and what it sends to others.

        A vertex's output is the one plus the mean of the other over its in-neighbours.
        """
        layer: Any = self.layers[i]
        return layer.fc_self(x), layer.fc_neigh(x)

    def layer(self, i: int, block: Any, x: Tensor) -> Tensor:
        """Run layer ``i`` on a block or graph."""
        x = self.layers[i](block, x)
        return x if i == len(self.layers) - 1 else self.dropout(x.relu())


class GCN(nn.Module):
    """The graph convolutional network of Kipf and Welling on sampled blocks, one layer per hop.

    A vertex with sampled in-neighbours ``S`` receives ``sqrt(d_v) * mean(h_u / sqrt(d_u) for u in S)``, where
    ``d`` are degrees in the whole graph: with all neighbours this is the paper's symmetric normalisation, and
    with a sample its expectation is. (Degrees counted in the block would make it another model.)

    Args:
        sizes: Width of the features, of each hidden layer, and the number of classes.
        dropout: Share of the hidden values dropped in training. (Dropping input features as well took two
            thirds of a step on the CPU with 767 features and raised no accuracy.)
        preaggregated: Whether the first layer takes the neighbours' sums as they are in the field ``feat_gcn``.
        row_normalize: Whether each row of features is divided by the sum of its magnitudes.

    Attributes:
        sizes: The widths.
        features: The field whose rows :meth:`forward` takes, as float32.
        fields: All fields it needs of the input nodes.
    """

    def __init__(
        self, sizes: Sequence[int], *, dropout: float, preaggregated: bool = False, row_normalize: bool = False
    ) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.layers = nn.ModuleList(
            _conv.GraphConv(a, b, norm="none", allow_zero_in_degree=True) for a, b in pairwise(sizes)
        )
        self.dropout = nn.Dropout(dropout)
        self.preaggregated, self.row_normalize = preaggregated, row_normalize
        self.features: tuple[str, ...] = (SUMS["gcn"] if preaggregated else FEATURES,)
        self.fields = (*self.features, NORM)

    def forward(self, blocks: Sequence[Any], *rows: Tensor) -> Tensor:
        """Predict the classes of the last block's destination vertices from the input nodes' rows of ``features``."""
        x = self.begin(*rows)
        norm = blocks[0].srcdata[NORM]  # the sources of later blocks are the first of these
        for i, block in enumerate(blocks, int(self.preaggregated)):
            x = self.layer(i, block, x, norm[: block.num_src_nodes()])
        return x

    def begin(self, sums: Tensor) -> Tensor:
        """Do what needs no neighbours: normalise the features, or run the first layer on pre-aggregated ones."""
        if not self.preaggregated:
            return normalized(sums) if self.row_normalize else sums
        layer: Any = self.layers[0]
        x: Tensor = self.dropout(torch.addmm(layer.bias, sums, layer.weight).relu())
        return x

    def project(self, i: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split layer ``i``, but for its activation, into what a vertex adds for itself and what it sends to others.

        A vertex's output is the one plus the normalised sum of the other over its in-neighbours and itself.
        """
        layer: Any = self.layers[i]
        return layer.bias.expand(len(x), -1), x @ layer.weight

    def layer(self, i: int, block: Any, x: Tensor, norm: Tensor | None = None) -> Tensor:
        """Run layer ``i`` on a block or graph."""
        norm = block.srcdata[NORM] if norm is None else norm
        weight = _edge_weight(block, norm)
        x = self.layers[i](block, x, edge_weight=weight)
        return x if i == len(self.layers) - 1 else self.dropout(x.relu())


def normalized(rows: Tensor) -> Tensor:
    """Each row divided by the sum of its magnitudes; rows of zeros stay."""
    return torch.nn.functional.normalize(rows, p=1.0, dim=1)


def _edge_weight(block: Any, norm: Tensor) -> Tensor:
    """``sqrt(d_v) / sqrt(d_u) / number of sampled in-neighbours of v`` for every edge of the block."""
    src, dst = block.edges()
    share = norm[: block.num_dst_nodes(), 1] / block.in_degrees().clamp(min=1)
    return torch.index_select(norm[:, 0], 0, src.long()) * torch.index_select(share, 0, dst.long())
