"""DGL's convolutions on blocks that have all in-edges of their destinations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..graph.csc import CSC
from ..graph.minibatch import Block
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.nn import pytorch as layers  # noqa: E402

__all__ = ["hop_of"]

_OF_ONE_HOP = (
    *(layers.SAGEConv, layers.GATConv, layers.GATv2Conv, layers.GINConv, layers.DotGatConv, layers.EdgeConv),
    layers.AGNNConv,
)


def hop_of(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor] | None:
    """The computation of a layer of DGL's on a block; TypeError for one of which it is not known what it reads."""
    if isinstance(layer, layers.GraphConv) and type(layer).forward is layers.GraphConv.forward:
        return _normalised(layer, csc) if layer._norm in ("both", "left") else lambda b, x: layer(b.to_dgl(), x)
    if any(isinstance(layer, known) and type(layer).forward is known.forward for known in _OF_ONE_HOP):
        return lambda block, x: layer(block.to_dgl(), x)
    name = type(layer).__name__
    raise TypeError(
        f"layers must be convolutions that are known to read one hop, got DGL's {name}: if it does, give "
        f"OneHop(lambda block, x: layer(block.to_dgl(), x), layer)"
    )


def _normalised(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor]:
    """GraphConv that divides by the out-degrees in the whole graph: a block knows only some out-edges."""
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
