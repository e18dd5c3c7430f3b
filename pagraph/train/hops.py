"""Layers that read in-neighbours, whosever they are: called with a block and the rows of its sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..graph.csc import CSC
from ..graph.minibatch import Block

__all__ = ["Hop", "OneHop", "hop_of"]

Hop = Callable[[Block, Tensor], Tensor]
"""Called with a block and a row for each of its sources; gives a row for each of its destinations."""


class OneHop:
    """A layer that reads the in-neighbours of a vertex and no others, called as ``call(block, x)``.

    For layers of one's own, and for those of DGL and PyG that take more than rows, such as edge weights
    (``block.positions`` are the edges' places in the graph's CSC).

    Args:
        call: Called with a :class:`pagraph.Block`, whose first sources are its destinations and which has all of their
            in-edges, and a row for each source, on the same device; gives a row for each destination.
        module: The module behind it, which is put in evaluation mode meanwhile. Default: ``call`` if it is one.

    Example:
        >>> import torch
        >>> from pagraph import Graph, inference
        >>> graph = Graph.from_coo([0, 1, 1], [1, 2, 2], ndata={"feat": torch.tensor([[1.0], [2.0], [4.0]])})
        >>> degrees = OneHop(lambda block, x: block.indptr.diff()[:, None] + x[: block.num_dst])
        >>> inference(graph, [degrees, torch.relu]).tolist()
        [[1.0], [3.0], [6.0]]
    """

    def __init__(self, call: Hop, module: nn.Module | None = None) -> None:
        if not callable(call):
            raise TypeError(f"call must be callable with a block and rows, got {call!r}")
        self.call = call
        self.module = module if module is not None or not isinstance(call, nn.Module) else call


def hop_of(layer: Any, csc: CSC) -> Hop | None:
    """The computation of a layer on a block; None for one that takes rows alone.

    Raises:
        TypeError: It is neither, or nobody knows whether a block has all that it reads.
    """
    if isinstance(layer, OneHop):
        return layer.call
    homes = {home.__module__.partition(".")[0] for home in type(layer).__mro__}
    if "torch_geometric" in homes:
        from ..pyg.convolutions import hop_of as of_pyg

        found = of_pyg(layer, csc)
    elif "dgl" in homes:
        from ..dgl.convolutions import hop_of as of_dgl

        found = of_dgl(layer, csc)
    elif callable(layer):
        return None
    else:
        raise TypeError(f"layers must be callable, got {layer!r}")
    return found
